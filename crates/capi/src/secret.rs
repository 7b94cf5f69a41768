//! `pagetide_secret`: bytes that never leave memory.
use std::ffi::{c_int, c_void};

use pagetide::lock::{InChild, SecretBuf};

use crate::arguments::{Versioned, borrow, borrow_mut, handle, options, room, take};
use crate::status::{Failure, guard, quietly};

pub struct SecretHandle(SecretBuf);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SecretOptions {
    size: usize,
    in_child: c_int,
    memfd_secret: c_int,
}

// SAFETY: a size first; zeros are the defaults.
unsafe impl Versioned for SecretOptions {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_secret_new(
    length_max: usize,
    given: *const SecretOptions,
    out: *mut *mut SecretHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, given) = unsafe { (room(out, "out")?, options(given, "options")?) };
        let in_child = match given.in_child {
            0 => InChild::Wiped,
            1 => InChild::Absent,
            other => {
                return Err(Failure::invalid(format!(
                    "in_child is {other}; expected PAGETIDE_SECRET_WIPED or _ABSENT"
                )));
            }
        };
        let secret = SecretBuf::builder(length_max)
            .in_child(in_child)
            .memfd_secret(given.memfd_secret != 0)
            .build()?;
        *out = handle(SecretHandle(secret));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_secret_resize(secret: *mut SecretHandle, length: usize) -> c_int {
    // SAFETY: as the header says of a handle.
    guard(|| Ok(unsafe { borrow_mut(secret, "secret") }?.0.resize(length)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_secret_data(secret: *mut SecretHandle) -> *mut c_void {
    // SAFETY: null or a handle, says the header.
    match unsafe { secret.as_mut() } {
        Some(SecretHandle(secret)) if !secret.is_empty() => {
            secret.as_mut_slice().as_mut_ptr().cast()
        }
        _ => std::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_secret_length(secret: *const SecretHandle) -> usize {
    // SAFETY: null or a handle, says the header.
    unsafe { secret.as_ref() }.map_or(0, |SecretHandle(secret)| secret.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_secret_equals(
    secret: *const SecretHandle,
    bytes: *const c_void,
    length: usize,
    equal: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let SecretHandle(secret) = unsafe { borrow(secret, "secret") }?;
        // SAFETY: the same.
        let bytes = unsafe { crate::arguments::slice(bytes.cast::<u8>(), length, "bytes") }?;
        // SAFETY: the same.
        *unsafe { borrow_mut(equal, "equal") }? = c_int::from(*secret == *bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_secret_free(secret: *mut SecretHandle) {
    // SAFETY: as the header says of a handle.
    quietly(|| drop(unsafe { take(secret) }));
}
