//! Forked children: the kernel drops all locks in them, and the registry's are taken again.
// `pthread_atfork` is an interface of the C library.
#![allow(unsafe_code)]
use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_kernel::mlock as kernel;
use pagetide_kernel::{PageRange, maps::Maps};
use rustix::io::Errno;

use super::flags::Mode;
use super::journal::Journal;
use super::registry::Segment;
use super::state::{Guard, State, state};

/// What a forked child does with the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPolicy {
    /// Locks every range again before `fork` returns in the child, and future locking is on again if it was. A full lock of private memory that was written
    /// copies it there. The child has a lock limit of its own, of the same size.
    Relock,
    /// Starts with nothing locked. Owners keep their memory and lose their locks.
    Drop,
}

/// What children do from now on; [`ForkPolicy::Relock`] if never said. The child inherits it.
pub fn set_fork_policy(policy: ForkPolicy) {
    arm();
    state().policy = policy;
}

/// What a forked child will do.
pub fn fork_policy() -> ForkPolicy {
    state().policy
}

/// In a forked child: why some range could not be locked again, if so. Those ranges are not locked and not in the registry.
pub fn fork_error() -> Option<Errno> {
    state().fork_error
}

/// Sees to it that children made with the C library's `fork` are handled. Children of bare `clone` calls are not: they have no locks, and a registry that
/// says they have.
pub(super) fn arm() {
    static ARMED: Once = Once::new();
    ARMED.call_once(|| {
        // SAFETY: the handlers live as long as the process; a failure (no memory) leaves children without locks, as the kernel does.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// How many forks lie between the first process and this one; changes in every child.
pub(super) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The guard between the handlers, which run on the forking thread.
struct Parked(UnsafeCell<Option<Guard>>);
// SAFETY: only reached by the handlers while the state's lock is held by the thread that forks.
unsafe impl Sync for Parked {}
static PARKED: Parked = Parked(UnsafeCell::new(None));

extern "C" fn before() {
    let guard = state();
    // SAFETY: the state's lock is held, so no other thread is between these handlers.
    unsafe { *PARKED.0.get() = Some(guard) };
}

fn unpark() -> Option<Guard> {
    // SAFETY: as in `before`: this thread holds the lock, through the guard taken here.
    unsafe { (*PARKED.0.get()).take() }
}

extern "C" fn in_parent() {
    drop(unpark());
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let Some(mut state) = unpark() else { return };
    match state.policy {
        ForkPolicy::Relock => relock(&mut state),
        ForkPolicy::Drop => {
            state.registry = Journal::new();
            state.future = None;
            state.future_ever = false;
        }
    }
}

fn relock(state: &mut State) {
    state.fork_error = None;
    if let Some(mode) = state.future {
        let on_fault = if mode == Mode::OnFault {
            kernel::MCL_ONFAULT
        } else {
            0
        };
        if let Err(errno) = kernel::mlockall(kernel::MCL_FUTURE | on_fault) {
            state.fork_error = Some(errno);
            state.future = None;
        }
    }
    let segments: Vec<Segment> = state.registry.now().iter().collect();
    for Segment { range, mut holders } in segments {
        // Other code's locks have ended here with the kernel's.
        holders.foreign = None;
        let Some(mode) = holders.mode() else { continue };
        let lock = |part: PageRange| kernel::mlock2(part.address(), part.bytes(), mode.kernel());
        if lock(range).is_ok() {
            state.registry.now().update(range, |_| holders);
            continue;
        }
        // Parts of it may not have been inherited.
        let mut present = Vec::new();
        if let Ok(mut maps) = Maps::open() {
            let _ = maps.for_each(|mapping| present.push(mapping.range.intersection(range)));
        }
        state.registry.forget(range);
        for part in present.into_iter().filter(|part| !part.is_empty()) {
            match lock(part) {
                Ok(()) => state.registry.now().update(part, |_| holders),
                Err(errno) => state.fork_error = Some(errno),
            }
        }
    }
}
