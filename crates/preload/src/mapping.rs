//! Large mappings are told to the scanner at once instead of being found a tick later: a program
//! can fill a lot of memory in a tick.
//!
//! What takes mappings away waits where the pager has no moment to work otherwise.
//!
//! Only a hint: what is mapped otherwise (by the C library inside `malloc`, by bare system calls)
//! is found by looking.
use pagetide_kernel::syscall::syscall;

use crate::agent::agent;
use crate::deferral;
use crate::next::{returned, returned_address};
use crate::requests;

/// Mappings from this size on wait until they are governed, which takes about 0.1 ms.
const LARGE: usize = 4 << 20;

/// # Safety
/// As `mmap`.
unsafe fn map(
    address: usize,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut libc::c_void {
    let anonymous = flags & (libc::MAP_ANONYMOUS | libc::MAP_PRIVATE)
        == libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
    let governed = anonymous
        && len >= LARGE
        && !deferral::has_room_for(len)
        && agent().is_some_and(|agent| len as u64 > agent.config.wishes.mappings_over_bytes);
    // Populating at once would make everything resident before it is governed; it is a hint, and
    // left out.
    let passed = if governed {
        flags & !libc::MAP_POPULATE
    } else {
        flags
    };
    let args = [
        address,
        len,
        protection as usize,
        passed as usize,
        fd as usize,
        offset as usize,
    ];
    let over = agent().filter(|_| flags & libc::MAP_FIXED != 0);
    let call = over.map(|agent| {
        agent.pager.space.throttle.pass();
        agent.pager.space.mapping_lock.enter_call()
    });
    // SAFETY: by the caller's word.
    let result = unsafe { syscall(libc::SYS_mmap as usize, args) };
    drop(call);
    if result.is_ok() && governed && protection != libc::PROT_NONE {
        requests::look_now();
    }
    returned_address(result)
}

/// Stands before `mmap`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: usize,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut libc::c_void {
    // SAFETY: by the caller's word.
    unsafe { map(address, len, protection, flags, fd, offset) }
}

/// Stands before `mmap64`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: usize,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut libc::c_void {
    // SAFETY: by the caller's word.
    unsafe { map(address, len, protection, flags, fd, offset) }
}

/// Stands before `munmap`.
///
/// # Safety
/// As `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: usize, len: usize) -> i32 {
    let _call = agent().map(|agent| {
        agent.pager.space.throttle.pass();
        agent.pager.space.mapping_lock.enter_call()
    });
    // SAFETY: by the caller's word.
    returned(unsafe { syscall(libc::SYS_munmap as usize, [address, len]) })
}
