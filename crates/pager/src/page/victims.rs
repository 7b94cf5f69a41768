//! The eviction queues and the policy at work: pages enter them when they become resident, and the
//! evictor takes its victims from them.
use pagetide_kernel::PageNumber;
use rustix::io::Errno;

use crate::page::policy::{Kind, Policy, Queue, Verdict, Waiting};
use crate::page::queue::EvictionQueue;
use crate::page::table::PageTable;
use crate::page::word::{State, Word};

/// Looks at a queue entry for each entry there is, before the evictor gives up for this round: a
/// page may go round its queue more than once.
pub(super) const LAPS: u64 = 4;

/// Entries of pinned pages that were taken in a round, and put back.
#[derive(Debug, Default)]
pub(super) struct Pinned([u64; Queue::ALL.len()]);

/// The order in which resident pages are evicted. Every resident page has an entry, but for those
/// the evictor has in its hands.
pub struct VictimQueues {
    /// One of each kind, oldest first.
    queues: [EvictionQueue; Queue::ALL.len()],
    /// Chooses between them.
    policy: Box<dyn Policy>,
}

impl VictimQueues {
    /// Room for `entries` in each queue, stale ones included.
    pub(crate) fn new(entries: u64) -> Result<VictimQueues, Errno> {
        let queue = || EvictionQueue::new(entries);
        Ok(VictimQueues {
            queues: [queue()?, queue()?, queue()?],
            policy: Kind::default().make(),
        })
    }

    /// Another policy; before any page is in.
    pub(crate) fn set_policy(&mut self, kind: Kind) {
        self.policy = kind.make();
    }

    /// Entries, stale ones included.
    pub(crate) fn len(&self) -> u64 {
        self.queues.iter().map(EvictionQueue::len).sum()
    }

    /// Puts `page` in a queue unless it is in one.
    pub(crate) fn enqueue(&self, table: &PageTable, page: PageNumber) {
        let (history, queue) = self.policy.admit(table.load(page));
        self.put(table, page, history, queue);
    }

    /// The same for a page that was read ahead.
    pub(crate) fn enqueue_ahead(&self, table: &PageTable, page: PageNumber) {
        let (history, queue) = self.policy.admit_ahead(table.load(page));
        self.put(table, page, history, queue);
    }

    /// Whether a page of `word`, which is wanted back, would still be here with twice the budget.
    pub(crate) fn is_near_miss(&self, word: Word) -> bool {
        self.policy.is_near_miss(word)
    }

    /// The same for a page that was chosen, and wanted again while it was held aside.
    pub(crate) fn enqueue_taken_back(&self, table: &PageTable, page: PageNumber) {
        let (history, queue) = self.policy.readmit(table.load(page));
        self.put(table, page, history, queue);
    }

    /// The share of the budget that chosen pages are held aside in: one in so many pages, or none.
    pub(crate) fn held_share(&self) -> Option<u64> {
        self.policy.held_share()
    }

    /// The queue whose pages are watched for use, if one is.
    pub(crate) fn watched(&self) -> Option<Queue> {
        self.policy.watched()
    }

    /// The queue to take from next; none when there is nothing left but what is `pinned`.
    pub(super) fn next_queue(&self, budget: u64, pinned: &Pinned) -> Option<Queue> {
        let left = Queue::ALL.map(|queue| self.left(queue, pinned));
        let [small, main, ahead] = left;
        let waiting = Waiting { small, main, ahead };
        (left != [0; 3]).then(|| self.policy.next(waiting, budget))
    }

    /// Entries of `queue` that were not seen to be pinned.
    pub(super) fn left(&self, queue: Queue, pinned: &Pinned) -> u64 {
        let pinned = pinned.0[queue as usize];
        self.queue(queue).len().saturating_sub(pinned)
    }

    pub(super) fn queue(&self, queue: Queue) -> &EvictionQueue {
        &self.queues[queue as usize]
    }

    pub(super) fn put(&self, table: &PageTable, page: PageNumber, history: Word, queue: Queue) {
        let was = table.update(page, |word| match word.is_queued() {
            true => word,
            false => word.queued(history),
        });
        if !was.is_queued() && !self.queue(queue).put(page) {
            table.update(page, Word::unqueued);
        }
    }

