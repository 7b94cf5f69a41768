//! Agent work on the program's threads, done on a stack of the agent's own.
//!
//! A program's stack may be governed (a coroutine's, a recycled thread stack). A thread that
//! touched a missing page of it while holding a lock that the pager's threads take as well would
//! wait for them, and they for it. So such work is done on this stack, one thread at a time, with
//! signals blocked. The lock about it is taken by the program's threads only.
use std::sync::OnceLock;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::Lock;
use pagetide_kernel::thread::{call_on_stack, set_signal_mask};

/// `pthread_atfork` handlers of the program run on it, too.
const STACK_BYTES: usize = 1 << 20;
const ALL_SIGNALS: u64 = u64::MAX;

static STACK: OnceLock<Mapping> = OnceLock::new();
static TURN: Lock = Lock::new();

/// Sets the stack aside. Called once, early.
pub fn prepare() {
    if let Ok(stack) = Mapping::new(STACK_BYTES) {
        let _ = STACK.set(stack);
    }
}

struct Call<F, R> {
    work: Option<F>,
    result: Option<R>,
}

extern "C" fn enter<F: FnOnce() -> R, R>(data: *mut ()) {
    // SAFETY: `with` passes its own `Call`, which outlives this call.
    let call = unsafe { &mut *data.cast::<Call<F, R>>() };
    call.result = call.work.take().map(|work| work());
}

/// Runs `work` on the agent's stack. Not to be nested. A fork inside goes on in the child in the
/// same place.
pub fn with<F: FnOnce() -> R, R>(work: F) -> R {
    let mut call = Call {
        work: Some(work),
        result: None,
    };
    let mask = set_signal_mask(ALL_SIGNALS);
    let turn = TURN.lock();
    match STACK.get() {
        Some(stack) => {
            let top = stack.as_ptr().wrapping_add(stack.len());
            // SAFETY: the top of a page-aligned mapping, ours alone while TURN is held; panics
            // abort, so nothing unwinds.
            unsafe { call_on_stack(top, enter::<F, R>, (&raw mut call).cast()) };
        }
        None => enter::<F, R>((&raw mut call).cast()),
    }
    drop(turn);
    set_signal_mask(mask);
    call.result.expect("the work was done")
}
