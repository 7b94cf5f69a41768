//! Mapping with a lock in one step, and unmapping and moving so that the registry knows.
// Mapping, unmapping and moving memory are unsafe interfaces; callers answer for them as they do
// for the system calls.
#![allow(unsafe_code)]
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use pagetide_kernel::limits::LockLimits;
use pagetide_kernel::{PageRange, mlock as kernel};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MremapFlags, ProtFlags};

use super::calls::{note_locked, uncharged};
use super::error::{LimitReport, LockError};
use super::flags::{LockFlags, Mode};
use super::fork::state;
use super::state::{errno_of, pages};

/// Maps memory and locks it in the mode of `lock`, all or nothing. `file` is the descriptor and the
/// offset in bytes; anonymous memory if `None`. `MAP_POPULATE` has no effect on memory locked on
/// fault, as in the kernel.
///
/// With `MAP_FIXED` the limit is checked before anything is replaced, and what was known of the
/// pages there is forgotten. If another thread uses up the limit between the check and the lock,
/// the old mapping is lost and the call fails.
///
/// # Errors
/// `EINVAL` `lock` is not exactly one mode; `EPERM` the lock limit is 0; `EAGAIN` over the limit;
/// or what `mmap` says. No mapping is left behind.
///
/// # Safety
/// As `mmap`: with `MAP_FIXED` nothing uses what was mapped there, and a file's bytes may change
/// under a reader.
///
/// ```
/// use pagetide::lock::{LockFlags, MapFlags, MremapFlags, ProtFlags, mmap, mremap, munmap};
///
/// # fn main() -> Result<(), pagetide::lock::LockError> {
/// let (anywhere, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
/// let (flags, lock) = (MapFlags::PRIVATE, LockFlags::ONFAULT);
/// // SAFETY: new memory, at a place that the kernel chooses.
/// let mapped = unsafe { mmap(anywhere, 4096, protection, flags, None, lock) };
/// let Ok(memory) = mapped else { return Ok(()) }; // over the lock limit
/// // SAFETY: nobody has a pointer into it.
/// let larger = unsafe { mremap(memory, 4096, 8192, MremapFlags::MAYMOVE, None) };
/// let (memory, len) = larger.map_or((memory, 4096), |moved| (moved, 8192));
/// // SAFETY: the same.
/// unsafe { munmap(memory, len) }
/// # }
/// ```
pub unsafe fn mmap(
    address: *mut c_void,
    len: usize,
    protection: ProtFlags,
    flags: MapFlags,
    file: Option<(BorrowedFd<'_>, u64)>,
    lock: LockFlags,
) -> Result<*mut c_void, LockError> {
    const CALL: &str = "mmap";
    let Some(mode) = lock.mode() else {
        return Err(LockError::flags(
            CALL,
            lock.bits(),
            "LOCKED (1) or ONFAULT (2)",
        ));
    };
    if len == 0 {
        return Err(LockError::plain(CALL, Errno::INVAL));
    }
    let mut state = state();
    let bytes = pages(0, len).map_err(|errno| LockError::plain(CALL, errno))?;
    let fixed = flags.contains(MapFlags::FIXED);
    // What is replaced makes room.
    let freed = if fixed {
        let range = pages(address as usize, len).map_err(|errno| LockError::plain(CALL, errno))?;
        range.bytes() as u64 - uncharged(&mut state, range)
    } else {
        0
    };
    check_limit(bytes.bytes() as u64, freed, fixed)?;
    // MAP_LOCKED and MAP_POPULATE would fault in what is to be locked on fault.
    let flags = match mode {
        Mode::OnFault => flags - MapFlags::POPULATE - MapFlags::LOCKED,
        Mode::Full => flags - MapFlags::LOCKED,
    };
    // SAFETY: by the caller's word.
    let mapped = unsafe {
        match file {
            Some((file, offset)) => mm::mmap(address, len, protection, flags, file, offset),
            None => mm::mmap_anonymous(address, len, protection, flags),
        }
    }
    .map_err(|errno| LockError::of_limit(CALL, errno, bytes.bytes() as u64))?;
    let range = PageRange::covering(mapped as usize, len);
    state.forget(range);
    // As by MAP_LOCKED, what cannot be faulted in is locked all the same.
    match mode.lock_anyway(range) {
        Ok(()) => {
            note_locked(&mut state, range, mode);
            Ok(mapped)
        }
        Err(errno) => {
            let error = LockError::of_limit(CALL, errno, bytes.bytes() as u64);
            // SAFETY: mapped above, known to nobody.
            let _ = unsafe { mm::munmap(mapped, len) };
            Err(match errno {
                Errno::NOMEM => error.with_errno(Errno::AGAIN),
                _ => error,
            })
        }
    }
}

/// Refuses what the lock limit has no room for, also when `freed` bytes less are locked, as the
/// kernel's `mmap` does for `MAP_LOCKED`; with `replaces`, also where the limit's use cannot be
/// read.
fn check_limit(needed: u64, freed: u64, replaces: bool) -> Result<(), LockError> {
    let limits = match LockLimits::try_read() {
        Ok(limits) => limits,
        Err(error) if replaces => {
            return Err(LockError::plain("mmap: /proc/self/status", errno_of(error)));
        }
        // A new mapping that cannot be locked is unmapped again.
        Err(_) => return Ok(()),
    };
    if limits.capable {
        return Ok(());
    }
    let errno = if limits.soft == Some(0) {
        Errno::PERM
    } else if limits
        .room()
        .is_some_and(|room| limits.in_use.saturating_sub(freed).saturating_add(needed) > room)
    {
        Errno::AGAIN
    } else {
        return Ok(());
    };
    let error = LockError::of_limit("mmap", errno, needed - freed.min(needed));
    debug_assert!(error.report().is_none_or(LimitReport::exceeds));
    Err(error)
}

/// Unmaps, and forgets the range.
///
/// # Errors
/// What `munmap` says; the registry is as it was then.
///
/// # Safety
/// As `munmap`: nothing uses the range any more.
pub unsafe fn munmap(address: *mut c_void, len: usize) -> Result<(), LockError> {
    let mut state = state();
    // SAFETY: by the caller's word.
    unsafe { mm::munmap(address, len) }.map_err(|errno| LockError::plain("munmap", errno))?;
    if let Ok(range) = pages(address as usize, len) {
        state.forget(range);
    }
    Ok(())
}

/// Grows, shrinks or moves a mapping; its locks go with it. A part that grows is locked as the end
/// of the mapping is. With `DONTUNMAP` the old range stays mapped and is not locked any more. With
/// an old length of 0 a shared mapping is doubled, lock included. `to` is the new place for
/// `MREMAP_FIXED`.
///
/// # Errors
/// What `mremap` says; `EAGAIN` if growth is more than the lock limit leaves.
///
/// # Safety
/// As `mremap`: nothing uses the old range, nor what was mapped at `to`. No owner
/// ([`hold`](super::hold)) has pages of it: an owner unlocks by address.
pub unsafe fn mremap(
    address: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: MremapFlags,
    to: Option<*mut c_void>,
) -> Result<*mut c_void, LockError> {
    const CALL: &str = "mremap";
    let failed = |errno| {
        LockError::of_limit(CALL, errno, new_len.saturating_sub(old_len) as u64).in_call(CALL)
    };
    let mut state = state();
    let (place, fixed) = match to {
        Some(to) => (to as usize, libc::MREMAP_FIXED as u32),
        None => (0, 0),
    };
    // SAFETY: by the caller's word.
    let moved = unsafe {
        kernel::mremap(
            address as usize,
            old_len,
            new_len,
            flags.bits() | fixed,
            place,
        )
    }
    .map_err(failed)? as *mut c_void;
    let from = PageRange::covering(address as usize, old_len);
    let to = PageRange::covering(moved as usize, new_len);
    if old_len == 0 {
        let like = state.registry.now().holders(from.start).mode();
        state.forget(to);
        state.registry.set_process(to, like);
    } else {
        state.relocate(from, to);
    }
    Ok(moved)
}