    /// Takes up to `count` evictable pages, as the policy chooses, into `victims` (emptied before).
    /// Only for the evictor.
    pub(crate) fn take(
        &self,
        table: &PageTable,
        budget: u64,
        victims: &mut Vec<PageNumber>,
        count: usize,
    ) {
        victims.clear();
        let mut pinned = Pinned::default();
        for _ in 0..LAPS * self.len() {
            if victims.len() >= count {
                break;
            }
            let Some(queue) = self.next_queue(budget, &pinned) else {
                break;
            };
            let Some(page) = self.queue(queue).take() else {
                break;
            };
            let word = self.candidate(table, page, queue, &mut pinned);
            if word.is_some_and(|was| self.decide(table, budget, page, was, queue).is_none()) {
                victims.push(page);
            }
        }
    }

    /// The word of a page taken from a queue, if it may be a victim. The mark goes first: whoever
    /// makes the page resident after that sees that it is not queued.
    pub(super) fn candidate(
        &self,
        table: &PageTable,
        page: PageNumber,
        queue: Queue,
        pinned: &mut Pinned,
    ) -> Option<Word> {
        let was = table.update(page, Word::unqueued);
        if !matches!(was.state(), State::Resident | State::Clean) {
            return None;
        }
        if was.pins() > 0 {
            self.put(table, page, was, queue);
            pinned.0[queue as usize] += 1;
            return None;
        }
        Some(was)
    }

    /// What the policy says of such a page: the queue it has gone to, or none for a victim.
    pub(super) fn decide(
        &self,
        table: &PageTable,
        budget: u64,
        page: PageNumber,
        was: Word,
        queue: Queue,
    ) -> Option<Queue> {
        match self.policy.judge(was, queue, budget) {
            Verdict::Keep(history, to) => {
                self.put(table, page, history, to);
                Some(to)
            }
            Verdict::Evict(history) => {
                table.update(page, |word| word.with_history(history));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagetide_kernel::PageRange;

    use super::*;

    const PAGES: u64 = 200;
    const FIRST: PageNumber = PageNumber(7000);

    /// Pages of which the first `pinned` are pinned, all in `queue`, and the others in the other
    /// one.
    fn pinned_in(queue: Queue, pinned: u64, kind: Kind) -> (PageTable, VictimQueues) {
        let table = PageTable::new().unwrap();
        let end = FIRST.add(PAGES);
        table.ensure(PageRange { start: FIRST, end }).unwrap();
        let mut queues = VictimQueues::new(4096).unwrap();
        queues.set_policy(kind);
        let other = match queue {
            Queue::Small => Queue::Main,
            Queue::Main | Queue::Ahead => Queue::Small,
        };
        for index in 0..PAGES {
            let (page, word) = (
                FIRST.add(index),
                Word::default().with_state(State::Resident),
            );
            let is_pinned = index < pinned;
            let word = if is_pinned {
                word.pinned().unwrap()
            } else {
                word
            };
            table.store(page, word);
            queues.put(&table, page, word, if is_pinned { queue } else { other });
        }
        (table, queues)
    }

    #[test]
    fn a_queue_of_pinned_pages_does_not_keep_the_other_ones_from_leaving() {
        for kind in [Kind::S3Fifo, Kind::Fifo] {
            for (queue, pinned) in [
                (Queue::Small, 30),
                (Queue::Small, 190),
                (Queue::Main, 190),
                (Queue::Ahead, 190),
            ] {
                let (table, queues) = pinned_in(queue, pinned, kind);
                let (mut victims, mut gone) = (Vec::new(), 0);
                for _ in 0..4 {
                    queues.take(&table, PAGES, &mut victims, 50);
                    assert!(victims.iter().all(|page| page.0 >= FIRST.0 + pinned));
                    gone += victims.len() as u64;
                }
                assert_eq!(
                    gone,
                    PAGES - pinned,
                    "{kind:?}, {pinned} pinned in {queue:?}"
                );
            }
        }
    }
}
