//! S3-FIFO (Yang et al., SOSP 2023) for a cache that never sees its hits.
//!
//! As there, pages begin in a small queue, leave it quickly, and enter the main queue when they are
//! wanted again while they are still remembered (the *ghosts*). There, an object that was hit goes
//! round the main queue again. Here no hit is seen, so every page of the main queue must go in
//! turn, and the hot ones come back as misses. Two things make up for it:
//!
//! - *Admission by lot.* While most pages that the main queue gives up are wanted back soon, it
//!   holds the right pages, and a ghost gets in only by lot, one in `LOT`. The page wanted most
//!   often draws most lots, so the main queue comes to hold the most used pages, as with q-LRU
//!   (Garetto, Leonardi and Martina, 2016); and of a loop larger than memory a part stays, where
//!   FIFO and LRU keep none. As soon as the main queue gives up pages that nobody asks for, it is
//!   open to all ghosts: so a new phase of the program is followed.
//! - *A second chance* for a ghost that came back at once, and for a page that was wanted while it
//!   was held aside: it goes round the main queue once more.
//!
//! Pages that are read ahead have a short queue of their own, as in SARC (Gill and Modha, USENIX
//! ATC 2005): most are of a scan, used once and not again before long. They go first, so a scan
//! takes the place of its own pages and not of others, and of a loop the rest stays. One that is
//! wanted again is a ghost as others are, and the queue grows if it is wanted soon.
//!
//! A ghost is nothing but eight bits in its page's word: the epoch of its eviction. An epoch is a
//! sixteenth of the budget's worth of evictions, and ghosts are remembered for a budget's worth.
//! After 255 epochs the count begins anew, so one in sixteen of the pages forgotten long ago is
//! taken for a ghost.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::contract::{Policy, Queue, Verdict, Waiting};
use crate::page::word::Word;

/// Epochs in a budget's worth of evictions: for so long a page is a ghost.
const WINDOW: u64 = 16;
/// Epochs that can be told apart; 0 stands for none.
const EPOCHS: u64 = 255;
/// The small queue's share of the pages: one in so many.
const SMALL: u64 = 10;
/// The share of the budget that pages read ahead may have: at first, at least and at most, and what
/// it grows or shrinks by, in parts of [`ONE`]. With more than an eighth some programs have lost
/// what they use at random.
const AHEAD: u64 = ONE / 32;
const AHEAD_RANGE: std::ops::RangeInclusive<u64> = ONE / 64..=ONE / 8;
const AHEAD_STEP: u64 = ONE / 16_384;
const ONE: u64 = 1 << 16;
/// As many pages they may have in any case, if that is no more than a quarter of the budget: two
/// windows of a stream.
const AHEAD_MIN: u64 = 128;
/// A page that comes back within so many epochs was evicted too soon.
const SOON: u64 = 1;
/// Pages to be evicted are held aside in one in so many pages of the budget.
const HELD: u64 = 32;
/// Of the ghosts that ask for a place in a main queue that holds the right pages, one in so many
/// gets it.
const LOT: u64 = 16;
/// Pages given up by the main queue after which the account is halved.
const ACCOUNT: u64 = 256;

/// See the module's text.
#[derive(Debug)]
pub struct S3Fifo {
    evictions: AtomicU64,
    epoch: AtomicU64,
    /// Pages the main queue gave up of late, and those of them that came back while remembered.
    given_up: AtomicU64,
    came_back: AtomicU64,
    asked: AtomicU64,
    /// The share of pages that were read ahead.
    ahead: AtomicU64,
}

impl Default for S3Fifo {
    fn default() -> S3Fifo {
        S3Fifo {
            evictions: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            came_back: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            ahead: AtomicU64::new(AHEAD),
        }
    }
}

