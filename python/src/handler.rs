//! numpy's allocation hook (NEP 49) over an [`Arena`].
#![allow(unsafe_code)]
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arena::Arena;
use crate::errors;
use crate::leaving::detach;
use crate::region::Region;

/// numpy's `PyDataMemAllocator`.
#[repr(C)]
struct Functions {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// numpy's `PyDataMem_Handler`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    functions: Functions,
    /// Not numpy's: the object that `region_of` gives lives as long as the arrays.
    _region: Py<Region>,
}

const NAME: &str = "pagetide";
const CAPSULE: &CStr = c"mem_handler";
/// Where numpy's table of functions has `PyDataMem_SetHandler`.
const SET_HANDLER: usize = 304;

fn arena<'a>(context: *mut c_void) -> &'a Arena {
    // SAFETY: the context is the arena of the capsule, which each array that uses it keeps alive.
    unsafe { &*context.cast::<Arena>() }
}

extern "C" fn malloc(context: *mut c_void, bytes: usize) -> *mut c_void {
    arena(context).allocate(bytes, false).cast()
}

extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => arena(context).allocate(bytes, true).cast(),
        None => ptr::null_mut(),
    }
}

unsafe extern "C" fn realloc(
    context: *mut c_void,
    address: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    match NonNull::new(address.cast()) {
        // SAFETY: numpy gives what it was given here.
        Some(address) => unsafe { arena(context).reallocate(address, bytes) }.cast(),
        None => malloc(context, bytes),
    }
}

unsafe extern "C" fn free(context: *mut c_void, address: *mut c_void, _bytes: usize) {
    if let Some(address) = NonNull::new(address.cast()) {
        // SAFETY: as in `realloc`.
        unsafe { arena(context).free(address) };
    }
}

unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    let end = || {
        // SAFETY: the capsule is one of those made below, and is used no more.
        unsafe {
            let handler = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr());
            let handler = Box::from_raw(handler.cast::<Handler>());
            drop(Arc::from_raw(handler.functions.context.cast::<Arena>()));
        }
    };
    // So that the region goes at once; when the interpreter ends, it goes with the process.
    if Python::try_attach(|_| end()).is_none() {
        end();
    }
}

/// What numpy takes for a handler; it keeps `arena`.
fn capsule(region: &Bound<'_, Region>, arena: Arc<Arena>) -> PyResult<Py<PyAny>> {
    let py = region.py();
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(NAME.bytes()) {
        *to = from as c_char;
    }
    let handler = Box::new(Handler {
        name,
        version: 1,
        functions: Functions {
            context: Arc::into_raw(arena).cast_mut().cast(),
            malloc,
            calloc,
            realloc,
            free,
        },
        _region: region.clone().unbind(),
    });
    let handler = Box::into_raw(handler).cast();
    // SAFETY: a new capsule, of what lives until its destructor is called.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler, CAPSULE.as_ptr(), Some(end_capsule));
        Bound::from_owned_ptr_or_err(py, capsule).map(Bound::unbind)
    }
}

/// numpy's `PyDataMem_SetHandler`.
type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// Found once: when the interpreter ends nothing can be imported any more, and an arena that a
/// generator is in is left then.
static FOUND: OnceLock<SetHandler> = OnceLock::new();

fn find(py: Python<'_>) -> PyResult<SetHandler> {
    let numpy = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let table = numpy.getattr("_ARRAY_API")?;
    // SAFETY: a capsule without a name, as numpy makes it; or null with an exception.
    let table = unsafe { ffi::PyCapsule_GetPointer(table.as_ptr(), ptr::null()) };
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: since numpy 1.22 this entry of the table is the function, and entries never move.
    let set: Option<SetHandler> =
        unsafe { table.cast::<Option<SetHandler>>().add(SET_HANDLER).read() };
    set.ok_or_else(|| {
        PyImportError::new_err("this numpy has no allocation handlers: use 1.22 or later")
    })
}

/// Has numpy allocate by `handler`, in this thread's context, and returns the handler before it.
#[pyfunction]
pub fn set_handler(py: Python<'_>, handler: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let set = match FOUND.get() {
        Some(set) => *set,
        None => {
            let set = find(py)?;
            *FOUND.get_or_init(|| set)
        }
    };
    // SAFETY: a capsule of a handler, by numpy's own check of its name.
    unsafe { Bound::from_owned_ptr_or_err(py, set(handler.as_ptr())) }.map(Bound::unbind)
}

/// The memory of `pagetide.numpy`.
#[pyclass(frozen, subclass, module = "pagetide", name = "Arena")]
pub struct PyArena {
    arena: Arc<Arena>,
    handler: Py<PyAny>,
}

#[pymethods]
impl PyArena {
    #[new]
    fn new(region: &Bound<'_, Region>, small: usize, retained_max: u64) -> PyResult<PyArena> {
        let shared = region.get().shared(region.py())?;
        let span = region.get().span();
        if small < 4096 {
            return Err(errors::error(
                "ArenaError",
                "small is at least a page, 4096",
                &[],
            ));
        }
        let arena = Arc::new(Arena::new(shared, span, small, retained_max));
        let handler = capsule(region, Arc::clone(&arena))?;
        Ok(PyArena { arena, handler })
    }

    /// What numpy takes.
    #[getter]
    fn _handler(&self, py: Python<'_>) -> Py<PyAny> {
        self.handler.clone_ref(py)
    }

    /// Arrays, and bytes: used, the most used, freed and not given back.
    fn _usage(&self) -> (u64, u64, u64, u64) {
        let usage = self.arena.usage();
        (usage.arrays, usage.used, usage.used_max, usage.retained)
    }

    /// Gives back what was freed.
    fn _purge(&self, py: Python<'_>) -> PyResult<()> {
        detach(py, || self.arena.purge())
    }
}
