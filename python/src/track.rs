//! Written pages, snapshots and restored memory.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagetide::track::{self, Memory, ParkThreads, Plan, SnapshotId};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors;
use crate::forked::Span;
use crate::leaving::detach;
use crate::memory::{Exports, Here, check_process};
use crate::region::{Region, Shared, lock, lock_attached};

/// Memory that is not paged: what `restore` brings back lazily.
#[pyclass(frozen, module = "pagetide", weakref)]
pub struct Mapping {
    mapping: Here<track::Mapping>,
    exports: Exports,
    _span: Span,
}

impl Mapping {
    fn of(py: Python<'_>, mapping: track::Mapping) -> PyResult<Mapping> {
        Ok(Mapping {
            _span: Span::new(py, mapping.as_ptr() as usize, mapping.len())?,
            mapping: Here::new(mapping),
            exports: Exports::default(),
        })
    }
}

#[pymethods]
impl Mapping {
    /// Maps `length` bytes of zeros.
    #[new]
    fn new(py: Python<'_>, length: usize) -> PyResult<Mapping> {
        Mapping::of(py, track::Mapping::new(length).map_err(errors::track)?)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.mapping.get()?.len())
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.mapping.get()?.as_ptr() as usize)
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let mapping = this.mapping.get()?;
        let bytes = (mapping.as_ptr(), mapping.len());
        // SAFETY: the interpreter's view; the memory lives as long as this object.
        unsafe { this.exports.fill(slf.as_any(), view, flags, bytes, false) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.release();
    }
}

/// What is tracked, and the regions that must not be closed meanwhile.
fn memory_of(name: &str, owner: &Bound<'_, PyAny>) -> PyResult<(Memory, Option<Shared>)> {
    if let Ok(region) = owner.cast::<Region>() {
        let shared = region.get().shared(owner.py())?;
        let memory = Memory::region(name, shared.get()?).map_err(errors::track)?;
        return Ok((memory, Some(shared)));
    }
    let mapping = owner.cast::<Mapping>()?.get().mapping.get()?;
    let memory = Memory::mapping(name, mapping).map_err(errors::track)?;
    Ok((memory, None))
}

/// Tells which bytes of a region or a mapping were written.
#[pyclass(frozen, subclass, module = "pagetide")]
pub struct Tracker {
    tracker: Mutex<Option<Here<Mutex<track::DirtyTracker>>>>,
    _region: Option<Shared>,
    pid: u32,
}

#[pymethods]
impl Tracker {
    #[new]
    fn new(py: Python<'_>, owner: &Bound<'_, PyAny>) -> PyResult<Tracker> {
        let (memory, region) = memory_of("array", owner)?;
        let tracker =
            detach(py, || track::DirtyTracker::new(vec![memory])).map_err(errors::track)?;
        Ok(Tracker {
            tracker: Mutex::new(Some(Here::new(Mutex::new(tracker)))),
            _region: region,
            pid: std::process::id(),
        })
    }

    /// What was written since it was last asked, as pairs of bytes.
    fn _take(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize)>> {
        check_process(self.pid)?;
        let taken = detach(py, || {
            let tracker = lock(&self.tracker);
            let tracker = tracker.as_ref()?;
            // Of this process, as was checked.
            let mut tracker = lock(tracker.get().ok()?);
            Some(tracker.take())
        });
        let Some(taken) = taken else {
            return Err(errors::error("ClosedError", "the tracker is closed", &[]));
        };
        let ranges = taken.map_err(errors::track)?.into_iter();
        Ok(ranges
            .map(|range| (range.offsets.start, range.offsets.end))
            .collect())
    }

    /// Ends the tracking.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        detach(py, || drop(lock(&self.tracker).take()));
        Ok(())
    }
}

fn id_of(text: &str) -> PyResult<SnapshotId> {
    let mut id = [0; 16];
    let is_hex = text.len() == 32 && text.is_ascii();
    for (index, byte) in id.iter_mut().enumerate() {
        let parsed = is_hex.then(|| u8::from_str_radix(&text[2 * index..2 * index + 2], 16));
        let Some(Ok(parsed)) = parsed else {
            let message = format!("'{text}' is no snapshot's identity: expected 32 hex digits");
            return Err(PyValueError::new_err(message));
        };
        *byte = parsed;
    }
    Ok(SnapshotId(id))
}

/// Takes snapshots of regions and mappings.
#[pyclass(frozen, subclass, module = "pagetide", weakref)]
pub struct Snapshotter {
    snapshotter: Mutex<Option<Arc<Here<track::Snapshotter>>>>,
    regions: Vec<Shared>,
    pid: u32,
}

