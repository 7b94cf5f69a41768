//! The eviction queues and the policy at work: pages enter them when they become resident, and the
//! evictor takes its victims from them.
use pagetide_kernel::PageNumber;
use rustix::io::Errno;

use crate::page::policy::{Kind, Policy, Queue, Verdict};
use crate::page::queue::EvictionQueue;
use crate::page::table::PageTable;
use crate::page::word::{State, Word};

/// Looks at a queue entry for each entry there is, before the evictor gives up for this round: a
/// page may go round its queue more than once.
const LAPS: u64 = 4;

/// Pages that are looked at together for whether they were used.
const LOOK: usize = 64;

/// Tells which pages were used.
pub(crate) trait Watcher {
    /// Watches `pages`, in address order, from now on; calls `cannot` with the index of each that
    /// cannot be.
    fn watch(&mut self, pages: &[PageNumber], cannot: impl FnMut(usize));

    /// Calls `unused` with the index of each of `pages`, in address order, that nobody has touched
    /// since it was watched.
    fn each_unused(&mut self, pages: &[PageNumber], unused: impl FnMut(usize));
}

/// The order in which resident pages are evicted. Every resident page has an entry, but for those
/// the evictor has in its hands.
pub struct VictimQueues {
    /// Oldest first.
    small: EvictionQueue,
    /// The same, of those that have shown that they are used.
    main: EvictionQueue,
    /// Chooses between them.
    policy: Box<dyn Policy>,
}

impl VictimQueues {
    /// Room for `entries` in each queue, stale ones included.
    pub(crate) fn new(entries: u64) -> Result<VictimQueues, Errno> {
        Ok(VictimQueues {
            small: EvictionQueue::new(entries)?,
            main: EvictionQueue::new(entries)?,
            policy: Kind::default().make(),
        })
    }

    /// Another policy; before any page is in.
    pub(crate) fn set_policy(&mut self, kind: Kind) {
        self.policy = kind.make();
    }

    /// Entries, stale ones included.
    pub(crate) fn len(&self) -> u64 {
        self.small.len() + self.main.len()
    }

