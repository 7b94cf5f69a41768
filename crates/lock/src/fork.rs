//! Forked children: the kernel drops all locks in them, and the registry's are taken again.
// `pthread_atfork` is an interface of the C library.
#![allow(unsafe_code)]
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pagetide_kernel::maps::Maps;
use pagetide_kernel::mlock as kernel;
use pagetide_kernel::wiped::WipedWord;
use rustix::io::Errno;

use super::flags::{ForkPolicy, Mode};
use super::journal::Journal;
use super::registry::Segment;
use super::state::{self, Guard, State, everything};

/// Takes the state, of this process and no other. Held across system calls: a full lock of much
/// memory makes others wait.
pub(super) fn state() -> Guard {
    attend();
    Guard::take()
}

/// What children do from now on; [`ForkPolicy::Relock`] if never said. The child inherits it.
pub fn set_fork_policy(policy: ForkPolicy) {
    state().policy = policy;
}

/// What a forked child will do.
pub fn fork_policy() -> ForkPolicy {
    state().policy
}

/// In a forked child: why some range could not be locked again, if so. Those ranges are not locked
/// and not in the registry.
pub fn fork_error() -> Option<Errno> {
    state().fork_error
}

/// How many forks lie between the first process and this one; changes in every child.
pub(super) fn generation() -> u64 {
    attend();
    GENERATION.load(Ordering::Relaxed)
}

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Whether this process has been seen to. Where children have the word as it was, those that the
/// handlers do not see to are not noticed.
static MARK: WipedWord = WipedWord::new();
const NEW: u64 = 0;
const BEING_SEEN_TO: u64 = 1;
const KNOWN: u64 = 2;
/// There was a process before a fork, or this one is it.
static STARTED: AtomicBool = AtomicBool::new(false);
static HANDLERS: AtomicBool = AtomicBool::new(false);

/// Sees to this process, if nobody has: children are to be handled from now on, and a child that
/// was not (of a bare `clone`, or of a fork that another thread made while the first of these calls
/// was under way) begins anew, as it has no locks and what it knows of them may be half done.
fn attend() {
    let mark = MARK.get();
    while mark.load(Ordering::Acquire) != KNOWN {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        if mark
            .compare_exchange(NEW, BEING_SEEN_TO, order, failed)
            .is_err()
        {
            std::thread::yield_now();
            continue;
        }
        if STARTED.swap(true, Ordering::AcqRel) {
            let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
            // SAFETY: whoever held the guard or the state is not in this process, and nobody here
            // gets at them before `KNOWN`.
            unsafe {
                PARKED.0.get().write(None);
                state::begin_anew(generation);
            }
            PARKED_BY.store(0, Ordering::Relaxed);
        }
        if !HANDLERS.load(Ordering::Acquire) {
            // SAFETY: the handlers live as long as the process. A failure (no memory) leaves
            // children without locks, as the kernel does. Twice is once: see `before`.
            unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
            HANDLERS.store(true, Ordering::Release);
        }
        mark.store(KNOWN, Ordering::Release);
    }
}

/// The guard between the handlers, which run on the forking thread.
struct Parked(UnsafeCell<Option<std::mem::ManuallyDrop<Guard>>>);
// SAFETY: only reached by the handlers while the state's lock is held by the thread that forks, and
// by `attend` while nobody else does.
unsafe impl Sync for Parked {}
static PARKED: Parked = Parked(UnsafeCell::new(None));
/// The thread that is between the handlers, which is the same in the child.
static PARKED_BY: AtomicUsize = AtomicUsize::new(0);

fn this_thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

extern "C" fn before() {
    if PARKED_BY.load(Ordering::Relaxed) == this_thread() {
        // Registered twice: a fork came while they were.
        return;
    }
    let guard = state();
    // SAFETY: the state's lock is held, so no other thread is between these handlers.
    unsafe { *PARKED.0.get() = Some(std::mem::ManuallyDrop::new(guard)) };
    PARKED_BY.store(this_thread(), Ordering::Relaxed);
}

fn unpark() -> Option<Guard> {
    if PARKED_BY.load(Ordering::Relaxed) != this_thread() {
        return None;
    }
    PARKED_BY.store(0, Ordering::Relaxed);
    // SAFETY: as in `before`: this thread holds the lock, through the guard taken here.
    let guard = unsafe { (*PARKED.0.get()).take() };
    guard.map(std::mem::ManuallyDrop::into_inner)
}

extern "C" fn in_parent() {
    drop(unpark());
}

extern "C" fn in_child() {
    // A child whose fork was not seen to begins anew at its first call.
    let Some(mut state) = unpark() else { return };
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    MARK.get().store(KNOWN, Ordering::Release);
    match state.policy {
        ForkPolicy::Relock => relock(&mut state, generation),
        ForkPolicy::Drop => {
            state.registry = Journal::new();
            state.future = None;
            state.future_ever = false;
            state.foreign_before.clear();
            state.fork_error = None;
            state.lost = vec![(generation, everything())];
        }
    }
}

fn relock(state: &mut State, generation: u64) {
    state.fork_error = None;
    state.foreign_before.clear();
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
        let refused = match mode.lock_anyway(range) {
            Ok(()) => {
                state.registry.now().update(range, |_| holders);
                continue;
            }
            Err(errno) => errno,
        };
        // Parts of it may not have been inherited.
        let mut present = Vec::new();
        let listed = Maps::open().and_then(|mut maps| {
            maps.for_each(|mapping| present.push(mapping.range.intersection(range)))
        });
        if listed.is_err() {
            present = vec![range];
            state.fork_error = Some(refused);
        }
        state.registry.forget(range);
        state.lost.push((generation, range));
        for part in present.into_iter().filter(|part| !part.is_empty()) {
            match mode.lock_anyway(part) {
                Ok(()) => {
                    state.registry.now().update(part, |_| holders);
                    state.found_again(generation, part);
                }
                Err(errno) => state.fork_error = Some(errno),
            }
        }
    }
}
