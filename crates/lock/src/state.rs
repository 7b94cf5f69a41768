//! The one registry of the process, and the lock about it and the system calls, so that both always
//! agree.
// The lock must be held across a fork and let go on either side, which `std::sync::Mutex` cannot
// do.
#![allow(unsafe_code)]
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use pagetide_kernel::smaps::{self, Area};
use pagetide_kernel::sync::{Lock, LockGuard};
use pagetide_kernel::{PageNumber, PageRange, each_gap};
use rustix::io::Errno;

use super::flags::{ForkPolicy, Mode};
use super::journal::Journal;

/// What is known of this process's locks.
#[derive(Debug)]
pub(super) struct State {
    pub registry: Journal,
    /// What is mapped later is locked by the kernel, in this mode.
    pub future: Option<Mode>,
    /// Future locking has been on at some time: locked memory that the registry does not know may
    /// be the process's.
    pub future_ever: bool,
    /// What other code had locked when future locking was first turned on: not the process's, as
    /// long as it stays locked.
    pub foreign_before: Vec<PageRange>,
    pub policy: ForkPolicy,
    pub fork_error: Option<Errno>,
    /// What the registry lost in a fork: the generation of the child, and the pages. Owners from
    /// before have nothing there any more.
    pub lost: Vec<(u64, PageRange)>,
}

struct Shared {
    lock: Lock,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is reached through `Guard` only, which holds `lock`.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: Lock::new(),
    state: UnsafeCell::new(State::new()),
};

/// In a forked child whose fork nobody has seen to: forgets everything, whoever was about to change
/// it.
///
/// # Safety
/// Nobody in this process uses the state.
pub(super) unsafe fn begin_anew(generation: u64) {
    let mut anew = State::new();
    anew.lost = vec![(generation, everything())];
    // SAFETY: by the caller's word. What was there is not dropped: it may be half changed.
    unsafe { SHARED.state.get().write(anew) };
    SHARED.lock.reset();
}

/// Exclusive use of the state.
pub(super) struct Guard {
    _held: LockGuard<'static>,
}

impl Guard {
    /// Takes the state of a process that has been seen to: see [`state`](super::fork::state).
    pub fn take() -> Guard {
        Guard {
            _held: SHARED.lock.lock(),
        }
    }
}

impl Deref for Guard {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: a `Guard` holds the lock, and there is one at a time.
        unsafe { &*SHARED.state.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { &mut *SHARED.state.get() }
    }
}

impl State {
    const fn new() -> State {
        State {
            registry: Journal::new(),
            future: None,
            future_ever: false,
            foreign_before: Vec::new(),
            policy: ForkPolicy::Relock,
            fork_error: None,
            lost: Vec::new(),
        }
    }

    /// What was at `range` is unmapped: nobody's lock is left of it.
    pub fn forget(&mut self, range: PageRange) {
        self.registry.forget(range);
        self.take_foreign(range);
    }

    /// What was at `from` is at `to` now, locks and all.
    pub fn relocate(&mut self, from: PageRange, to: PageRange) {
        self.registry.now().relocate(from, to);
        let moved = self.take_foreign(from);
        self.take_foreign(to);
        for part in moved {
            let place = |page: PageNumber| to.start.add(page.0 - from.start.0);
            let part = PageRange {
                start: place(part.start),
                end: place(part.end),
            };
            self.foreign_before.push(part.intersection(to));
        }
        self.foreign_before.retain(|part| !part.is_empty());
        self.foreign_before.sort_unstable_by_key(|part| part.start);
    }

    /// Takes `range` out of what other code had locked before, and returns what of it was.
    fn take_foreign(&mut self, range: PageRange) -> Vec<PageRange> {
        let mut taken = Vec::new();
        for part in std::mem::take(&mut self.foreign_before) {
            let common = part.intersection(range);
            self.foreign_before.extend(gaps(part, [common]));
            taken.extend(Some(common).filter(|common| !common.is_empty()));
        }
        taken
    }

