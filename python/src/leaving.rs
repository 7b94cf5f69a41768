//! Calls that let the interpreter run others meanwhile, and its end.
//!
//! Before CPython 3.14 a daemon thread that comes back to an interpreter that is ending is ended by
//! unwinding its stack, which functions of Rust do not survive: the process aborted. So a thread that
//! comes back once the program is over stays where it is instead, as 3.14 has it.
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// How often, and for how long each time, the end waits for who is on the way back.
const TURNS: u32 = 1000;
const TURN: Duration = Duration::from_millis(1);

/// The program is over.
static OVER: AtomicBool = AtomicBool::new(false);
/// Threads that are on the way back, and will get there.
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

/// From here on the interpreter's end waits for this thread; or it has begun.
fn set_out() {
    RETURNING.fetch_add(1, SeqCst);
    if OVER.load(SeqCst) && !ENDS_IT.get() {
        RETURNING.fetch_sub(1, SeqCst);
        loop {
            std::thread::park();
        }
    }
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

/// Who was on the way back in the parent is not here.
#[pyfunction]
fn in_child() {
    RETURNING.store(0, SeqCst);
}
