//! What the registry adds to the system calls, for one thread and for many at once.
#![allow(unsafe_code)] // maps memory
use std::io::{Error, Result};
use std::time::Instant;

use pagetide::lock::{self, LockFlags};
use pagetide_kernel::mlock;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::statistics::median;

const PAGE: usize = 4096;
/// Calls in a round; rounds alternate between the library and the bare calls.
const CALLS: usize = 2_000;

/// Threads that lock at once.
const THREADS: usize = 64;

/// Nanoseconds a call, of a lock and of an unlock, with and without the registry.
#[derive(Debug, Clone, Copy, serde::Serialize)]
#[allow(missing_docs)]
pub struct Cost {
    pub ranges: usize,
    pub lock_ns: f64,
    pub bare_lock_ns: f64,
    pub unlock_ns: f64,
    pub bare_unlock_ns: f64,
    pub threads: usize,
    /// Of all threads together: time over calls, locks and unlocks in turns.
    pub threads_ns: f64,
    pub bare_threads_ns: f64,
}

type Call = fn(usize) -> Result<()>;

/// A way to lock and unlock the page at an address: through the library, or by the bare calls.
#[derive(Clone, Copy)]
struct Way {
    lock: Call,
    unlock: Call,
}

fn other(error: lock::LockError) -> Error {
    Error::other(error.to_string())
}

const LIBRARY: Way = Way {
    lock: |page| lock::mlock2(page as *const u8, PAGE, LockFlags::ONFAULT).map_err(other),
    unlock: |page| lock::munlock(page as *const u8, PAGE).map_err(other),
};

const BARE: Way = Way {
    lock: |page| Ok(mlock::mlock2(page, PAGE, mlock::MLOCK_ONFAULT)?),
    unlock: |page| Ok(mlock::munlock(page, PAGE)?),
};

/// Four pages a range: held, free, measured, free.
#[derive(Clone, Copy)]
struct Pages {
    start: usize,
    ranges: usize,
}

impl Pages {
    fn at(self, range: usize, page: usize) -> usize {
        self.start + (range * 4 + page) * PAGE
    }

    /// Nanoseconds of a call on pages spread over all ranges, in an order without neighbours.
    fn timed(self, call: Call) -> Result<f64> {
        let began = Instant::now();
        (0..CALLS).try_for_each(|i| call(self.at(i.wrapping_mul(7919) % self.ranges, 2)))?;
        Ok(began.elapsed().as_nanos() as f64 / CALLS as f64)
    }
}

/// With so many ranges held, spread so that none merge: locks and unlocks pages between them.
pub fn measure(ranges: usize, runs: usize) -> Result<Cost> {
    let len = ranges * 4 * PAGE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice, never touched.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
    let pages = Pages {
        start: start as usize,
        ranges,
    };
    (0..ranges).try_for_each(|range| (LIBRARY.lock)(pages.at(range, 0)))?;
    // Of the library and bare: locks, unlocks, and both by many threads.
    let mut times = [const { [const { Vec::new() }; 3] }; 2];
    // Whoever comes second finds what the first has left of the kernel's caches of mappings, so
    // they take turns at it; a first round is not counted.
    for run in 0..=runs {
        let mut order = [0, 1];
        order.rotate_left(run % 2);
        for index in order {
            let way = [LIBRARY, BARE][index];
            let found = [
                pages.timed(way.lock)?,
                pages.timed(way.unlock)?,
                together(pages, way)?,
            ];
            if run > 0 {
                times[index]
                    .iter_mut()
                    .zip(found)
                    .for_each(|(times, ns)| times.push(ns));
            }
        }
    }
    let middle = |times: &[Vec<f64>; 3]| times.each_ref().map(|times| median(times));
    let [lock_ns, unlock_ns, threads_ns] = middle(&times[0]);
    let [bare_lock_ns, bare_unlock_ns, bare_threads_ns] = middle(&times[1]);
    // SAFETY: mapped above, used no more.
    unsafe { lock::munmap(start, len) }.map_err(other)?;
    Ok(Cost {
        ranges,
        lock_ns,
        bare_lock_ns,
        unlock_ns,
        bare_unlock_ns,
        threads: THREADS,
        threads_ns,
        bare_threads_ns,
    })
}

/// Nanoseconds a call, of many threads that each lock and unlock pages of their own, all at once.
fn together(pages: Pages, way: Way) -> Result<f64> {
    let each = CALLS / 8;
    // No other thread has the same page: the ranges are more than all calls of a turn.
    let pair = move |call: usize| {
        let page = pages.at(call % pages.ranges, 2);
        (way.lock)(page)?;
        (way.unlock)(page)
    };
    let work = |thread| (0..each).try_for_each(|call| pair(call * THREADS + thread));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || work(thread));
        let running: Vec<_> = (0..THREADS).map(start).collect();
        running.into_iter().try_for_each(|thread| {
            let end = thread.join();
            end.unwrap_or_else(|_| Err(Error::other("a thread of the measurement panicked")))
        })
    })?;
    Ok(began.elapsed().as_nanos() as f64 / (THREADS * each * 2) as f64)
}
