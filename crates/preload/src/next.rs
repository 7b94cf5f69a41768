//! The functions this library stands in front of.
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::io::Errno;

/// The next definition of a symbol in the loader's search order, looked up once: at load, by
/// [`Next::prepare`], because the agent's own threads come here as well and must not take the
/// loader's lock.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// For the symbol `name`.
    pub const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Looks up each of `all`.
    pub fn prepare(all: &[&Next]) {
        for next in all {
            next.address();
        }
    }

    /// Its address; null if nobody defines it.
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string; the search starts after this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Release);
        found
    }
}

/// A system call's result as the C library returns it: -1, and `errno`, for an error.
pub fn returned(result: Result<usize, Errno>) -> i32 {
    match result {
        Ok(answer) => answer as i32,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    }
}

/// The same of a call that returns an address.
pub fn returned_address(result: Result<usize, Errno>) -> *mut c_void {
    match result {
        Ok(address) => address as *mut c_void,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            libc::MAP_FAILED
        }
    }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}
