//! Locks: locked memory cannot be evicted, so more of it than the budget is refused as the kernel
//! refuses more than the lock limit.
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_kernel::PageRange;
use pagetide_kernel::syscall::syscall;
use rustix::io::Errno;

use crate::agent::agent;
use crate::next::returned;

/// Pages the program has locked through these functions; unlocking more than was locked stops at 0.
static LOCKED: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// As the system call asks.
unsafe fn lock(address: usize, len: usize, number: libc::c_long, flags: usize) -> i32 {
    let pages = PageRange::covering(address, len).pages();
    if let Some(agent) = agent() {
        // A budget with room for one evictable page at least, or nothing else could ever be faulted
        // in.
        if LOCKED.load(Ordering::Relaxed) + pages >= agent.pager.most_pages() {
            return returned(Err(Errno::NOMEM));
        }
    }
    // SAFETY: by the caller's word.
    let result = returned(unsafe { syscall(number as usize, [address, len, flags]) });
    if result == 0 {
        LOCKED.fetch_add(pages, Ordering::Relaxed);
    }
    result
}

/// Stands before `mlock`.
///
/// # Safety
/// As `mlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const libc::c_void, len: usize) -> i32 {
    // SAFETY: by the caller's word.
    unsafe { lock(address as usize, len, libc::SYS_mlock, 0) }
}

/// Stands before `mlock2`.
///
/// # Safety
/// As `mlock2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(
    address: *const libc::c_void,
    len: usize,
    flags: libc::c_uint,
) -> i32 {
    // SAFETY: by the caller's word.
    unsafe { lock(address as usize, len, libc::SYS_mlock2, flags as usize) }
}

/// Stands before `munlock`.
///
/// # Safety
/// As `munlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(address: *const libc::c_void, len: usize) -> i32 {
    // SAFETY: by the caller's word.
    let result = returned(unsafe { syscall(libc::SYS_munlock as usize, [address as usize, len]) });
    if result == 0 {
        let pages = PageRange::covering(address as usize, len).pages();
        let _ = LOCKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |locked| {
            Some(locked.saturating_sub(pages))
        });
    }
    result
}

/// Stands before `mlockall`: all memory, and the agent's with it, cannot be locked within a budget.
///
/// # Safety
/// As `mlockall`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: i32) -> i32 {
    if agent().is_some() {
        return returned(Err(Errno::NOMEM));
    }
    // SAFETY: by the caller's word.
    returned(unsafe { syscall(libc::SYS_mlockall as usize, [flags as usize]) })
}
