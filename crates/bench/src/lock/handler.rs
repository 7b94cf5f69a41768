//! The peer that needs no kernel support: the mapping has no access, and a SIGSEGV handler opens
//! and locks the pages touched.
#![allow(unsafe_code)] // signal handlers and protection changes have no safe interface
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::mm::{MprotectFlags, mprotect};

use super::task::TOO_MANY_MAPPINGS;

static START: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static BATCH_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Closes the mapping and installs the handler.
pub fn install(start: *mut u8, bytes: usize, batch: usize) -> Result<(), String> {
    START.store(start as usize, Relaxed);
    BYTES.store(bytes, Relaxed);
    BATCH_BYTES.store(batch * 4096, Relaxed);
    // SAFETY: the handler is async-signal-safe: atomics and two system calls. The old action is
    // replaced for good.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        if libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) != 0 {
            return Err("sigaction failed".into());
        }
        mprotect(start.cast(), bytes, MprotectFlags::empty())
            .map_err(|error| format!("mprotect: {error}"))
    }
}

extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes the siginfo of a SIGSEGV, which has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let (start, bytes, batch) = (
        START.load(Relaxed),
        BYTES.load(Relaxed),
        BATCH_BYTES.load(Relaxed),
    );
    if address < start || address >= start + bytes {
        end(139);
    }
    let first = start + (address - start) / batch * batch;
    let len = batch.min(start + bytes - first);
    // SAFETY: within the measured mapping, whose bytes are not changed.
    let opened = unsafe { mprotect(first as *mut _, len, MprotectFlags::READ) };
    if opened.is_err() || pagetide_kernel::mlock::mlock2(first, len, 0).is_err() {
        end(TOO_MANY_MAPPINGS);
    }
}

fn end(code: i32) -> ! {
    // SAFETY: ends the process; allowed in a signal handler.
    unsafe { libc::_exit(code) }
}
