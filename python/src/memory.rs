//! What memory of Pagetide's has in common for Python: it is exported as a buffer, and it exists
//! in the process that made it alone.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::{self, Value};

/// Something whose threads and memory a forked child does not have: there it is never touched, and
/// never dropped.
pub struct Here<T> {
    value: ManuallyDrop<T>,
    pid: u32,
}

impl<T> Here<T> {
    /// Of this process.
    pub fn new(value: T) -> Here<T> {
        Here {
            value: ManuallyDrop::new(value),
            pid: std::process::id(),
        }
    }

    /// The process that made it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The value itself, if this is the process that made it.
    pub fn take(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: `this` is not dropped, and used no more.
        (this.pid == std::process::id()).then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }

    /// It, if this is the process that made it.
    pub fn get(&self) -> PyResult<&T> {
        check_process(self.pid)?;
        Ok(&self.value)
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: dropped here and never used again.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// An error unless this is process `pid`.
pub fn check_process(pid: u32) -> PyResult<()> {
    let now = std::process::id();
    if now == pid {
        return Ok(());
    }
    let message = format!(
        "this memory was made by process {pid}, and a forked child ({now}) does not have it: use \
         the 'spawn' start method, make the array in the child, or hand it a snapshot"
    );
    let attributes = [
        ("pid_made", Value::Number(pid.into())),
        ("pid", Value::Number(now.into())),
    ];
    Err(errors::error("ForkError", &message, &attributes))
}

/// Buffers that Python has of a span of memory.
#[derive(Default)]
pub struct Exports(AtomicUsize);

impl Exports {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Fills `view` with the `length` bytes at `start`.
    ///
    /// # Safety
    /// `view` is valid, and the bytes stay mapped, and writable unless `read_only`, until it is
    /// released: `owner` has them, and does not give them up while there are exports.
    pub unsafe fn fill(
        &self,
        owner: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        (start, length): (*mut u8, usize),
        read_only: bool,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view"));
        }
        // SAFETY: by the caller's word.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                owner.as_ptr(),
                start.cast(),
                length as isize,
                read_only.into(),
                flags,
            )
        };
        if filled != 0 {
            return Err(PyErr::fetch(owner.py()));
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// One was released.
    pub fn release(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
