//! Memory that stays: `pagetide.lock`.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;

use pagetide::lock::{self as locking, Access, InChild, LockError, Mode, SecretBuf, Sharing};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::{self, Value};
use crate::leaving::{detach, with_python};
use crate::memory::Exports;
use crate::region::{lock, lock_attached};

/// So much is read between two calls of `progress`.
const FILL_BYTES: usize = 8 << 20;

fn os_error(error: &std::io::Error) -> PyErr {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<LockError>());
    match inner {
        Some(inner) => errors::lock(inner),
        None => PyOSError::new_err((error.raw_os_error(), error.to_string())),
    }
}

/// A file mapped and locked.
#[pyclass(frozen, subclass, module = "pagetide")]
pub struct LockedFile {
    file: Mutex<Option<locking::LockedFile>>,
    writable: bool,
    exports: Exports,
}

impl LockedFile {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut locking::LockedFile) -> std::io::Result<T> + Send,
    ) -> PyResult<T> {
        let done = detach(py, || lock(&self.file).as_mut().map(call));
        match done {
            None => Err(errors::error("ClosedError", "the file is closed", &[])),
            Some(done) => done.map_err(|error| os_error(&error)),
        }
    }
}

#[pymethods]
impl LockedFile {
    #[new]
    #[pyo3(signature = (path, mode, access, writable, part))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        access: &str,
        writable: bool,
        part: Option<(u64, u64)>,
    ) -> PyResult<LockedFile> {
        let mode = match mode {
            "on-fault" => Mode::OnFault,
            "full" => Mode::Full,
            _ => return Err(PyValueError::new_err("mode is 'on-fault' or 'full'")),
        };
        let access = match access {
            "adaptive" => Access::Adaptive,
            "random" => Access::Random,
            "exact" => Access::Exact,
            "sequential" => Access::Sequential,
            "normal" => Access::Normal,
            _ => {
                let message = "access is 'adaptive', 'random', 'exact', 'sequential' or 'normal'";
                return Err(PyValueError::new_err(message));
            }
        };
        let mut builder = locking::LockedFile::builder().mode(mode).access(access);
        if writable {
            builder = builder.sharing(Sharing::Private);
        }
        if let Some((offset, length)) = part {
            builder = builder.range(offset, length);
        }
        let file = detach(py, || builder.open(&path)).map_err(|error| {
            match error
                .cause
                .get_ref()
                .and_then(|c| c.downcast_ref::<LockError>())
            {
                Some(inner) => errors::lock(inner),
                None => PyOSError::new_err((
                    error.cause.raw_os_error().unwrap_or(libc::EINVAL),
                    error.cause.to_string(),
                    path.clone(),
                )),
            }
        })?;
        Ok(LockedFile {
            file: Mutex::new(Some(file)),
            writable,
            exports: Exports::default(),
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |file| Ok(file.len()))
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        lock_attached(py, &self.file).is_none()
    }

    /// Queues reads of `parts`, pairs of bytes, without waiting.
    fn prefetch(&self, py: Python<'_>, parts: Vec<(usize, usize)>) -> PyResult<()> {
        let parts: Vec<Range<usize>> = parts.into_iter().map(|(a, b)| a..b).collect();
        self.with(py, |file| file.prefetch(&parts))
    }

    /// Reads and locks `parts`, pairs of bytes, and waits.
    fn load(&self, py: Python<'_>, parts: Vec<(usize, usize)>) -> PyResult<()> {
        let parts: Vec<Range<usize>> = parts.into_iter().map(|(a, b)| a..b).collect();
        self.with(py, |file| file.load(&parts))
    }

    /// Reads and locks all of it, and calls `progress` with the bytes done, if it is given.
    #[pyo3(signature = (progress=None))]
    fn fill(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let length = self.with(py, |file| Ok(file.len()))?;
        // By blocks, and nothing is held while `progress` runs: it may ask about the file.
        for start in (0..length)
            .step_by(FILL_BYTES)
            .filter(|_| progress.is_some())
        {
            let done = (start + FILL_BYTES).min(length);
            let ahead = start..(start + 2 * FILL_BYTES).min(length);
            self.with(py, |file| {
                file.prefetch(std::slice::from_ref(&ahead))?;
                file.load(std::slice::from_ref(&(start..done)))
            })?;
            if let Some(progress) = &progress {
                with_python(py, || progress.call1(py, (done,)))?;
            }
        }
        self.with(py, |file| file.fill(|_| ()))
    }

    /// Unmaps it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut file = lock_attached(py, &self.file);
        let buffers = self.exports.count() as u64;
        if buffers > 0 {
            drop(file);
            let message = format!("the file is in use by {buffers} buffers: let go of them first");
            let attributes = [("buffers", Value::Number(buffers))];
            return Err(errors::error("InUseError", &message, &attributes));
        }
        let last = file.take();
        drop(file);
        detach(py, || drop(last));
        Ok(())
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let file = lock_attached(slf.py(), &this.file);
        let Some(mapped) = &*file else {
            drop(file);
            return Err(errors::error("ClosedError", "the file is closed", &[]));
        };
        let start = match mapped.is_empty() {
            true => std::ptr::dangling_mut(),
            false => mapped.as_ptr().cast_mut(),
        };
        // SAFETY: the interpreter's view; `close` does nothing while there are exports, and it is
        // writable if it was mapped so.
        unsafe {
            let bytes = (start, mapped.len());
            (this.exports).fill(slf.as_any(), view, flags, bytes, !this.writable)
        }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.release();
    }
}

