//! The eviction queues and the policy at work: pages enter them when they become resident, and the
//! evictor takes its victims from them.
use pagetide_kernel::PageNumber;

use super::Pager;
use super::page::policy::{Kind, Queue, Verdict};
use super::page::queue::EvictionQueue;
use super::page::word::{State, Word};

/// Looks at a queue entry for each entry there is, before the evictor gives up for this round: a
/// page may go round its queue more than once.
const LAPS: u64 = 4;

impl Pager {
    /// The same pager with another policy; before any memory is attached.
    pub fn with_policy(mut self, kind: Kind) -> Pager {
        self.policy = kind.make();
        self
    }

    fn queue(&self, queue: Queue) -> &EvictionQueue {
        match queue {
            Queue::Small => &self.small,
            Queue::Main => &self.main,
        }
    }

    /// Puts `page` in an eviction queue unless it is in one.
    pub fn enqueue(&self, page: PageNumber) {
        let (history, queue) = self.policy.admit(self.table.load(page));
        self.put(page, history, queue);
    }

    fn put(&self, page: PageNumber, history: Word, queue: Queue) {
        let was = self.table.update(page, |w| match w.is_queued() {
            true => w,
            false => w.queued(history),
        });
        if !was.is_queued() && !self.queue(queue).put(page) {
            self.table.update(page, Word::unqueued);
        }
    }

    /// Takes up to `count` evictable pages out of the queues, as the policy chooses, into `victims`
    /// (emptied before). Only for the evictor.
    pub fn take_victims(&self, victims: &mut Vec<PageNumber>, count: usize) {
        victims.clear();
        for _ in 0..LAPS * (self.small.len() + self.main.len()) {
            if victims.len() >= count {
                break;
            }
            let (small, main) = (self.small.len(), self.main.len());
            let queue = self.policy.next(small, main, self.budget());
            match self.queue(queue).take() {
                Some(page) => victims.extend(self.dequeue(page, queue)),
                None => break,
            }
        }
    }

    /// What a page taken from a queue is: a victim, or nothing (any more, while it is pinned, or
    /// for now). The mark goes first: whoever makes the page resident after that sees that it is
    /// not queued.
    fn dequeue(&self, page: PageNumber, queue: Queue) -> Option<PageNumber> {
        let was = self.table.update(page, Word::unqueued);
        if !matches!(was.state(), State::Resident | State::Clean) {
            return None;
        }
        if was.pins() > 0 {
            self.put(page, was, queue);
            return None;
        }
        match self.policy.judge(was, queue, self.budget()) {
            Verdict::Keep(history, to) => {
                self.put(page, history, to);
                None
            }
            Verdict::Evict(history) => {
                self.table.update(page, |w| w.with_history(history));
                Some(page)
            }
        }
    }
}