impl S3Fifo {
    /// The page of `word` is wanted back. Where pages read ahead are evicted too soon their queue
    /// is too short, and where others are it is too long, as in ARC (Megiddo and Modha, FAST 2003).
    fn note_return(&self, word: Word) {
        if word.was_in_main() {
            self.came_back.fetch_add(1, Relaxed);
        }
        if self.age(word).is_some_and(|age| age <= SOON) {
            let share = self.ahead.load(Relaxed);
            let was_ahead = !word.was_in_main() && word.laps() == 1;
            let share = match was_ahead {
                true => share + AHEAD_STEP,
                false => share - AHEAD_STEP,
            };
            let (least, most) = AHEAD_RANGE.into_inner();
            self.ahead.store(share.clamp(least, most), Relaxed);
        }
    }

    /// Two in three pages that the main queue gives up are wanted back.
    fn holds_the_right_pages(&self) -> bool {
        let given_up = self.given_up.load(Relaxed);
        given_up >= ACCOUNT / 8 && self.came_back.load(Relaxed) * 3 > given_up * 2
    }

    /// Epochs since the page of `word` was evicted, as far as can be told; none for a page that
    /// is no ghost.
    fn age(&self, word: Word) -> Option<u64> {
        let stamp = word.evicted_in();
        let now = self.epoch.load(Relaxed) % EPOCHS + 1;
        let age = (now + EPOCHS - u64::from(stamp)) % EPOCHS;
        (stamp != 0 && age <= WINDOW).then_some(age)
    }