#[pymethods]
impl Snapshotter {
    /// Of `parts`: names, each with its region or mapping.
    #[new]
    #[pyo3(signature = (parts, incremental=true, extra_memory=None))]
    fn new(
        py: Python<'_>,
        parts: &Bound<'_, PyDict>,
        incremental: bool,
        extra_memory: Option<usize>,
    ) -> PyResult<Snapshotter> {
        let mut builder = track::Snapshotter::builder().incremental(incremental);
        if let Some(bytes) = extra_memory {
            builder = builder.extra_memory(bytes);
        }
        let mut regions = Vec::new();
        for (name, owner) in parts {
            let (memory, region) = memory_of(name.extract()?, &owner)?;
            builder = builder.memory(memory);
            regions.extend(region);
        }
        let snapshotter = detach(py, || builder.build()).map_err(errors::snapshot)?;
        Ok(Snapshotter {
            snapshotter: Mutex::new(Some(Arc::new(Here::new(snapshotter)))),
            regions,
            pid: std::process::id(),
        })
    }

    /// Takes one into a new file at `path`, of what was written since the snapshot `since`, if
    /// that is given. All other threads hold still for a moment, but those that block all
    /// signals; `patience` is in seconds.
    #[pyo3(signature = (path, since, patience))]
    fn _take(
        &self,
        py: Python<'_>,
        path: PathBuf,
        since: Option<&str>,
        patience: f64,
    ) -> PyResult<Snapshot> {
        check_process(self.pid)?;
        let plan = match since {
            Some(since) => Plan::since(id_of(since)?),
            None => Plan::full(),
        };
        let patience = Duration::try_from_secs_f64(patience)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let snapshotter = lock_attached(py, &self.snapshotter).clone();
        let snapshotter = snapshotter
            .ok_or_else(|| errors::error("ClosedError", "the snapshotter is closed", &[]))?;
        let taker = snapshotter.get()?;
        let hold = ParkThreads { patience };
        let snapshot = detach(py, || taker.snapshot(path, plan.pre_armed(), hold))
            .map_err(errors::snapshot)?;
        Ok(Snapshot {
            id: snapshot.id().to_string(),
            pause: snapshot.pause(),
            snapshot: Mutex::new(Some(Here::new(snapshot))),
            report: Mutex::new(None),
            snapshotter: Mutex::new(Some(snapshotter)),
            pid: self.pid,
        })
    }

    /// Ends it: what is under way is cancelled, unless a snapshot is still to be waited for.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.pid)?;
        detach(py, || drop(lock(&self.snapshotter).take()));
        Ok(())
    }

    /// How many regions it is of.
    #[getter]
    fn _regions(&self) -> usize {
        self.regions.len()
    }
}

/// A snapshot that is being written, or was.
#[pyclass(frozen, subclass, module = "pagetide")]
pub struct Snapshot {
    id: String,
    pause: Duration,
    snapshot: Mutex<Option<Here<track::Snapshot>>>,
    /// The report as JSON, or what went wrong, once it is known.
    report: Mutex<Option<Result<String, String>>>,
    /// Until it is written: if that is dropped, it is cancelled.
    snapshotter: Mutex<Option<Arc<Here<track::Snapshotter>>>>,
    pid: u32,
}

impl Snapshot {
    /// Of the snapshot that is being written; none if its end was waited for.
    fn ask<T>(
        &self,
        py: Python<'_>,
        of: impl FnOnce(&track::Snapshot) -> T,
    ) -> PyResult<Option<T>> {
        check_process(self.pid)?;
        let snapshot = lock_attached(py, &self.snapshot);
        // Of this process, as was checked.
        Ok(snapshot.as_ref().and_then(|here| here.get().ok()).map(of))
    }
}

#[pymethods]
impl Snapshot {
    /// Its identity, for `since` and working sets: 32 hex digits.
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    /// Seconds for which the other threads were held still.
    #[getter]
    fn pause_seconds(&self) -> f64 {
        self.pause.as_secs_f64()
    }

    /// Pages done, and pages in all.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        self.ask(py, track::Snapshot::progress)
    }

    /// Whether the file is complete, or has failed.
    #[getter]
    fn finished(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ask(py, track::Snapshot::is_finished)?.unwrap_or(true))
    }

    /// Ends it without a file, unless it is complete.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, track::Snapshot::cancel).map(|_| ())
    }

    /// Waits for the file; the report as JSON.
    fn _wait(&self, py: Python<'_>) -> PyResult<String> {
        check_process(self.pid)?;
        let report = detach(py, || {
            let mut report = lock(&self.report);
            let snapshot = lock(&self.snapshot).take().and_then(Here::take);
            if let Some(snapshot) = snapshot {
                *report = Some(match snapshot.wait() {
                    Ok(done) => Ok(json(&done)),
                    Err(error) => Err(error.to_string()),
                });
                drop(lock(&self.snapshotter).take());
            }
            report.clone()
        });
        match report {
            Some(Ok(report)) => Ok(report),
            Some(Err(message)) => Err(errors::error("SnapshotError", &message, &[])),
            None => Err(errors::error("SnapshotError", "it was not taken", &[])),
        }
    }
}

