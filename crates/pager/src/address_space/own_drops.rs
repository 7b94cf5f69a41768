//! Which remove events stem from the evictor, and which from the program.
//!
//! Emptying pages in place raises the event that the program's own `madvise` raises. Each page is
//! accounted for by itself: of two events of a page that the evictor empties, one is its own,
//! whichever is read first, and it is not done with the page before both were read.
//!
//! Where the mapping is divided while the kernel waits for the event to be read, it tells again of
//! what lies beyond the division, in the same call. The program's own calls are held off then
//! ([`super::mapping_lock`]): of a page that was told of, in a call that empties several, a second
//! telling is the same call's. (A bare system call of the program's that gives up nothing but such
//! pages, at that moment, is taken for it: the pages keep their bytes.)
//!
//! The kernel lets go of the address space while it waits for the event to be read, and empties the
//! address afterwards, whatever is there by then. A thread that unmaps the memory meanwhile waits
//! for its own event to be read, and then may map and write something there. So while a call of the
//! evictor's is under way events are read one by one, and once its own was read none is read before
//! the call has ended: whoever has unmapped the memory still waits then.
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use pagetide_kernel::sync::{Mutex, MutexGuard};
use pagetide_kernel::{PageNumber, PageRange, each_gap};

use crate::evict::staging::BATCH_PAGES;

/// The pages that the evictor is emptying in place.
pub(crate) struct OwnDrops {
    pages: Mutex<Pages>,
    /// Beginnings and ends of calls: odd while one is under way.
    calls: AtomicU32,
}

struct Pages {
    /// Those that no remove event has told of yet.
    untold: Vec<PageRange>,
    /// What the last call empties, or emptied.
    call: PageRange,
}

/// Whose a remove event is that is read while the evictor empties pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The evictor's, of just what it empties.
    Evictors,
    /// The evictor's, told before.
    EvictorsAgain,
    /// The program's, or of both.
    Others,
}

impl Default for OwnDrops {
    fn default() -> OwnDrops {
        OwnDrops::of(Vec::with_capacity(BATCH_PAGES))
    }
}

impl OwnDrops {
    fn of(untold: Vec<PageRange>) -> OwnDrops {
        OwnDrops {
            pages: Mutex::new(Pages {
                untold,
                call: PageRange::of(PageNumber(0), 0),
            }),
            calls: AtomicU32::new(0),
        }
    }

    pub(crate) fn lock(&self) -> Held<'_> {
        Held(self.pages.lock())
    }

    /// The evictor is about to empty `range`. The gate is held, so that no event is being read.
    pub(crate) fn begin_call(&self, range: PageRange) {
        self.lock().begin(range);
        self.calls.fetch_add(1, SeqCst);
    }

    /// Its call has ended. Takes no lock, so that nothing comes between the two.
    pub(crate) fn end_call(&self) {
        self.calls.fetch_add(1, SeqCst);
    }

    /// The number of the call that is under way, if there is one.
    pub(crate) fn call(&self) -> Option<u32> {
        let call = self.calls.load(SeqCst);
        (call % 2 == 1).then_some(call)
    }

    /// In a forked child: the evictor held still at the fork, and empties nothing.
    pub(crate) fn reset_after_fork(&self) {
        self.calls.store(0, SeqCst);
    }
}

/// [`OwnDrops`], with nobody else changing them.
pub(crate) struct Held<'a>(MutexGuard<'a, Pages>);