    fn note_eviction(&self, budget: u64, from_main: bool) -> u8 {
        let evictions = self.evictions.fetch_add(1, Relaxed) + 1;
        // The evictor alone counts; a division by a budget that changes would make epochs jump.
        if evictions >= (budget / WINDOW).max(1) {
            self.evictions.store(0, Relaxed);
            self.epoch.fetch_add(1, Relaxed);
        }
        if from_main && self.given_up.fetch_add(1, Relaxed) >= ACCOUNT {
            self.given_up.store(ACCOUNT / 2, Relaxed);
            self.came_back
                .store(self.came_back.load(Relaxed) / 2, Relaxed);
        }
        (self.epoch.load(Relaxed) % EPOCHS + 1) as u8
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn admit(&self, word: Word) -> (Word, Queue) {
        let fresh = word.without_history();
        let Some(age) = self.age(word) else {
            return (fresh, Queue::Small);
        };
        self.note_return(word);
        if self.holds_the_right_pages() && !self.asked.fetch_add(1, Relaxed).is_multiple_of(LOT) {
            return (fresh, Queue::Small);
        }
        (fresh.with_laps(u8::from(age == 0)), Queue::Main)
    }

    fn admit_ahead(&self, word: Word) -> (Word, Queue) {
        (word.without_history(), Queue::Ahead)
    }

    fn is_near_miss(&self, word: Word) -> bool {
        self.age(word).is_some()
    }

    fn readmit(&self, word: Word) -> (Word, Queue) {
        self.note_return(word);
        (word.without_history().with_laps(1), Queue::Main)
    }

    fn held_share(&self) -> Option<u64> {
        Some(HELD)
    }

    fn next(&self, waiting: Waiting, budget: u64) -> Queue {
        let share = budget * self.ahead.load(Relaxed) / ONE;
        let most_ahead = share.max(AHEAD_MIN).min(budget / 4);
        match waiting {
            Waiting { ahead, .. } if ahead > most_ahead => Queue::Ahead,
            Waiting { small, main, .. } if small > budget / SMALL || main == 0 && small > 0 => {
                Queue::Small
            }
            Waiting { main: 0, .. } => Queue::Ahead,
            _ => Queue::Main,
        }
    }

    fn judge(&self, word: Word, queue: Queue, budget: u64) -> Verdict {
        match (queue, word.laps()) {
            (Queue::Main, laps @ 1..) => Verdict::Keep(word.with_laps(laps - 1), Queue::Main),
            _ => {
                let from_main = queue == Queue::Main;
                let epoch = self.note_eviction(budget, from_main);
                let was_ahead = u8::from(queue == Queue::Ahead);
                Verdict::Evict(word.evicted(epoch, from_main).with_laps(was_ahead))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict(policy: &S3Fifo, word: Word, queue: Queue) -> Word {
        match policy.judge(word, queue, 1600) {
            Verdict::Evict(word) => word,
            Verdict::Keep(..) => panic!("kept"),
        }
    }

    #[test]
    fn a_ghost_enters_the_main_queue_and_a_stranger_or_a_forgotten_page_does_not() {
        let policy = S3Fifo::default();
        assert_eq!(policy.admit(Word::default()).1, Queue::Small);
        let ghost = evict(&policy, Word::default(), Queue::Small);
        assert_eq!(policy.admit(ghost).1, Queue::Main);
        // 100 evictions are an epoch here; after more than 16 epochs the page is forgotten.
        (0..1601).for_each(|_| {
            evict(&policy, Word::default(), Queue::Small);
        });
        assert_eq!(policy.admit(ghost).1, Queue::Main);
        (0..200).for_each(|_| {
            evict(&policy, Word::default(), Queue::Small);
        });
        assert_eq!(policy.admit(ghost).1, Queue::Small);
    }

    #[test]
    fn what_was_read_ahead_goes_first_once_there_are_many_and_last_before() {
        let policy = S3Fifo::default();
        let ghost = evict(&policy, Word::default(), Queue::Main);
        assert_eq!(policy.admit_ahead(ghost).1, Queue::Ahead);
        let next = |small, main, ahead| {
            let waiting = Waiting { small, main, ahead };
            policy.next(waiting, 32_000)
        };
        assert_eq!(next(20_000, 11_000, 1001), Queue::Ahead);
        assert_eq!(next(20_000, 11_000, 1000), Queue::Small);
        assert_eq!(next(3200, 27_800, 1000), Queue::Main);
        assert_eq!(next(3200, 0, 1000), Queue::Small);
        assert_eq!(next(0, 0, 1000), Queue::Ahead);
        // Of a small budget no more than a quarter.
        let waiting = Waiting {
            small: 60,
            main: 0,
            ahead: 16,
        };
        assert_eq!(policy.next(waiting, 64), Queue::Small);
        assert_eq!(policy.next(waiting, 60), Queue::Ahead);
    }

    #[test]
    fn the_queue_of_what_was_read_ahead_grows_while_that_is_evicted_too_soon() {
        let policy = S3Fifo::default();
        // The longest that it is left alone.
        let length = || {
            let waiting = |ahead| Waiting {
                small: 64_000,
                main: 0,
                ahead,
            };
            (0..)
                .find(|ahead| policy.next(waiting(*ahead), 64_000) == Queue::Ahead)
                .unwrap()
                - 1
        };
        let back = |from, times| {
            for _ in 0..times {
                policy.admit(evict(&policy, Word::default(), from));
            }
        };
        assert_eq!(length(), 2000);
        back(Queue::Ahead, 100);
        let grown = length();
        assert!((2100..4000).contains(&grown), "{grown}");
        back(Queue::Main, 100);
        assert_eq!(length(), 2000);
        back(Queue::Ahead, 10_000);
        assert_eq!(length(), 8000);
        back(Queue::Small, 10_000);
        assert_eq!(length(), 1000);
    }

    #[test]
    fn a_page_that_comes_back_at_once_goes_round_once_more() {
        let policy = S3Fifo::default();
        let ghost = evict(&policy, Word::default(), Queue::Small);
        let (word, queue) = policy.admit(ghost);
        let Verdict::Keep(word, Queue::Main) = policy.judge(word, queue, 1600) else {
            panic!("evicted at once");
        };
        assert!(evict(&policy, word, Queue::Main).was_in_main());
    }

    #[test]
    fn a_main_queue_whose_pages_all_come_back_is_open_to_few() {
        let policy = S3Fifo::default();
        let mut in_main = 0;
        for _ in 0..1000 {
            let ghost = evict(&policy, Word::default(), Queue::Main);
            in_main += u32::from(policy.admit(ghost).1 == Queue::Main);
        }
        assert!((50..150).contains(&in_main), "{in_main} of 1000 got in");
        // Once nobody asks for what it gives up, it is open to all.
        (0..500).for_each(|_| {
            evict(&policy, Word::default(), Queue::Main);
        });
        let ghost = evict(&policy, Word::default(), Queue::Small);
        assert!((0..20).all(|_| policy.admit(ghost).1 == Queue::Main));
    }
}