fn json(report: &track::Report) -> String {
    serde_json::json!({
        "id": report.id.to_string(),
        "pause_seconds": report.pause.as_secs_f64(),
        "duration_seconds": report.duration.as_secs_f64(),
        "pages": report.pages,
        "pages_total": report.pages + report.zero_pages,
        "zero_pages": report.zero_pages,
        "file_bytes": report.file_bytes,
        "extra_bytes": report.extra_bytes,
        "faults": report.faults,
        "waits": report.waits,
    })
    .to_string()
}

/// A snapshot file and those it builds on.
#[pyclass(frozen, module = "pagetide")]
pub struct Image(track::Image);

#[pymethods]
impl Image {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Image> {
        let image = detach(py, || track::Image::open(path));
        Ok(Image(image.map_err(errors::file)?))
    }

    /// The identity of the newest file.
    #[getter]
    fn id(&self) -> String {
        self.0.files()[0].header().id.to_string()
    }

    /// Names of what it has, and their bytes.
    #[getter]
    fn regions(&self) -> Vec<(String, u64)> {
        let regions = self.0.regions().iter();
        regions
            .map(|region| (region.name.clone(), region.pages * 4096))
            .collect()
    }

    /// The first `length` bytes of region `name`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = vec![0; length];
        detach(py, || track::read_region(&self.0, name, &mut bytes)).map_err(errors::file)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads region `name` into `region`, which nobody else may use meanwhile.
    fn read_into(&self, py: Python<'_>, name: &str, region: &Bound<'_, Region>) -> PyResult<()> {
        let shared = region.get().shared(py)?;
        let into = shared.get()?;
        detach(py, || {
            // SAFETY: mapped as long as `shared`; it is new, and nobody else's.
            let bytes = unsafe { std::slice::from_raw_parts_mut(into.as_ptr(), into.len()) };
            track::read_region(&self.0, name, bytes)
        })
        .map_err(errors::file)
    }
}

/// Memory that is brought back page by page.
#[pyclass(frozen, module = "pagetide")]
pub struct Restored {
    restored: Here<track::Restored>,
    mappings: Here<Mutex<Vec<(String, track::Mapping)>>>,
}

#[pymethods]
impl Restored {
    /// Begins with the file at `path`; `working_set` is a file of one, to be fetched first.
    #[new]
    #[pyo3(signature = (path, record=false, working_set=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        record: bool,
        working_set: Option<PathBuf>,
    ) -> PyResult<Restored> {
        let image = detach(py, || track::Image::open(path)).map_err(errors::file)?;
        let mut plan = track::LazyPlan::default();
        if record {
            plan = plan.record();
        }
        if let Some(file) = working_set {
            let set = track::WorkingSet::load(file, image.files()[0].header().id)?;
            plan = plan.replay(set);
        }
        let names: Vec<String> = image.regions().iter().map(|r| r.name.clone()).collect();
        let mut restored = detach(py, || track::restore(image, plan)).map_err(errors::restore)?;
        let mut mappings = Vec::new();
        for name in names {
            mappings.extend(restored.take_region(&name).map(|mapping| (name, mapping)));
        }
        Ok(Restored {
            restored: Here::new(restored),
            mappings: Here::new(Mutex::new(mappings)),
        })
    }

    /// The memory of region `name`; once.
    fn take(&self, py: Python<'_>, name: &str) -> PyResult<Mapping> {
        let mut mappings = lock_attached(py, self.mappings.get()?);
        let at = mappings.iter().position(|(of, _)| of == name);
        let taken = at.map(|at| mappings.swap_remove(at).1);
        drop(mappings);
        let taken = taken.ok_or_else(|| {
            let message = format!("the snapshot has no region '{name}'");
            errors::error("SnapshotFileError", &message, &[])
        })?;
        Mapping::of(py, taken)
    }

    /// Whether all has been fetched.
    #[getter]
    fn complete(&self) -> PyResult<bool> {
        Ok(self.restored.get()?.is_complete())
    }

    /// Faults served so far.
    #[getter]
    fn faults(&self) -> PyResult<u64> {
        Ok(self.restored.get()?.faults())
    }

    /// Waits until all has been fetched.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let restored = self.restored.get()?;
        detach(py, || restored.wait()).map_err(errors::restore)
    }

    /// Writes what was touched so far, in its order, to a file.
    fn save_working_set(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let restored = self.restored.get()?;
        Ok(detach(py, || restored.working_set().save(path))?)
    }
}