impl Held<'_> {
    /// Whose a remove event over `range` is, while a call of the evictor's is under way.
    pub(crate) fn whose(&self, range: PageRange) -> Whose {
        let Pages { untold, call } = &*self.0;
        if untold.contains(&range) {
            return Whose::Evictors;
        }
        let is_untold = untold
            .iter()
            .any(|part| !part.intersection(range).is_empty());
        match call.pages() > 1 && call.intersection(range) == range && !is_untold {
            true => Whose::EvictorsAgain,
            false => Whose::Others,
        }
    }

    /// The evictor is about to empty `range`.
    fn begin(&mut self, range: PageRange) {
        self.0.untold.push(range);
        self.0.call = range;
    }

    /// Of what a remove event tells of, the parts that the program emptied. The others are told of
    /// now.
    pub(crate) fn others(&mut self, event: PageRange) -> Vec<PageRange> {
        let mut others = vec![event];
        for drop in std::mem::take(&mut self.0.untold) {
            let mut untold = vec![drop];
            for part in std::mem::take(&mut others) {
                let common = part.intersection(drop);
                each_gap(part, std::iter::once(common), |piece| others.push(piece));
                for piece in std::mem::take(&mut untold) {
                    let common = piece.intersection(common);
                    each_gap(piece, std::iter::once(common), |rest| untold.push(rest));
                }
            }
            self.0.untold.append(&mut untold);
        }
        others
    }

    /// Emptying `range` has failed: what of it no event has told of is still there, and no event
    /// will come.
    pub(crate) fn withdraw(&mut self, range: PageRange) -> Vec<PageRange> {
        let mut withdrawn = Vec::new();
        for drop in std::mem::take(&mut self.0.untold) {
            let common = drop.intersection(range);
            each_gap(drop, std::iter::once(common), |rest| {
                self.0.untold.push(rest)
            });
            if !common.is_empty() {
                withdrawn.push(common);
            }
        }
        withdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange {
            start: PageNumber(start),
            end: PageNumber(end),
        }
    }

    fn dropping(ranges: &[PageRange]) -> OwnDrops {
        OwnDrops::of(ranges.to_vec())
    }

    #[test]
    fn a_page_that_is_emptied_by_both_counts_once_as_own_in_either_order() {
        for program_first in [false, true] {
            let drops = dropping(&[pages(10, 20), pages(30, 31)]);
            let mut own = drops.lock();
            let mut events = [pages(12, 13), pages(10, 20)];
            if !program_first {
                events.reverse();
            }
            let others: Vec<_> = events.map(|event| own.others(event)).concat();
            assert_eq!(others, [pages(12, 13)], "{program_first}");
            assert_eq!(own.0.untold, [pages(30, 31)]);
        }
    }

    #[test]
    fn an_event_over_more_than_is_emptied_leaves_the_rest() {
        let drops = dropping(&[pages(10, 20), pages(30, 40)]);
        let mut own = drops.lock();
        let mut others = own.others(pages(15, 35));
        others.sort_by_key(|part| part.start.0);
        assert_eq!(others, [pages(20, 30)]);
        assert_eq!(own.0.untold, [pages(10, 15), pages(35, 40)]);
        assert_eq!(own.others(pages(50, 60)), [pages(50, 60)]);
        assert_eq!(own.withdraw(pages(10, 20)), [pages(10, 15)]);
        assert_eq!(own.0.untold, [pages(35, 40)]);
    }

    #[test]
    fn a_page_emptied_twice_is_told_of_twice() {
        let drops = dropping(&[pages(1, 2), pages(1, 2)]);
        let mut own = drops.lock();
        assert_eq!(own.others(pages(1, 2)), []);
        assert_eq!(own.others(pages(1, 2)), []);
        assert_eq!(own.others(pages(1, 2)), [pages(1, 2)]);
    }

    #[test]
    fn a_call_is_under_way_from_its_beginning_to_its_end() {
        let drops = OwnDrops::default();
        assert_eq!(drops.call(), None);
        drops.begin_call(pages(1, 2));
        let call = drops.call().expect("a call is under way");
        let whose = |range| drops.lock().whose(range);
        assert_eq!(whose(pages(1, 2)), Whose::Evictors);
        assert_eq!(whose(pages(1, 3)), Whose::Others);
        drops.end_call();
        assert_eq!(drops.call(), None);
        drops.begin_call(pages(1, 2));
        assert_ne!(drops.call(), Some(call), "another call");
    }

    #[test]
    fn what_a_divided_mapping_is_told_of_again_is_the_same_calls() {
        let drops = OwnDrops::default();
        drops.begin_call(pages(10, 20));
        let told = |range| {
            let mut own = drops.lock();
            (own.whose(range), own.others(range))
        };
        // Divided before the first event, and then within it.
        assert_eq!(told(pages(10, 15)), (Whose::Others, vec![]));
        assert_eq!(drops.lock().whose(pages(12, 15)), Whose::EvictorsAgain);
        assert_eq!(drops.lock().whose(pages(14, 16)), Whose::Others);
        assert_eq!(told(pages(15, 20)), (Whose::Evictors, vec![]));
        assert_eq!(drops.lock().whose(pages(14, 16)), Whose::EvictorsAgain);
        assert_eq!(drops.lock().whose(pages(14, 21)), Whose::Others);
        drops.end_call();
        // A page cannot be divided.
        drops.begin_call(pages(30, 31));
        assert_eq!(told(pages(30, 31)), (Whose::Evictors, vec![]));
        assert_eq!(told(pages(30, 31)), (Whose::Others, vec![pages(30, 31)]));
    }
}