    /// The parts of `range` in which an owner of `generation` still has what it took.
    pub fn kept(&self, range: PageRange, generation: u64) -> Vec<PageRange> {
        let mut kept = vec![range];
        for (_, lost) in self.lost.iter().filter(|(lost, _)| *lost > generation) {
            kept = kept
                .into_iter()
                .flat_map(|part| gaps(part, [*lost]))
                .collect();
        }
        kept
    }

    /// Takes `part` out of what was lost in the fork to `generation`.
    pub fn found_again(&mut self, generation: u64, part: PageRange) {
        let before = std::mem::take(&mut self.lost);
        for (of, range) in before {
            let found = if of == generation {
                part
            } else {
                PageRange::EMPTY
            };
            let still = gaps(range, [found]).into_iter();
            self.lost.extend(still.map(|gap| (of, gap)));
        }
    }

    /// Compares the registry with the kernel's list. What the kernel does not have locked any more
    /// is forgotten (unmapped, or replaced by a new mapping); once future locking has been used,
    /// what the registry does not know is taken for the process's. Returns the locked mappings.
    pub fn reconcile(&mut self) -> Result<Vec<Area>, Errno> {
        let areas = smaps::locked(None).map_err(errno_of)?;
        let tells = smaps::tells_mode();
        let known = self.registry.now().within(everything());
        let stale = known.flat_map(|segment| gaps(segment.range, areas.iter().map(Area::range)));
        for gap in stale.collect::<Vec<_>>() {
            // Owners unmap what they hold themselves; where one's memory is not locked, the kernel
            // never locks it (hugetlb, say).
            self.registry
                .now()
                .update(gap, |holders| holders.with_process(None));
        }
        let before = std::mem::take(&mut self.foreign_before);
        for area in &areas {
            let still = before.iter().map(|range| range.intersection(area.range()));
            self.foreign_before
                .extend(still.filter(|range| !range.is_empty()));
        }
        for area in &areas {
            // A mapping in the other mode than the registry's is not the one that was locked. Full
            // over on-fault is what two owners make.
            let actual = mode_of(area, tells);
            let adopted = actual.or(self.future).unwrap_or(Mode::OnFault);
            let ever = self.future_ever;
            let registry = self.registry.now();
            registry.update(area.range(), |holders| match (holders.process, actual) {
                (Some(known), Some(actual)) if !holders.owned() && known != actual => {
                    holders.with_process(if ever { Some(actual) } else { None })
                }
                _ => holders,
            });
            if ever {
                for part in gaps(area.range(), self.foreign_before.iter().copied()) {
                    registry.update(part, |holders| match holders.process {
                        None if !holders.owned() => holders.with_process(Some(adopted)),
                        _ => holders,
                    });
                }
            }
        }
        Ok(areas)
    }
}

/// The mode in which the kernel has `area` locked, if its list `tells`.
pub(super) fn mode_of(area: &Area, tells: bool) -> Option<Mode> {
    tells.then_some(match area.on_fault {
        true => Mode::OnFault,
        false => Mode::Full,
    })
}

/// The parts of `range` that are in none of `parts`, which are in order.
pub(super) fn gaps(range: PageRange, parts: impl IntoIterator<Item = PageRange>) -> Vec<PageRange> {
    let mut gaps = Vec::new();
    each_gap(range, parts.into_iter(), |gap| gaps.push(gap));
    gaps
}

/// The number of an error of the file system.
pub(super) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Every page there is.
pub(super) fn everything() -> PageRange {
    PageRange {
        start: PageNumber(0),
        end: PageNumber(1 << 52),
    }
}

/// The pages the kernel's calls act on for `address` and `len`: rounded out; an error where it
/// wraps around.
pub(super) fn pages(address: usize, len: usize) -> Result<PageRange, Errno> {
    const BELOW: usize = pagetide_kernel::PAGE_SIZE - 1;
    let start = address & !BELOW;
    // The kernel's own arithmetic, its wrapping included.
    let len = len.wrapping_add(address & BELOW).wrapping_add(BELOW) & !BELOW;
    let end = start.wrapping_add(len);
    if end < start {
        return Err(Errno::INVAL);
    }
    Ok(PageRange::covering(start, end - start))
}
