//! Locks with an owner: counted, so that a page stays locked until the last owner lets go.
use std::ops::{Deref, DerefMut};

use pagetide_kernel::{PageRange, mlock as kernel, smaps};
use rustix::io::Errno;

use super::calls::uncharged;
use super::error::LockError;
use super::flags::Mode;
use super::fork::{generation, state};
use super::state::{State, errno_of, gaps, mode_of, pages};

/// Bytes whose pages are locked until this is dropped. It dereferences to them.
///
/// ```
/// use pagetide::lock::{Mode, hold_mut};
///
/// let mut table = vec![0u8; 1 << 16];
/// match hold_mut(&mut table, Mode::OnFault) {
///     Ok(mut held) => {
///         held[4096] = 7; // this page is locked from here on
///         assert_eq!(held.locked_bytes() % 4096, 0);
///     }
///     Err(error) => eprintln!("{error}"), // says which limit to raise, and how
/// }
/// ```
#[derive(Debug)]
#[must_use = "the lock ends when this is dropped"]
pub struct Held<B> {
    hold: Hold,
    bytes: B,
}

/// Locks the pages of `bytes` on behalf of the owner of what is returned. Other owners may hold the
/// same pages, in the same or the other mode.
///
/// # Errors
/// As [`mlock2`](super::mlock2), and what reading `/proc/self/smaps` says where other code may have
/// locked some of it; nothing is locked then that was not before.
///
/// ```
/// use pagetide::lock::{Mode, hold};
///
/// let table = vec![0u8; 1 << 16];
/// if let Ok(held) = hold(&table, Mode::Full) {
///     assert_eq!(held.len(), table.len());
/// }
/// ```
pub fn hold(bytes: &[u8], mode: Mode) -> Result<Held<&[u8]>, LockError> {
    let hold = Hold::of(bytes, mode)?;
    Ok(Held { hold, bytes })
}

/// The same for bytes that are written while they are held.
///
/// # Errors
/// As [`hold`].
pub fn hold_mut(bytes: &mut [u8], mode: Mode) -> Result<Held<&mut [u8]>, LockError> {
    let hold = Hold::of(bytes, mode)?;
    Ok(Held { hold, bytes })
}

impl<B> Held<B> {
    /// The mode it was asked for in.
    pub fn mode(&self) -> Mode {
        self.hold.mode
    }

    /// Bytes locked: whole pages.
    pub fn locked_bytes(&self) -> usize {
        self.hold.range.bytes()
    }
}

impl<B: Deref<Target = [u8]>> Deref for Held<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: DerefMut<Target = [u8]>> DerefMut for Held<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
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
    /// Of the pages of `bytes`.
    fn of(bytes: &[u8], mode: Mode) -> Result<Hold, LockError> {
        if bytes.is_empty() {
            // It has an address all the same, of which nothing is known.
            return Hold::new(PageRange::EMPTY, mode);
        }
        let range = pages(bytes.as_ptr() as usize, bytes.len())
            .map_err(|errno| LockError::plain("hold", errno))?;
        Hold::new(range, mode)
    }

    pub fn new(range: PageRange, mode: Mode) -> Result<Hold, LockError> {
        let generation = generation();
        let mut state = state();
        let foreign = foreign_locks(&mut state, range)?;
        let mut locked: Vec<(PageRange, Mode)> = foreign.clone();
        let known = state.registry.now().within(range);
        locked.extend(known.filter_map(|known| Some((known.range, known.holders.mode()?))));
        locked.sort_unstable_by_key(|(range, _)| range.start);
        let free = gaps(range, locked.iter().map(|(range, _)| *range));
        let free = free.into_iter().map(|gap| (gap, None));
        let locked = locked.into_iter().map(|(range, mode)| (range, Some(mode)));
        let parts: Vec<(PageRange, Option<Mode>)> = free.chain(locked).collect();
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
    match before {
        // What cannot be faulted in (no access) was locked all the same, and is again.
        Some(Mode::Full) => Mode::Full.lock_anyway(part),
        _ => mode.lock(part),
    }
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
                foreign.push((part, mode_of(area, tells).unwrap_or(Mode::OnFault)));
            }
        }
    }
    Ok(foreign)
}

/// The parts of `range` that nobody is known to hold.
fn unknown(state: &mut State, range: PageRange) -> Vec<PageRange> {
    let known = state.registry.now().within(range);
    gaps(range, known.map(|segment| segment.range))
}

fn undo((part, before): (PageRange, Option<Mode>)) {
    let _ = match before {
        None => kernel::munlock(part.address(), part.bytes()),
        Some(mode) => mode.lock(part),
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
    for segment in state.registry.now().within(range) {
        let before = segment.holders.mode();
        let holders = segment.holders.released(mode);
        let left = holders.mode();
        // When the last one goes, what an earlier one could not weaken is weakened, or noted as it
        // is.
        let last = !holders.owned() && left == Some(Mode::OnFault);
        if before != left || last {
            after.push((segment.range, left));
        }
    }
    for (part, left) in after {
        match left {
            None => {
                if kernel::munlock(part.address(), part.bytes()) == Err(Errno::NOMEM) {
                    state.registry.forget(part);
                }
            }
            Some(mode) => {
                if mode.lock(part).is_err() {
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
