//! Where the program's threads may run: a thread held beside the fault thread is let go before the
//! program could notice.
use std::ffi::c_char;

use crate::next::Next;
use crate::start::agent;

static SCHED_GETAFFINITY: Next = Next::new(c"sched_getaffinity");
static SCHED_SETAFFINITY: Next = Next::new(c"sched_setaffinity");
static PTHREAD_GETAFFINITY: Next = Next::new(c"pthread_getaffinity_np");
static PTHREAD_SETAFFINITY: Next = Next::new(c"pthread_setaffinity_np");
static SYSTEM: Next = Next::new(c"system");
static POPEN: Next = Next::new(c"popen");

/// Looks up what the agent's own threads, too, will call.
pub fn prepare() {
    Next::prepare(&[
        &SCHED_GETAFFINITY,
        &SCHED_SETAFFINITY,
        &PTHREAD_GETAFFINITY,
        &PTHREAD_SETAFFINITY,
        &SYSTEM,
        &POPEN,
    ]);
}

/// Before a thread or a program is started, or processors are asked for.
pub fn let_go() {
    if let Some(agent) = agent() {
        agent.pager.let_threads_go();
    }
}

/// Runs `call`, which starts a thread or a program or asks for processors, with no thread held. A
/// thread that is cancelled in it leaves here without a word (and there may be nothing here to be
/// unwound); then none is held ever after, which costs only time.
pub fn with_none_held<R>(call: impl FnOnce() -> R) -> R {
    let Some(agent) = agent() else {
        return call();
    };
    agent.pager.begin_call();
    let result = call();
    agent.pager.end_call();
    result
}

/// Stands before `sched_getaffinity`.
///
/// # Safety
/// As `sched_getaffinity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_getaffinity(
    pid: libc::pid_t,
    size: usize,
    set: *mut libc::cpu_set_t,
) -> i32 {
    type Get = unsafe extern "C" fn(libc::pid_t, usize, *mut libc::cpu_set_t) -> i32;
    // SAFETY: the C library's function, with the caller's arguments.
    with_none_held(|| unsafe {
        let next: Get = std::mem::transmute(SCHED_GETAFFINITY.address());
        next(pid, size, set)
    })
}

/// Stands before `sched_setaffinity`.
///
/// # Safety
/// As `sched_setaffinity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_setaffinity(
    pid: libc::pid_t,
    size: usize,
    set: *const libc::cpu_set_t,
) -> i32 {
    type Set = unsafe extern "C" fn(libc::pid_t, usize, *const libc::cpu_set_t) -> i32;
    // SAFETY: the C library's function, with the caller's arguments.
    with_none_held(|| unsafe {
        let next: Set = std::mem::transmute(SCHED_SETAFFINITY.address());
        next(pid, size, set)
    })
}

/// Stands before `pthread_getaffinity_np`.
///
/// # Safety
/// As `pthread_getaffinity_np`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_getaffinity_np(
    thread: libc::pthread_t,
    size: usize,
    set: *mut libc::cpu_set_t,
) -> i32 {
    type Get = unsafe extern "C" fn(libc::pthread_t, usize, *mut libc::cpu_set_t) -> i32;
    // SAFETY: the C library's function, with the caller's arguments.
    with_none_held(|| unsafe {
        let next: Get = std::mem::transmute(PTHREAD_GETAFFINITY.address());
        next(thread, size, set)
    })
}

/// Stands before `pthread_setaffinity_np`.
///
/// # Safety
/// As `pthread_setaffinity_np`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setaffinity_np(
    thread: libc::pthread_t,
    size: usize,
    set: *const libc::cpu_set_t,
) -> i32 {
    type Set = unsafe extern "C" fn(libc::pthread_t, usize, *const libc::cpu_set_t) -> i32;
    // SAFETY: the C library's function, with the caller's arguments.
    with_none_held(|| unsafe {
        let next: Set = std::mem::transmute(PTHREAD_SETAFFINITY.address());
        next(thread, size, set)
    })
}

/// Stands before `system`, which starts a program inside the C library.
///
/// # Safety
/// As `system`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> i32 {
    type System = unsafe extern "C" fn(*const c_char) -> i32;
    // SAFETY: the C library's function, with the caller's argument.
    with_none_held(|| unsafe {
        let next: System = std::mem::transmute(SYSTEM.address());
        next(command)
    })
}

/// Stands before `popen`, which starts a program inside the C library.
///
/// # Safety
/// As `popen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    // SAFETY: the C library's function, with the caller's arguments.
    with_none_held(|| unsafe {
        let next: Popen = std::mem::transmute(POPEN.address());
        next(command, mode)
    })
}
