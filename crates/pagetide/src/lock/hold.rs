//! Locks with an owner: counted, so that a page stays locked until the last owner lets go.
use std::marker::PhantomData;

use pagetide_kernel::{PAGE_SIZE, PageRange, limits, mlock as kernel, smaps};
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

/// Locks the pages of `bytes` on behalf of the owner of what is returned. Other owners may hold the same pages, in the same or the other mode.
///
/// # Errors
/// As [`mlock2`](super::mlock2); nothing is locked then that was not before.
pub fn hold(bytes: &[u8], mode: Mode) -> Result<Held<'_>, LockError> {
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

/// The same without a lifetime, for owners that own their mapping. It must be dropped before the memory is unmapped.
#[derive(Debug)]
pub(super) struct Hold {
    range: PageRange,
    mode: Mode,
}

impl Hold {
    pub fn new(range: PageRange, mode: Mode) -> Result<Hold, LockError> {
        fork::arm();
        let mut state = state();
        let foreign = foreign_locks(&mut state, range);
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
            // Never weaker than what another owner wants.
            let wanted = before.map_or(mode, |before| before.max(mode));
            if let Err(errno) = kernel::mlock2(part.address(), part.bytes(), wanted.kernel()) {
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
        Ok(Hold { range, mode })
    }

    /// The registry has lost it already (a forked child): nothing is to be undone.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Ends it together with the memory, which `unmap` unmaps: nobody's lock outlives that.
    pub fn unmap(self, unmap: impl FnOnce()) {
        let mut state = state();
        unmap();
        state.registry.forget(self.range);
        std::mem::forget(self);
    }
}

/// What in `range` is locked and nobody knows of: other code's locks, to be left as they are when the owner lets go. None are seen where the kernel cannot be
/// asked (no descriptor left).
fn foreign_locks(state: &mut State, range: PageRange) -> Vec<(PageRange, Mode)> {
    let known = state.registry.now().pages() * PAGE_SIZE as u64;
    if limits::locked_bytes(None).is_ok_and(|charged| charged == known) {
        // All that the kernel has locked is in the registry. The list itself costs a look at every page table.
        return Vec::new();
    }
    let areas = if state.future_ever {
        // What the kernel locks by itself is the process's.
        state.reconcile()
    } else {
        smaps::locked(None).map_err(errno_of)
    };
    let mut known = Vec::new();
    state
        .registry
        .now()
        .for_each_in(range, |segment| known.push(segment.range));
    let mut foreign = Vec::new();
    let tells = smaps::tells_mode();
    for area in areas.unwrap_or_default() {
        let mode = if area.on_fault || !tells {
            Mode::OnFault
        } else {
            Mode::Full
        };
        each_gap(
            area.range().intersection(range),
            known.iter().copied(),
            |gap| foreign.push((gap, mode)),
        );
    }
    foreign
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
        let mode = self.mode;
        let (mut after, mut refused) = (Vec::new(), Vec::new());
        state.registry.now().for_each_in(self.range, |segment| {
            let before = segment.holders.mode();
            let left = segment.holders.released(mode).mode();
            if before != left {
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
        registry.update(self.range, |holders| holders.released(mode).settled());
        // The limit has been lowered below what is locked. What was full stays so, and is the process's in that mode if it is the process's.
        for part in refused {
            registry.update(part, |holders| match holders.process {
                Some(_) if !holders.owned() => holders.with_process(Some(Mode::Full)),
                _ => holders,
            });
        }
    }
}