    /// Puts `page` in a queue unless it is in one.
    pub(crate) fn enqueue(&self, table: &PageTable, page: PageNumber) {
        let (history, queue) = self.policy.admit(table.load(page));
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

    /// Whether pages are watched for use.
    pub(crate) fn are_watched(&self) -> bool {
        self.policy.watched().is_some()
    }

    fn queue(&self, queue: Queue) -> &EvictionQueue {
        match queue {
            Queue::Small => &self.small,
            Queue::Main => &self.main,
        }
    }

    fn put(&self, table: &PageTable, page: PageNumber, history: Word, queue: Queue) {
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
        for _ in 0..LAPS * self.len() {
            if victims.len() >= count {
                break;
            }
            let queue = self.policy.next(self.small.len(), self.main.len(), budget);
            match self.queue(queue).take() {
                Some(page) => victims.extend(self.judge(table, budget, page, queue)),
                None => break,
            }
        }
    }

    /// What a page taken from a queue is: a victim, or nothing (any more, while it is pinned, or
    /// for now).
    fn judge(
        &self,
        table: &PageTable,
        budget: u64,
        page: PageNumber,
        queue: Queue,
    ) -> Option<PageNumber> {
        let was = self.candidate(table, page, queue)?;
        let kept = self.decide(table, budget, page, was, queue);
        kept.is_none().then_some(page)
    }

    /// The word of a page taken from a queue, if it may be a victim. The mark goes first: whoever
    /// makes the page resident after that sees that it is not queued.
    fn candidate(&self, table: &PageTable, page: PageNumber, queue: Queue) -> Option<Word> {
        let was = table.update(page, Word::unqueued);
        if !matches!(was.state(), State::Resident | State::Clean) {
            return None;
        }
        if was.pins() > 0 {
            self.put(table, page, was, queue);
            return None;
        }
        Some(was)
    }

    /// What the policy says of such a page: the queue it has gone to, or none for a victim.
    fn decide(
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

    /// [`VictimQueues::take`] where pages are watched: `watcher` tells those that were used since.
    /// When all were, the next ones go all the same.
    pub(crate) fn take_unused(
        &self,
        table: &PageTable,
        budget: u64,
        watcher: &mut impl Watcher,
        victims: &mut Vec<PageNumber>,
        count: usize,
    ) {
        victims.clear();
        // What was used when it was looked at is watched anew, and looked at again after a lap.
        for (rest, used_ones_go) in [(LAPS * self.len(), false), (self.len(), true)] {
            let mut rest = rest;
            while rest > 0 && victims.len() < count {
                let looked = self.take_some(table, budget, watcher, victims, count, used_ones_go);
                if looked == 0 {
                    break;
                }
                rest = rest.saturating_sub(looked);
            }
            if !victims.is_empty() {
                break;
            }
        }
    }

    /// Takes as many pages from the queue that is named as are looked at together; how many it was.
    fn take_some(
        &self,
        table: &PageTable,
        budget: u64,
        watcher: &mut impl Watcher,
        victims: &mut Vec<PageNumber>,
        count: usize,
        used_ones_go: bool,
    ) -> u64 {
        let queue = self.policy.next(self.small.len(), self.main.len(), budget);
        let mut pages = [PageNumber(0); LOOK];
        let (mut looked, mut found) = (0, 0);
        while found < LOOK.min(count - victims.len()) {
            let Some(page) = self.queue(queue).take() else {
                break;
            };
            looked += 1;
            pages[found] = page;
            found += usize::from(self.candidate(table, page, queue).is_some());
        }
        let pages = &mut pages[..found];
        pages.sort_unstable();
        let watched = self.policy.watched();
        let mut used = [watched == Some(queue) && !used_ones_go; LOOK];
        if used[0] {
            watcher.each_unused(pages, |index| used[index] = false);
            // Watched anew. Of what cannot be watched nothing is known, so it has its turn.
            let mut of = [0; LOOK];
            let mut again = [PageNumber(0); LOOK];
            let mut count = 0;
            for index in (0..pages.len()).filter(|index| used[*index]) {
                (of[count], again[count]) = (index, pages[index]);
                count += 1;
            }
            watcher.watch(&again[..count], |index| used[of[index]] = false);
        }
        let mut to_watch = [PageNumber(0); LOOK];
        let mut watching = 0;
        for (page, used) in pages.iter().zip(used) {
            let word = table.load(*page);
            if used {
                self.put(table, *page, word, queue);
                continue;
            }
            match self.decide(table, budget, *page, word, queue) {
                None => victims.push(*page),
                Some(to) if watched == Some(to) => {
                    to_watch[watching] = *page;
                    watching += 1;
                }
                Some(_) => {}
            }
        }
        watcher.watch(&to_watch[..watching], |_| {});
        looked
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pagetide_kernel::PageRange;

    use super::*;

    const PAGES: u64 = 200;
    const FIRST: PageNumber = PageNumber(5000);

    /// A program that uses some pages all the time.
    #[derive(Default)]
    struct Program {
        used: BTreeSet<PageNumber>,
        watched: BTreeSet<PageNumber>,
        cannot_be_watched: bool,
    }

    impl Watcher for Program {
        fn watch(&mut self, pages: &[PageNumber], cannot: impl FnMut(usize)) {
            assert!(pages.is_sorted());
            match self.cannot_be_watched {
                true => (0..pages.len()).for_each(cannot),
                false => self.watched.extend(pages),
            }
        }

        fn each_unused(&mut self, pages: &[PageNumber], mut unused: impl FnMut(usize)) {
            assert!(pages.is_sorted());
            for (index, page) in pages.iter().enumerate() {
                if self.watched.contains(page) && !self.used.contains(page) {
                    unused(index);
                }
            }
        }
    }

    /// All pages resident, in the order of their addresses.
    fn resident() -> (PageTable, VictimQueues) {
        let table = PageTable::new().unwrap();
        let end = FIRST.add(PAGES);
        table.ensure(PageRange { start: FIRST, end }).unwrap();
        let mut queues = VictimQueues::new(4096).unwrap();
        queues.set_policy(Kind::Accessed);
        for page in (0..PAGES).map(|index| FIRST.add(index)) {
            table.store(page, Word::default().with_state(State::Resident));
            queues.enqueue(&table, page);
        }
        (table, queues)
    }

    #[test]
    fn pages_in_use_stay_and_the_others_go_in_their_order() {
        let ((table, queues), mut program) = (resident(), Program::default());
        let is_used = |page: &PageNumber| page.0.is_multiple_of(3);
        program.used = (0..PAGES)
            .map(|index| FIRST.add(index))
            .filter(is_used)
            .collect();
        let (mut victims, mut gone) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            queues.take_unused(&table, PAGES, &mut program, &mut victims, 10);
            assert_eq!(victims.len(), 10);
            gone.append(&mut victims);
        }
        assert!(gone.is_sorted() && !gone.iter().any(is_used), "{gone:?}");
        // None is lost: those that stayed are in a queue.
        assert_eq!(queues.len() + gone.len() as u64, PAGES);
    }

    #[test]
    fn what_cannot_be_watched_goes_in_its_order() {
        let ((table, queues), mut program) = (resident(), Program::default());
        program.cannot_be_watched = true;
        let mut victims = Vec::new();
        queues.take_unused(&table, PAGES, &mut program, &mut victims, 10);
        let first: Vec<PageNumber> = (0..10).map(|index| FIRST.add(index)).collect();
        assert_eq!(victims, first);
    }

    #[test]
    fn where_all_are_in_use_the_next_ones_go_all_the_same() {
        let ((table, queues), mut program) = (resident(), Program::default());
        program.used = (0..PAGES).map(|index| FIRST.add(index)).collect();
        let mut victims = Vec::new();
        queues.take_unused(&table, PAGES, &mut program, &mut victims, 10);
        assert_eq!(victims.len(), 10);
        assert_eq!(queues.len(), PAGES - 10);
    }
}
