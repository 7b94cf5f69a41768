//! Locks with an owner: counted, so that a page stays locked until the last owner lets go.
use std::marker::PhantomData;

use pagetide_kernel::{PageRange, mlock as kernel, smaps};
use rustix::io::Errno;

use super::calls::uncharged;
use super::error::LockError;
use super::flags::Mode;
use super::fork;
use super::state::{State, each_gap, errno_of, pages, state};

/// A slice's pages, locked until this is dropped.
#[derive(Debug)]
#[must_use = "the lock ends when this is dropped"]
pub struct Held<'a> {
    hold: Hold,
    _bytes: PhantomData<&'a [u8]>,
}

/// Locks the pages of `bytes` on behalf of the owner of what is returned. Other owners may hold the
/// same pages, in the same or the other mode.
///
/// # Errors
/// As [`mlock2`](super::mlock2), and what reading `/proc/self/smaps` says where other code may have
/// locked some of it; nothing is locked then that was not before.
pub fn hold(bytes: &[u8], mode: Mode) -> Result<Held<'_>, LockError> {
    if bytes.is_empty() {
        // It has an address all the same, of which nothing is known.
        let hold = Hold::new(PageRange::EMPTY, mode)?;
        return Ok(Held {
            hold,
            _bytes: PhantomData,
        });
    }
    let range = pages(bytes.as_ptr() as usize, bytes.len())
        .map_err(|errno| LockError::plain("hold", errno))?;
    Ok(Held {
        hold: Hold::new(range, mode)?,
        _bytes: PhantomData,
    })
}

impl Held<'_> {
    /// Its mode.
    pub fn mode(&self) -> Mode {
        self.hold.mode
    }

    /// Bytes locked: whole pages.
    pub fn len(&self) -> usize {
        self.hold.range.bytes()
    }

    /// Whether the slice was empty.
    pub fn is_empty(&self) -> bool {
        self.hold.range.is_empty()
    }
}

/// The same without a lifetime, for owners that own their mapping. It must be dropped before the
/// memory is unmapped, or with it.
#[derive(Debug)]
pub(super) struct Hold {
    range: PageRange,
    mode: Mode,
    /// The process it was made in, as forks go.
    generation: u64,
}

impl Hold {
    pub fn new(range: PageRange, mode: Mode) -> Result<Hold, LockError> {
        let generation = fork::generation();
        let mut state = state();
        let foreign = foreign_locks(&mut state, range)?;
        let mut locked: Vec<(PageRange, Mode)> = foreign.clone();
        state.registry.now().for_each_in(range, |segment| {
            locked.extend(segment.holders.mode().map(|mode| (segment.range, mode)));
        });
        locked.sort_unstable_by_key(|(range, _)| range.start);
        let mut parts = Vec::new();
        let known = locked.iter().map(|(range, _)| *range);
        each_gap(range, known, |gap| parts.push((gap, None)));
        parts.extend(locked.into_iter().map(|(range, mode)| (range, Some(mode))));
        let mut done = Vec::new();
        for (part, before) in parts {
            if let Err(errno) = take(part, before, mode) {
                let error = LockError::of_limit("mlock2", errno, uncharged(&mut state, part));
                done.push((part, before));
                done.into_iter().for_each(undo);
                return Err(error);
            }
            done.push((part, before));
        }
        let registry = state.registry.now();
        for (part, mode) in foreign {
            registry.update(part, |holders| holders.with_foreign(mode));
        }
        registry.update(range, |holders| holders.held(mode));
        Ok(Hold {
            range,
            mode,
            generation,
        })
    }

    /// Whether nothing of it was lost in a fork.
    pub fn is_whole(&self) -> bool {
        state().kept(self.range, self.generation) == [self.range]
    }

    /// The memory is not here any more (a forked child that did not inherit it), and something else
    /// may be: nothing is to be undone.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Ends it together with the memory, which `unmap` unmaps: nobody's lock outlives that.
    pub fn unmap(self, unmap: impl FnOnce()) {
        let mut state = state();
        unmap();
        state.forget(self.range);
        std::mem::forget(self);
    }
}

