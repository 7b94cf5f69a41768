//! The part of the Python package that is not Python: see docs/python.md.
#![deny(unsafe_code)]
use pyo3::prelude::*;

mod arena;
mod errors;
mod forked;
mod handler;
mod leaving;
mod locked;
mod memory;
mod pages;
mod region;
mod track;

/// Panics of Python's own threads become exceptions. One of Pagetide's threads has nobody to tell,
/// and memory that nobody serves: it ends the process, as it does in other programs.
fn end_process_when_own_threads_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let thread = std::thread::current();
        if thread
            .name()
            .is_some_and(|name| name.starts_with("pagetide"))
        {
            std::process::abort();
        }
    }));
}

#[pymodule(gil_used = false)]
mod _pagetide {
    use super::end_process_when_own_threads_panic;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::handler::{PyArena, set_handler};
    #[pymodule_export]
    use crate::locked::{LockedFile, SecretBytes};
    #[pymodule_export]
    use crate::region::{Pin, Region};

    #[pymodule_export]
    use crate::track::{Image, Mapping, Restored, Snapshot, Snapshotter, Tracker};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        end_process_when_own_threads_panic();
        crate::leaving::install(module.py())
    }
}
