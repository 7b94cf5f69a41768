//! Calls that let the interpreter run others meanwhile, or run Python code, and its end.
//!
//! Before CPython 3.14 a daemon thread that comes back to an interpreter that is ending is ended by
//! unwinding its stack, which functions of Rust do not survive: the process aborted. So a thread that
//! comes back then stays where it is instead, as 3.14 has it.
#![allow(unsafe_code)]
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// How often, and for how long each time, the end waits for who is on the way back.
const TURNS: u32 = 1000;
const TURN: Duration = Duration::from_millis(1);
/// After so long what is at work is another handler of the end's, which may wait for this thread.
const PATIENCE: Duration = Duration::from_millis(20);

/// The program is over: handlers of its end run, and then the interpreter ends.
static OVER: AtomicBool = AtomicBool::new(false);
/// Threads that are on the way back, or run Python code from here, and will get there.
static RETURNING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread ends the interpreter, and goes on until it has.
    static ENDS_IT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call` while the interpreter may run others.
pub fn detach<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    let result = py.detach(|| {
        let result = call();
        set_out();
        result
    });
    RETURNING.fetch_sub(1, SeqCst);
    result
}

/// Runs `call`, which runs Python code, and so may let others run, too.
pub fn with_python<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    RETURNING.fetch_add(1, SeqCst);
    if is_over() {
        RETURNING.fetch_sub(1, SeqCst);
        py.detach(set_out);
    }
    let result = call();
    RETURNING.fetch_sub(1, SeqCst);
    result
}

fn is_over() -> bool {
    OVER.load(SeqCst) && !ENDS_IT.get()
}

/// From here on the interpreter's end waits for this thread; or it has begun, and the thread stays.
fn set_out() {
    RETURNING.fetch_add(1, SeqCst);
    if is_over() {
        RETURNING.fetch_sub(1, SeqCst);
        std::thread::sleep(PATIENCE);
        while is_finalizing() {
            std::thread::park();
        }
        RETURNING.fetch_add(1, SeqCst);
    }
}

/// Whether the interpreter has run the last handler of its end.
fn is_finalizing() -> bool {
    // The stable interface has it from 3.13 on, and the library under another name before.
    [c"Py_IsFinalizing", c"_Py_IsFinalizing"]
        .iter()
        .any(|name| {
            // SAFETY: the name is a C string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: a function of the interpreter's, without arguments, that may be called at any
            // time.
            let ask = (!found.is_null()).then(|| unsafe {
                std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_int>(found)
            });
            // SAFETY: the same.
            ask.is_some_and(|ask| unsafe { ask() } != 0)
        })
}

/// Has the interpreter call this module when the program is over.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let hook = wrap_pyfunction!(at_end, py)?;
    py.import("atexit")?.call_method1("register", (hook,))?;
    let hook = [("after_in_child", wrap_pyfunction!(in_child, py)?)];
    py.import("os")?
        .call_method("register_at_fork", (), Some(&hook.into_py_dict(py)?))?;
    Ok(())
}

/// Called when the threads that are no daemons have ended, and Python still runs.
#[pyfunction]
fn at_end(py: Python<'_>) {
    ENDS_IT.set(true);
    OVER.store(true, SeqCst);
    for _ in 0..TURNS {
        if RETURNING.load(SeqCst) == 0 {
            break;
        }
        py.detach(|| std::thread::sleep(TURN));
    }
}

/// Who was on the way back in the parent is not here, and the child's program goes on.
#[pyfunction]
fn in_child() {
    RETURNING.store(0, SeqCst);
    OVER.store(false, SeqCst);
    ENDS_IT.set(false);
}
