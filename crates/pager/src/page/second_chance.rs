//! Victims where it is known which pages were used: a second chance for those that were.
use pagetide_kernel::PageNumber;

use crate::page::policy::Queue;
use crate::page::table::PageTable;
use crate::page::victims::{LAPS, Pinned, VictimQueues};

/// Pages that are looked at together for whether they were used.
const LOOK: usize = 64;
/// So many are looked at for each page that is wanted; were nearly all used, the next ones go.
const EFFORT: u64 = 16;

/// Tells which pages were used.
pub(crate) trait Watcher {
    /// Watches `pages`, in address order, from now on; calls `cannot` with the index of each that
    /// cannot be.
    fn watch(&mut self, pages: &[PageNumber], cannot: impl FnMut(usize));

    /// Calls `unused` with the index of each of `pages`, in address order, that nobody has touched
    /// since it was watched.
    fn each_unused(&mut self, pages: &[PageNumber], unused: impl FnMut(usize));
}

/// The queues, and who tells the use of their pages. Only for the evictor.
pub(crate) struct SecondChance<'p, W> {
    pub(crate) queues: &'p VictimQueues,
    pub(crate) table: &'p PageTable,
    pub(crate) budget: u64,
    pub(crate) watcher: W,
}

impl<W: Watcher> SecondChance<'_, W> {
    /// Takes up to `count` evictable pages into `victims` (emptied before): those that were not
    /// used since they were watched. When nearly all were, the next ones go all the same: whoever
    /// waits for room cannot wait for a whole lap.
    pub(crate) fn take(&mut self, victims: &mut Vec<PageNumber>, count: usize) {
        victims.clear();
        let (mut taken, mut looked, mut pinned) = (0, 0, Pinned::default());
        while victims.len() < count && taken < LAPS * self.queues.len() {
            let used_ones_go = looked >= EFFORT * count as u64;
            if used_ones_go && !victims.is_empty() {
                break;
            }
            let Some(queue) = self.queues.next_queue(self.budget, &pinned) else {
                break;
            };
            let most = LOOK.min(count - victims.len());
            let mut pages = [PageNumber(0); LOOK];
            let (some, found) = self.candidates(queue, &mut pages[..most], &mut pinned);
            if some == 0 {
                break;
            }
            taken += some;
            let pages = &mut pages[..found];
            pages.sort_unstable();
            let mut used = [false; LOOK];
            if self.queues.watched() == Some(queue) {
                looked += some;
                if !used_ones_go {
                    used = self.used(pages);
                }
            }
            self.decide(queue, pages, &used, victims);
        }
    }

    /// Takes pages from `queue` until `pages` has so many that may be victims: how many were taken,
    /// and how many may be.
    fn candidates(
        &self,
        queue: Queue,
        pages: &mut [PageNumber],
        pinned: &mut Pinned,
    ) -> (u64, usize) {
        let (queues, mut taken, mut found) = (self.queues, 0, 0);
        while found < pages.len() && queues.left(queue, pinned) > 0 {
            let Some(page) = queues.queue(queue).take() else {
                break;
            };
            taken += 1;
            pages[found] = page;
            let word = queues.candidate(self.table, page, queue, pinned);
            found += usize::from(word.is_some());
        }
        (taken, found)
    }

    /// Which of `pages` were used. They are watched anew; of what cannot be watched nothing is
    /// known, so it has its turn.
    fn used(&mut self, pages: &[PageNumber]) -> [bool; LOOK] {
        let mut used = [true; LOOK];
        self.watcher.each_unused(pages, |index| used[index] = false);
        let (mut again, mut of, mut count) = ([PageNumber(0); LOOK], [0; LOOK], 0);
        for index in (0..pages.len()).filter(|index| used[*index]) {
            (again[count], of[count]) = (pages[index], index);
            count += 1;
        }
        self.watcher
            .watch(&again[..count], |index| used[of[index]] = false);
        used
    }

    /// Puts used pages back; the others are what the policy says.
    fn decide(
        &mut self,
        queue: Queue,
        pages: &[PageNumber],
        used: &[bool; LOOK],
        victims: &mut Vec<PageNumber>,
    ) {
        let (queues, table) = (self.queues, self.table);
        let (mut to_watch, mut count) = ([PageNumber(0); LOOK], 0);
        for (page, used) in pages.iter().zip(used) {
            let word = table.load(*page);
            if *used {
                queues.put(table, *page, word, queue);
                continue;
            }
            match queues.decide(table, self.budget, *page, word, queue) {
                None => victims.push(*page),
                Some(to) if queues.watched() == Some(to) => {
                    to_watch[count] = *page;
                    count += 1;
                }
                Some(_) => {}
            }
        }
        self.watcher.watch(&to_watch[..count], |_| {});
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pagetide_kernel::PageRange;

    use super::*;
    use crate::page::policy::Kind;
    use crate::page::word::{State, Word};

    const PAGES: u64 = 200;
    const FIRST: PageNumber = PageNumber(5000);

    /// A program that uses some pages all the time.
    #[derive(Default)]
    struct Program {
        used: BTreeSet<PageNumber>,
        watched: BTreeSet<PageNumber>,
        cannot_be_watched: bool,
    }

    impl Watcher for &mut Program {
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

    fn take(
        table: &PageTable,
        queues: &VictimQueues,
        watcher: &mut Program,
        victims: &mut Vec<PageNumber>,
    ) {
        let mut chance = SecondChance {
            queues,
            table,
            budget: PAGES,
            watcher,
        };
        chance.take(victims, 10);
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
            take(&table, &queues, &mut program, &mut victims);
            assert_eq!(victims.len(), 10);
            gone.append(&mut victims);
        }
        assert!(gone.is_sorted() && !gone.iter().any(is_used), "{gone:?}");
        // None is lost: those that stayed are in a queue.
        assert_eq!(queues.len() + gone.len() as u64, PAGES);
    }

    #[test]
    fn pages_that_are_pinned_keep_nobody_from_its_turn() {
        let ((table, queues), mut program) = (resident(), Program::default());
        let mut victims = Vec::new();
        for page in (0..PAGES - 15).map(|index| FIRST.add(index)) {
            table.update(page, |word| word.pinned().unwrap());
        }
        for wanted in [10, 5, 0] {
            take(&table, &queues, &mut program, &mut victims);
            assert_eq!(victims.len(), wanted);
            assert!(victims.iter().all(|page| page.0 >= FIRST.0 + PAGES - 15));
        }
        assert_eq!(queues.len(), PAGES - 15);
    }

    #[test]
    fn what_cannot_be_watched_goes_in_its_order() {
        let ((table, queues), mut program) = (resident(), Program::default());
        program.cannot_be_watched = true;
        let mut victims = Vec::new();
        take(&table, &queues, &mut program, &mut victims);
        let first: Vec<PageNumber> = (0..10).map(|index| FIRST.add(index)).collect();
        assert_eq!(victims, first);
    }

    #[test]
    fn where_all_are_in_use_the_next_ones_go_all_the_same() {
        let ((table, queues), mut program) = (resident(), Program::default());
        program.used = (0..PAGES).map(|index| FIRST.add(index)).collect();
        let mut victims = Vec::new();
        take(&table, &queues, &mut program, &mut victims);
        assert_eq!(victims.len(), 10);
        assert_eq!(queues.len(), PAGES - 10);
    }
}
