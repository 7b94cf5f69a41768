//! Memory with a budget: `Region`, and pins of it.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagetide::{Delivery, PinGuard, Policy, RegionBuilder};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::errors::{self, Value};
use crate::forked::Span;
use crate::leaving::detach;
use crate::memory::{Exports, Here, check_process};

/// A region as its users share it.
pub type Shared = Arc<Here<pagetide::Region>>;

/// For who is detached from the interpreter, or holds the lock while it needs no interpreter.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For who is attached: the interpreter runs others while this waits, of whom one may have the
/// lock. No Python code may run while it is held, nor an exception be made: that may come back here.
pub fn lock_attached<'m, T>(py: Python<'_>, mutex: &'m Mutex<T>) -> MutexGuard<'m, T> {
    mutex
        .lock_py_attached(py)
        .unwrap_or_else(PoisonError::into_inner)
}

/// A span of memory of which at most a budget is resident.
///
/// Arrays made by `pagetide.empty`, `zeros`, `full` and `load` lie in one; `pagetide.region_of`
/// gives it. It exports its memory as a writable buffer, and lives as long as anything uses that.
/// Sizes and positions are bytes.
#[pyclass(frozen, subclass, module = "pagetide", weakref)]
pub struct Region {
    shared: Mutex<Option<Shared>>,
    start: usize,
    length: usize,
    pid: u32,
    exports: Exports,
    _span: Span,
}

impl Region {
    /// The region, for as long as the answer lives.
    pub fn shared(&self, py: Python<'_>) -> PyResult<Shared> {
        check_process(self.pid)?;
        let shared = lock_attached(py, &self.shared).clone();
        shared.ok_or_else(|| errors::error("ClosedError", "the region is closed", &[]))
    }

    /// The first byte's address, and the length.
    pub fn span(&self) -> (usize, usize) {
        (self.start, self.length)
    }

    /// Runs `call` without the GIL.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&pagetide::Region) -> Result<T, pagetide::RegionError> + Send,
    ) -> PyResult<T> {
        let shared = self.shared(py)?;
        let region = shared.get()?;
        detach(py, || call(region)).map_err(errors::region)
    }

    fn range(&self, start: usize, stop: Option<usize>) -> Range<usize> {
        start..stop.unwrap_or(self.length)
    }
}

