//! Faults that were under way when their trap was removed.
//!
//! Whoever removes a trap has made its memory accessible before. A thread whose fault the kernel
//! raised just before that may find the trap gone: its access is to be tried again. A fault that is
//! somebody else's, in memory where a trap once was, is to be passed on. They are told apart by
//! trying again once: each thread, for each page, after each removal.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::page::PageRange;

/// Removed ranges remembered.
const REMOVED_MAX: usize = 1024;
/// Tries remembered, at a place that depends on the thread.
const TRIES_MAX: usize = 256;

struct Removed {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Number of the removal; 0 while the entry is being written.
    number: AtomicU64,
}

static REMOVED: [Removed; REMOVED_MAX] = [const {
    Removed {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        number: AtomicU64::new(0),
    }
}; REMOVED_MAX];
static REMOVALS: AtomicU64 = AtomicU64::new(0);
static TRIES: [AtomicU64; TRIES_MAX] = [const { AtomicU64::new(0) }; TRIES_MAX];

/// Notes that the trap over `range` goes.
pub(super) fn note(range: PageRange) {
    let number = REMOVALS.fetch_add(1, SeqCst) + 1;
    let entry = &REMOVED[number as usize % REMOVED_MAX];
    entry.number.store(0, SeqCst);
    entry.start.store(range.address(), SeqCst);
    entry.end.store(range.address() + range.bytes(), SeqCst);
    entry.number.store(number, SeqCst);
}

/// Whether this thread's fault at `address` may be one of a trap just removed, and has not been
/// tried again yet. Runs in a signal handler.
pub(super) fn try_again(address: usize) -> bool {
    let last = REMOVED
        .iter()
        .map(|entry| {
            let number = entry.number.load(SeqCst);
            let within = entry.start.load(SeqCst) <= address && address < entry.end.load(SeqCst);
            let same = entry.number.load(SeqCst) == number;
            if within && same { number } else { 0 }
        })
        .max()
        .unwrap_or(0);
    if last == 0 {
        return false;
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
    // One word for thread, page and removal: mixed, so that two of them hardly ever look the same.
    let mixed = (thread ^ (address as u64 >> 12).rotate_left(24) ^ last.rotate_left(48))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        | 1;
    TRIES[thread as usize % TRIES_MAX].swap(mixed, SeqCst) != mixed
}
