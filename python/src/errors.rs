//! From Pagetide's errors to Python's: a class of `pagetide.errors`, a message, and the numbers as
//! attributes.
use pagetide::RegionError;
use pagetide::lock::LockError;
use pagetide::track::{FileError, RestoreError, SnapshotError, TrackError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::leaving::with_python;

/// An attribute of an exception.
pub enum Value {
    /// Bytes, pages, a count.
    Number(u64),
}

/// The exception `class` of `pagetide.errors`, or what kept it from being made.
pub fn error(class: &str, message: &str, attributes: &[(&str, Value)]) -> PyErr {
    Python::attach(|py| {
        let make = || -> PyResult<PyErr> {
            let kwargs = PyDict::new(py);
            for (name, value) in attributes {
                match value {
                    Value::Number(number) => kwargs.set_item(*name, *number)?,
                }
            }
            let class = py.import("pagetide.errors")?.getattr(class)?;
            Ok(PyErr::from_value(class.call((message,), Some(&kwargs))?))
        };
        with_python(py, || make().unwrap_or_else(|error| error))
    })
}

/// What went wrong with a region.
pub fn region(error_: RegionError) -> PyErr {
    use Value::Number;
    let message = error_.to_string();
    match error_ {
        RegionError::Length(bytes) => {
            error("ShapeError", &message, &[("bytes", Number(bytes as u64))])
        }
        RegionError::Start(_) => error("StartError", &message, &[]),
        RegionError::Store(_) => error("StoreError", &message, &[]),
        RegionError::Range(range, length) => {
            let attributes = [
                ("start", Number(range.start as u64)),
                ("stop", Number(range.end as u64)),
                ("length", Number(length as u64)),
            ];
            error("RangeError", &message, &attributes)
        }
        RegionError::Pinned(pages, budget) => {
            let attributes = [("pages", Number(pages)), ("budget_pages", Number(budget))];
            error("PinError", &message, &attributes)
        }
        RegionError::PinCount(most) => error("PinError", &message, &[("pins", Number(most))]),
        RegionError::Budget(bytes, _) => {
            error("BudgetError", &message, &[("budget_bytes", Number(bytes))])
        }
        RegionError::Load(_) => error("LostError", &message, &[]),
        RegionError::Observed => error("InUseError", &message, &[]),
        RegionError::Signal(_) | RegionError::Delivery(_) => error("StartError", &message, &[]),
    }
}

/// What went wrong with tracking.
pub fn track(error_: TrackError) -> PyErr {
    let class = match error_ {
        TrackError::Taken(..) => "InUseError",
        TrackError::Open(_) | TrackError::Feature(_) => "StartError",
        _ => "TrackError",
    };
    error(class, &error_.to_string(), &[])
}

/// What went wrong with a snapshot.
pub fn snapshot(error_: SnapshotError) -> PyErr {
    match error_ {
        SnapshotError::Track(error_) => track(error_),
        _ => error("SnapshotError", &error_.to_string(), &[]),
    }
}

/// What is wrong with a file of a snapshot.
pub fn file(error_: FileError) -> PyErr {
    error("SnapshotFileError", &error_.to_string(), &[])
}

/// What kept a snapshot from being restored.
pub fn restore(error_: RestoreError) -> PyErr {
    let class = match error_ {
        RestoreError::File(_) => "SnapshotFileError",
        RestoreError::System(_) => "StartError",
        RestoreError::Map(..) | RestoreError::Address { .. } | RestoreError::Install(_) => {
            "SnapshotError"
        }
    };
    error(class, &error_.to_string(), &[])
}

/// What kept memory from being locked.
pub fn lock(error_: &LockError) -> PyErr {
    let mut attributes = vec![("errno", Value::Number(error_.errno().raw_os_error() as u64))];
    if let Some(report) = error_.report() {
        attributes.push(("needed_bytes", Value::Number(report.needed)));
        attributes.push(("in_use_bytes", Value::Number(report.in_use)));
    }
    error("LockError", &error_.to_string(), &attributes)
}
