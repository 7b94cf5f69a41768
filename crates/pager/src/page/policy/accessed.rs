//! CLOCK (Corbató, 1968) by accessed bits, which anonymous memory has from Linux 7.3 on.
//!
//! Pages begin in the small queue, which is a tenth of the budget and where nobody looks: a page
//! that was just fetched is in use. From there all go round the main queue, the clock. Each is
//! watched from when it enters: protected, so that the first touch, which the kernel settles by
//! itself, leaves a trace. When its turn comes and it was touched, it goes round once more, watched
//! anew; if not, it is evicted. So what is used costs no message and no fetch, but a trap of the
//! processor a round.
use super::contract::{Policy, Queue, Verdict, Waiting};
use crate::page::word::Word;

/// The small queue's share of the pages: one in so many.
const SMALL: u64 = 10;

/// See the module's text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accessed;

impl Policy for Accessed {
    fn name(&self) -> &'static str {
        "accessed"
    }

    fn admit(&self, word: Word) -> (Word, Queue) {
        (word, Queue::Small)
    }

    fn watched(&self) -> Option<Queue> {
        Some(Queue::Main)
    }

    fn next(&self, waiting: Waiting, budget: u64) -> Queue {
        match waiting.main == 0 || waiting.small > budget / SMALL {
            true => Queue::Small,
            false => Queue::Main,
        }
    }

    fn judge(&self, word: Word, queue: Queue, _budget: u64) -> Verdict {
        match queue {
            Queue::Small => Verdict::Keep(word, Queue::Main),
            Queue::Main | Queue::Ahead => Verdict::Evict(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_round_the_clock_before_it_goes() {
        let word = Word::default();
        assert_eq!(Accessed.admit(word).1, Queue::Small);
        let judged = Accessed.judge(word, Queue::Small, 100);
        assert_eq!(judged, Verdict::Keep(word, Queue::Main));
        assert_eq!(Accessed.judge(word, Queue::Main, 100), Verdict::Evict(word));
        for (small, main, queue) in [
            (11, 50, Queue::Small),
            (10, 50, Queue::Main),
            (1, 0, Queue::Small),
        ] {
            let waiting = Waiting {
                small,
                main,
                ahead: 0,
            };
            assert_eq!(Accessed.next(waiting, 100), queue);
        }
    }
}
