//! Where the program's threads may run: a thread held beside the fault thread is let go before the
//! program could notice.
use std::ffi::c_char;

use libc::{FILE, cpu_set_t, pid_t, pthread_t};

use crate::agent::agent;
use crate::next::Next;

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

/// Functions of the C library, run with no thread held.
macro_rules! stands_before {
    ($(
        $next:ident = $name:literal,
        $function:ident($($argument:ident: $type:ty),*) -> $result:ty;
    )*) => {
        /// Looks up what the agent's own threads, too, will call.
        pub fn prepare() {
            Next::prepare(&[$(&$next),*]);
        }

        $(static $next: Next = Next::new($name);

        #[doc = concat!("Stands before `", stringify!($function), "`.\n\n# Safety\nAs that.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function($($argument: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the C library's function, with the caller's arguments.
            with_none_held(|| unsafe {
                let next: Function = std::mem::transmute($next.address());
                next($($argument),*)
            })
        })*
    };
}

stands_before! {
    SCHED_GETAFFINITY = c"sched_getaffinity",
    sched_getaffinity(pid: pid_t, size: usize, set: *mut cpu_set_t) -> i32;
    SCHED_SETAFFINITY = c"sched_setaffinity",
    sched_setaffinity(pid: pid_t, size: usize, set: *const cpu_set_t) -> i32;
    PTHREAD_GETAFFINITY = c"pthread_getaffinity_np",
    pthread_getaffinity_np(thread: pthread_t, size: usize, set: *mut cpu_set_t) -> i32;
    PTHREAD_SETAFFINITY = c"pthread_setaffinity_np",
    pthread_setaffinity_np(thread: pthread_t, size: usize, set: *const cpu_set_t) -> i32;
    // They start a program inside the C library.
    SYSTEM = c"system",
    system(command: *const c_char) -> i32;
    POPEN = c"popen",
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}
