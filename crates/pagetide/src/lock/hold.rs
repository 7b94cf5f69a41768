//! Locks with an owner: counted, so that a page stays locked until the last owner lets go.
use std::marker::PhantomData;

use pagetide_kernel::{PageRange, mlock as kernel};
use rustix::io::Errno;

use super::calls::uncharged;
use super::error::LockError;
use super::flags::Mode;
use super::fork;
use super::state::{each_gap, pages, state};

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
        let mut known = Vec::new();
        state.registry.now().for_each_in(range, |segment| {
            known.push((segment.range, segment.holders.mode()));
        });
        let mut parts = Vec::new();
        let held: Vec<PageRange> = known.iter().map(|(range, _)| *range).collect();
        each_gap(range, held.into_iter(), |gap| parts.push((gap, None)));
        parts.extend(known);
        let mut done = Vec::new();
        for (part, before) in parts {
            // Never weaker than what another owner wants.
            let wanted = before.map_or(mode, |before| before.max(mode));
            if let Err(errno) = kernel::mlock2(part.address(), part.bytes(), wanted.kernel()) {
                let error = LockError::of_limit("mlock2", errno, uncharged(part));
                done.push((part, before));
                done.into_iter().for_each(undo);
                return Err(error);
            }
            done.push((part, before));
        }
        state
            .registry
            .now()
            .update(range, |holders| holders.held(mode));
        Ok(Hold { range, mode })
    }

    /// The registry has lost it already (a forked child): nothing is to be undone.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Forgets the lock without a system call: the memory is unmapped next, which unlocks it.
    pub fn abandon(self) {
        let mut state = state();
        let mode = self.mode;
        state
            .registry
            .now()
            .update(self.range, |holders| holders.released(mode));
        std::mem::forget(self);
    }
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
        let mut after = Vec::new();
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
                    let _ = kernel::mlock2(part.address(), part.bytes(), mode.kernel());
                }
            }
        }
        state
            .registry
            .now()
            .update(self.range, |holders| holders.released(mode));
    }
}