#[pymethods]
impl Region {
    /// Maps `length` bytes. `source` is a file, an offset in it and a length: what the memory holds
    /// at first.
    #[new]
    #[pyo3(signature = (length, resident=None, store="ram:", *, delivery="thread",
                        policy=None, source=None))]
    fn new(
        py: Python<'_>,
        length: usize,
        resident: Option<u64>,
        store: &str,
        delivery: &str,
        policy: Option<&str>,
        source: Option<(PathBuf, u64, u64)>,
    ) -> PyResult<Region> {
        let mut builder: RegionBuilder = pagetide::Region::builder()
            .length(length)
            .store_uri(store)
            .delivery(match delivery {
                "thread" => Delivery::Thread,
                "signal" => Delivery::Signal,
                other => {
                    let message = format!("delivery is 'thread' or 'signal', not '{other}'");
                    return Err(PyValueError::new_err(message));
                }
            });
        if let Some(resident) = resident {
            builder = builder.resident(resident);
        }
        if let Some(name) = policy {
            let policy: Policy = name.parse().map_err(PyValueError::new_err)?;
            builder = builder.policy(policy);
        }
        if let Some((path, offset, length)) = source {
            let file = File::open(&path).map_err(|error| {
                PyOSError::new_err((error.raw_os_error(), error.to_string(), path.clone()))
            })?;
            builder = builder.source(file, offset, length);
        }
        let region = detach(py, || builder.build()).map_err(errors::region)?;
        Ok(Region {
            _span: Span::new(py, region.as_ptr() as usize, region.len())?,
            start: region.as_ptr() as usize,
            length: region.len(),
            shared: Mutex::new(Some(Arc::new(Here::new(region)))),
            pid: std::process::id(),
            exports: Exports::default(),
        })
    }

    /// Bytes, a whole number of pages.
    fn __len__(&self) -> usize {
        self.length
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.start
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        lock_attached(py, &self.shared).is_none()
    }

    /// The counters now, as JSON.
    fn _stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.run(py, |region| Ok(region.stats()))?;
        serde_json::to_string(&stats).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Changes the budget to `resident` bytes, and waits until it holds.
    fn _set_budget(&self, py: Python<'_>, resident: u64) -> PyResult<()> {
        self.run(py, |region| region.set_budget(resident))
    }

    /// Starts loading bytes `start` to `stop`, as far as the budget has room.
    #[pyo3(signature = (start=0, stop=None))]
    fn _prefetch(&self, py: Python<'_>, start: usize, stop: Option<usize>) -> PyResult<()> {
        self.run(py, |region| region.prefetch(self.range(start, stop)))
    }

    /// Makes bytes `start` to `stop` non-resident, and waits until they are.
    #[pyo3(signature = (start=0, stop=None))]
    fn _evict(&self, py: Python<'_>, start: usize, stop: Option<usize>) -> PyResult<()> {
        self.run(py, |region| region.evict(self.range(start, stop)))
    }

    /// Gives up what bytes `start` to `stop` hold.
    #[pyo3(signature = (start=0, stop=None))]
    fn _discard(&self, py: Python<'_>, start: usize, stop: Option<usize>) -> PyResult<()> {
        self.run(py, |region| region.discard(self.range(start, stop)))
    }

    /// Makes bytes `start` to `stop` resident, and keeps them so.
    #[pyo3(signature = (start=0, stop=None))]
    fn _pin(&self, py: Python<'_>, start: usize, stop: Option<usize>) -> PyResult<Pin> {
        let shared = self.shared(py)?;
        let range = self.range(start, stop);
        let region = shared.get()?;
        let guard = detach(py, || region.pin(range)).map_err(errors::region)?;
        // SAFETY: what it borrows is in `shared`, which is kept beside it and dropped after it.
        let guard: PinGuard<'static> = unsafe { std::mem::transmute(guard) };
        Ok(Pin(Mutex::new(Some(Pinned {
            guard: Here::new(guard),
            _region: shared,
        }))))
    }

    /// Ends the region: its memory is unmapped, its store emptied.
    ///
    /// Raises InUseError while arrays, pins, trackers or anything else use it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        let mut shared = lock_attached(py, &self.shared);
        let others = shared
            .as_ref()
            .map_or(0, |shared| Arc::strong_count(shared) - 1);
        let buffers = self.exports.count();
        if buffers + others > 0 {
            drop(shared);
            let message = format!(
                "the region is in use by {buffers} arrays or buffers and {others} pins, trackers \
                 or calls: let go of them first"
            );
            let attributes = [
                ("buffers", Value::Number(buffers as u64)),
                ("others", Value::Number(others as u64)),
            ];
            return Err(errors::error("InUseError", &message, &attributes));
        }
        let last = shared.take();
        drop(shared);
        detach(py, || drop(last));
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.closed(py) {
            true => "<pagetide.Region, closed>".into(),
            false => format!(
                "<pagetide.Region of {} bytes at {:#x}>",
                self.length, self.start
            ),
        }
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        // Held, so that it is not closed before the export is counted.
        check_process(this.pid)?;
        let shared = lock_attached(slf.py(), &this.shared);
        if shared.is_none() {
            drop(shared);
            return Err(errors::error("ClosedError", "the region is closed", &[]));
        }
        let bytes = (this.start as *mut u8, this.length);
        // SAFETY: the interpreter's view; `close` does nothing while there are exports.
        unsafe { this.exports.fill(slf.as_any(), view, flags, bytes, false) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.release();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let last = lock(&self.shared).take();
        // The pager's threads end, and gigabytes may be unmapped.
        let mut last = Some(last);
        let detached = Python::try_attach(|py| {
            let last = last.take();
            detach(py, || drop(last));
        });
        let _ = detached;
    }
}

struct Pinned {
    guard: Here<PinGuard<'static>>,
    _region: Shared,
}

/// Keeps a part of a region resident until it is released: a context manager.
#[pyclass(frozen, module = "pagetide")]
pub struct Pin(Mutex<Option<Pinned>>);

#[pymethods]
impl Pin {
    /// Ends the pin. Does nothing if it has ended.
    fn release(&self, py: Python<'_>) {
        let pinned = lock_attached(py, &self.0).take();
        drop(pinned);
    }

    /// Whether it has ended.
    #[getter]
    fn released(&self, py: Python<'_>) -> bool {
        lock_attached(py, &self.0).is_none()
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        let pid = lock_attached(slf.py(), &slf.0)
            .as_ref()
            .map(|pinned| pinned.guard.pid());
        match pid {
            Some(pid) => check_process(pid)?,
            None => {
                return Err(errors::error(
                    "PinError",
                    "the pin was released: ask the region for another",
                    &[],
                ));
            }
        }
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.release(py);
    }
}
