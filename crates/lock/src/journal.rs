//! The registry, and the changes that are still to be made in it.
//!
//! A system call leaves little of the registry in the processor's caches. Going down its tree after
//! each one costs about a microsecond with 20 000 ranges, most of it waiting for memory. So the
//! changes that need no answer are noted, one behind the other, and made a batch at a time or when
//! somebody asks: then only the first of them finds the tree cold.
use pagetide_kernel::{PageNumber, PageRange};

use super::flags::Mode;
use super::registry::Registry;

/// Changes noted before they are made. More would gain little, and make the call that makes them
/// wait longer.
const NOTES_MAX: usize = 32;

/// The process's lock on a range set to a mode.
#[derive(Debug, Clone, Copy)]
struct Note {
    range: PageRange,
    mode: Option<Mode>,
}

/// The registry with its changes.
#[derive(Debug)]
pub(super) struct Journal {
    registry: Registry,
    /// The first `noted` are to be made, in this order. In place, so that noting never allocates.
    notes: [Note; NOTES_MAX],
    noted: usize,
}

impl Journal {
    /// Of nothing locked.
    pub const fn new() -> Journal {
        const NOTHING: Note = Note {
            range: PageRange {
                start: PageNumber(0),
                end: PageNumber(0),
            },
            mode: None,
        };
        Journal {
            registry: Registry::new(),
            notes: [NOTHING; NOTES_MAX],
            noted: 0,
        }
    }

    /// Sets the process's lock on `range`; owners stay as they are.
    pub fn set_process(&mut self, range: PageRange, mode: Option<Mode>) {
        if self.noted == NOTES_MAX {
            self.make();
        }
        self.notes[self.noted] = Note { range, mode };
        self.noted += 1;
    }

    /// Forgets who held `range`, owners too.
    pub fn forget(&mut self, range: PageRange) {
        if self.has_owners() {
            self.now().forget(range);
        } else {
            self.set_process(range, None);
        }
    }

    /// Whether any owner holds anything. The notes are of the process and change nothing about
    /// that.
    pub fn has_owners(&self) -> bool {
        self.registry.has_owners()
    }

    /// The registry as it is now: every change made.
    pub fn now(&mut self) -> &mut Registry {
        self.make();
        &mut self.registry
    }

    fn make(&mut self) {
        for Note { range, mode } in &self.notes[..self.noted] {
            self.registry
                .update(*range, |holders| holders.with_process(*mode));
        }
        self.noted = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = PageRange> {
        (0..64u64, 0..12u64).prop_map(|(start, pages)| PageRange {
            start: PageNumber(start),
            end: PageNumber(start + pages),
        })
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Set(PageRange, Option<Mode>),
        Forget(PageRange),
        Hold(PageRange),
        Release(PageRange),
        Ask,
    }

    fn step() -> impl Strategy<Value = Step> {
        let mode = prop_oneof![
            Just(None),
            Just(Some(Mode::Full)),
            Just(Some(Mode::OnFault))
        ];
        prop_oneof![
            20 => (range(), mode).prop_map(|(range, mode)| Step::Set(range, mode)),
            4 => range().prop_map(Step::Forget),
            1 => range().prop_map(Step::Hold),
            1 => range().prop_map(Step::Release),
            1 => Just(Step::Ask),
        ]
    }

    proptest! {
        #[test]
        fn noting_is_the_same_as_doing(steps in prop::collection::vec(step(), 1..200)) {
            let (mut journal, mut plain) = (Journal::new(), Registry::new());
            for step in steps {
                match step {
                    Step::Set(range, mode) => {
                        journal.set_process(range, mode);
                        plain.update(range, |holders| holders.with_process(mode));
                    }
                    Step::Forget(range) => {
                        journal.forget(range);
                        plain.forget(range);
                    }
                    Step::Hold(range) => {
                        journal.now().update(range, |holders| holders.held(Mode::Full));
                        plain.update(range, |holders| holders.held(Mode::Full));
                    }
                    Step::Release(range) => {
                        journal.now().update(range, |holders| holders.released(Mode::Full));
                        plain.update(range, |holders| holders.released(Mode::Full));
                    }
                    Step::Ask => prop_assert!(journal.now().iter().eq(plain.iter())),
                }
                prop_assert_eq!(journal.has_owners(), plain.has_owners());
            }
            prop_assert!(journal.now().iter().eq(plain.iter()));
        }
    }
}
