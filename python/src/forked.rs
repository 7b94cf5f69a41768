//! A forked child that touches memory it does not have ends with SIGSEGV, never with zeros. This
//! says why, on its standard error stream, and leaves the signal to whoever had it before.
#![allow(unsafe_code)]
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;

/// The memory that this process has and its children do not: first byte and length.
static SPANS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// In a child: those of its parent, leaked.
static PARENTS: AtomicPtr<Vec<(usize, usize)>> = AtomicPtr::new(std::ptr::null_mut());
static INSTALLED: AtomicBool = AtomicBool::new(false);
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// How many forks lie between this process and the one that had the first region: one more in a
/// forked child, before anything else runs there.
static FORKS: AtomicU32 = AtomicU32::new(0);

const MESSAGE: &[u8] =
    b"pagetide: this is a forked child, and it touched memory of a region of its \
parent's, which it does not have: use the 'spawn' start method, make the array in the child, or \
hand it a snapshot\n";

/// A span from when this is made until it is dropped.
pub struct Span(usize, usize);

impl Span {
    /// Of `length` bytes from `start` on.
    pub fn new(py: Python<'_>, start: usize, length: usize) -> PyResult<Span> {
        static HOOK: OnceLock<()> = OnceLock::new();
        if HOOK.set(()).is_ok() {
            // SAFETY: the handler adds one to a number. (It fails for want of memory only.)
            unsafe { libc::pthread_atfork(None, None, Some(note_child)) };
            let hook = wrap_pyfunction!(in_child, py)?;
            let kwargs = [("after_in_child", hook)];
            let kwargs = pyo3::types::IntoPyDict::into_py_dict(kwargs, py)?;
            py.import("os")?
                .call_method("register_at_fork", (), Some(&kwargs))?;
        }
        let mut spans = SPANS.lock().unwrap_or_else(PoisonError::into_inner);
        spans.push((start, length));
        Ok(Span(start, length))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // In a child, the lock may be held by a thread that is not here.
        if let Ok(mut spans) = SPANS.try_lock()
            && let Some(at) = spans.iter().position(|span| *span == (self.0, self.1))
        {
            spans.swap_remove(at);
        }
    }
}

/// Which process this is, told from those that it was forked from and those forked from it. Cheaper
/// than asking the system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// This one; for who has a region.
    pub fn now() -> Generation {
        Generation(FORKS.load(Ordering::Relaxed))
    }
}

extern "C" fn note_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Called in each forked child.
#[pyfunction]
fn in_child() {
    let Ok(spans) = SPANS.try_lock() else {
        return;
    };
    let spans = Box::new(spans.clone());
    PARENTS.store(Box::into_raw(spans), Ordering::Release);
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: a zeroed action is a valid one, and its fields are set before it is used.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = explain as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let mut before = action;
    // SAFETY: both point to actions, and the handler does only what one may do.
    if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) } == 0 {
        let _ = BEFORE.set(before);
    }
}

extern "C" fn explain(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: stored whole, and never freed.
    let parents = unsafe { PARENTS.load(Ordering::Acquire).as_ref() };
    // SAFETY: the kernel gives the signal's information, of a fault here.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_there = |span: &(usize, usize)| (span.0..span.0 + span.1).contains(&address);
    if parents.is_some_and(|spans| spans.iter().any(is_there)) {
        // SAFETY: the message is static.
        unsafe { libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    }
    if let Some(before) = BEFORE.get() {
        // The access is tried again when this returns, and whoever was there before gets it.
        // SAFETY: what the kernel gave.
        unsafe { libc::sigaction(libc::SIGSEGV, before, std::ptr::null_mut()) };
    }
}