fn secret(error_: locking::SecretError) -> PyErr {
    match &error_ {
        locking::SecretError::Lock(inner) => errors::lock(inner),
        locking::SecretError::TooLarge { asked, max } => {
            let attributes = [
                ("asked_bytes", Value::Number(*asked as u64)),
                ("max_bytes", Value::Number(*max as u64)),
            ];
            errors::error("SecretSizeError", &error_.to_string(), &attributes)
        }
        locking::SecretError::NotInherited => errors::error("ForkError", &error_.to_string(), &[]),
        _ => errors::error("LockError", &error_.to_string(), &[]),
    }
}

/// The bytes of a buffer in one piece, where they are.
struct Bytes<'py> {
    py: Python<'py>,
    buffer: PyBuffer<u8>,
}

impl<'py> Bytes<'py> {
    fn of(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
        let (py, buffer) = (object.py(), PyBuffer::get(object)?);
        match buffer.is_c_contiguous() {
            true => Ok(Bytes { py, buffer }),
            false => Err(PyBufferError::new_err("the bytes are not in one piece")),
        }
    }

    fn get(&self) -> &[u8] {
        match self.buffer.len_bytes() {
            0 => &[],
            // SAFETY: its owner keeps the bytes where they are while there is a buffer. Who writes
            // to them meanwhile changes what is copied or compared, and nothing else.
            length => unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), length) },
        }
    }
}

/// Bytes that never leave memory.
#[pyclass(frozen, subclass, module = "pagetide")]
pub struct SecretBytes {
    secret: Mutex<SecretBuf>,
    exports: Exports,
}

impl SecretBytes {
    /// For what may move or wipe the bytes.
    fn change(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut SecretBuf) -> Result<(), locking::SecretError>,
    ) -> PyResult<()> {
        let mut secret_ = lock_attached(py, &self.secret);
        if self.exports.count() > 0 {
            let message = "the secret is in use by buffers: let go of them first";
            return Err(PyBufferError::new_err(message));
        }
        let changed = call(&mut secret_);
        drop(secret_);
        changed.map_err(secret)
    }
}

#[pymethods]
impl SecretBytes {
    #[new]
    fn new(max: usize, memfd_secret: bool, absent_in_child: bool) -> PyResult<SecretBytes> {
        let in_child = match absent_in_child {
            true => InChild::Absent,
            false => InChild::Wiped,
        };
        let builder = SecretBuf::builder(max).memfd_secret(memfd_secret);
        let buffer = builder.in_child(in_child).build().map_err(secret)?;
        Ok(SecretBytes {
            secret: Mutex::new(buffer),
            exports: Exports::default(),
        })
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        lock_attached(py, &self.secret).len()
    }

    /// The most bytes it can have.
    #[getter]
    fn max(&self, py: Python<'_>) -> usize {
        lock_attached(py, &self.secret).max()
    }

    /// Makes it `length` bytes long; new ones are zeros, and what goes is wiped.
    fn resize(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        self.change(py, |secret| secret.resize(length))
    }

    /// Wipes it; it has no bytes then.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, SecretBuf::clear)
    }

    /// Whether nothing was written beside it.
    #[getter]
    fn intact(&self, py: Python<'_>) -> bool {
        lock_attached(py, &self.secret).is_intact()
    }

    /// Appends the bytes of the buffer `data`, which are copied nowhere else.
    fn _extend(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Bytes::of(data)?;
        self.change(data.py, |secret| secret.extend_from_slice(data.get()))
    }

    /// Whether it has the same bytes as the buffer `other`, in a time that depends on the length
    /// alone.
    fn _equals(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let other = Bytes::of(other)?;
        Ok(*lock_attached(other.py, &self.secret) == *other.get())
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let mut secret = lock_attached(slf.py(), &this.secret);
        let length = secret.len();
        let start = match length {
            0 => std::ptr::dangling_mut(),
            _ => secret.as_mut_slice().as_mut_ptr(),
        };
        // SAFETY: the interpreter's view; nothing changes the size while there are exports.
        unsafe { (this.exports).fill(slf.as_any(), view, flags, (start, length), false) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.release();
    }
}