/// Locks `part`, which was locked as `before` says, for an owner that wants `mode`: never weaker
/// than before.
fn take(part: PageRange, before: Option<Mode>, mode: Mode) -> Result<(), Errno> {
    let lock = |mode: Mode| kernel::mlock2(part.address(), part.bytes(), mode.kernel());
    if before != Some(Mode::Full) {
        return lock(mode);
    }
    // What cannot be faulted in (no access) was locked all the same, and is again.
    lock(Mode::OnFault)?;
    let _ = lock(Mode::Full);
    Ok(())
}

/// What in `range` is locked and nobody knows of: other code's locks, to be left as they are when
/// the owner lets go.
fn foreign_locks(state: &mut State, range: PageRange) -> Result<Vec<(PageRange, Mode)>, LockError> {
    if !unknown(state, range).into_iter().any(kernel::may_be_locked) {
        return Ok(Vec::new());
    }
    // The list of what is locked costs a look at every page table.
    let areas = if state.future_ever {
        // What the kernel locks by itself is the process's.
        state.reconcile()
    } else {
        smaps::locked(None).map_err(errno_of)
    };
    let areas = areas.map_err(|errno| LockError::plain("hold: /proc/self/smaps", errno))?;
    let tells = smaps::tells_mode();
    let mut foreign = Vec::new();
    for gap in unknown(state, range) {
        for area in &areas {
            let part = area.range().intersection(gap);
            if !part.is_empty() {
                let mode = if area.on_fault || !tells {
                    Mode::OnFault
                } else {
                    Mode::Full
                };
                foreign.push((part, mode));
            }
        }
    }
    Ok(foreign)
}

/// The parts of `range` that nobody is known to hold.
fn unknown(state: &mut State, range: PageRange) -> Vec<PageRange> {
    let (mut known, mut gaps) = (Vec::new(), Vec::new());
    let registry = state.registry.now();
    registry.for_each_in(range, |segment| known.push(segment.range));
    each_gap(range, known.into_iter(), |gap| gaps.push(gap));
    gaps
}

fn undo((part, before): (PageRange, Option<Mode>)) {
    let _ = match before {
        None => kernel::munlock(part.address(), part.bytes()),
        Some(mode) => kernel::mlock2(part.address(), part.bytes(), mode.kernel()),
    };
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = state();
        for kept in state.kept(self.range, self.generation) {
            release(&mut state, kept, self.mode);
        }
    }
}

/// An owner that wanted `range` in `mode` lets go.
fn release(state: &mut State, range: PageRange, mode: Mode) {
    let (mut after, mut refused) = (Vec::new(), Vec::new());
    state.registry.now().for_each_in(range, |segment| {
        let before = segment.holders.mode();
        let holders = segment.holders.released(mode);
        let left = holders.mode();
        // When the last one goes, what an earlier one could not weaken is weakened, or noted as it
        // is.
        let last = !holders.owned() && left == Some(Mode::OnFault);
        if before != left || last {
            after.push((segment.range, left));
        }
    });
    for (part, left) in after {
        match left {
            None => {
                if kernel::munlock(part.address(), part.bytes()) == Err(Errno::NOMEM) {
                    state.registry.forget(part);
                }
            }
            Some(mode) => {
                if kernel::mlock2(part.address(), part.bytes(), mode.kernel()).is_err() {
                    refused.push(part);
                }
            }
        }
    }
    let registry = state.registry.now();
    registry.update(range, |holders| holders.released(mode).settled());
    // The limit has been lowered below what is locked. What was full stays so, and is the process's
    // in that mode if it is the process's.
    for part in refused {
        registry.update(part, |holders| match holders.process {
            Some(_) if !holders.owned() => holders.with_process(Some(Mode::Full)),
            _ => holders,
        });
    }
}
