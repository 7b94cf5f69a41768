//! The lock family: calls that act for the process, and holds with an owner.
use std::ffi::{c_int, c_uint, c_void};

use pagetide::lock::{self, AllFlags, Held, LockFlags, Mode};

use crate::arguments::{handle, room, slice, take};
use crate::status::{Failure, guard, quietly};

pub struct HoldHandle(#[allow(dead_code)] Held<&'static [u8]>);

pub fn mode(number: c_int) -> Result<Mode, Failure> {
    match number {
        1 => Ok(Mode::Full),
        2 => Ok(Mode::OnFault),
        other => Err(Failure::invalid(format!(
            "the mode is {other}; expected PAGETIDE_LOCK_FULL (1) or PAGETIDE_LOCK_ONFAULT (2)"
        ))),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_mlock2(address: *const c_void, length: usize, flags: c_uint) -> c_int {
    let flags = LockFlags::from_bits(flags);
    guard(|| Ok(lock::mlock2(address.cast(), length, flags)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_munlock(address: *const c_void, length: usize) -> c_int {
    guard(|| Ok(lock::munlock(address.cast(), length)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_munlock2(address: *const c_void, length: usize, flags: c_uint) -> c_int {
    let flags = LockFlags::from_bits(flags);
    guard(|| Ok(lock::munlock2(address.cast(), length, flags)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_mlockall(flags: c_uint) -> c_int {
    guard(|| Ok(lock::mlockall(AllFlags::from_bits(flags))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_munlockall() -> c_int {
    guard(|| Ok(lock::munlockall()?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_munlockall2(flags: c_uint) -> c_int {
    guard(|| Ok(lock::munlockall2(AllFlags::from_bits(flags))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_lock_forget(address: *const c_void, length: usize) -> c_int {
    guard(|| {
        lock::forget(address.cast(), length);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_hold(
    address: *const c_void,
    length: usize,
    number: c_int,
    out: *mut *mut HoldHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let out = unsafe { room(out, "out") }?;
        // SAFETY: mapped until it is released, says the header; the bytes are not looked at.
        let bytes = unsafe { slice(address.cast::<u8>(), length, "address") }?;
        *out = handle(HoldHandle(lock::hold(bytes, mode(number)?)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_hold_release(hold: *mut HoldHandle) {
    // SAFETY: as the header says of a handle.
    quietly(|| drop(unsafe { take(hold) }));
}
