//! What the registry adds to the system calls, for one thread and for many at once.
#![allow(unsafe_code)] // maps memory
use std::io::{Error, Result};
use std::time::Instant;

use pagetide::lock::{self, LockFlags};
use pagetide_kernel::mlock;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

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

/// With so many ranges held, spread so that none merge: locks and unlocks pages between them.
pub fn measure(ranges: usize, runs: u32) -> Result<Cost> {
    let other = |error: lock::LockError| Error::other(error.to_string());
    // Four pages a range: held, free, measured, free.
    let len = ranges * 4 * PAGE;
    // SAFETY: a new mapping at a place of the kernel's choice, never touched.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?
    .cast::<u8>();
    let at = |range: usize, page: usize| start.wrapping_add((range * 4 + page) * PAGE);
    for range in 0..ranges {
        lock::mlock2(at(range, 0), PAGE, LockFlags::ONFAULT).map_err(other)?;
    }
    // Spread over all ranges, in an order without neighbours.
    let place = |call: usize| call.wrapping_mul(7919) % ranges;
    let mut times = [const { Vec::new() }; 6];
    // Whoever comes second finds what the first has left of the kernel's caches of mappings, so
    // they take turns at it; a first round is not counted.
    for run in 0..=runs {
        let mut timed = |index: usize, work: &dyn Fn(usize) -> Result<()>| {
            let began = Instant::now();
            (0..CALLS).try_for_each(|call| work(place(call)))?;
            if run > 0 {
                times[index].push(began.elapsed().as_nanos() as f64 / CALLS as f64);
            }
            Ok::<(), Error>(())
        };
        for library in [run % 2 == 0, run % 2 == 1] {
            if library {
                timed(0, &|range| {
                    lock::mlock2(at(range, 2), PAGE, LockFlags::ONFAULT).map_err(other)
                })?;
                timed(1, &|range| lock::munlock(at(range, 2), PAGE).map_err(other))?;
            } else {
                timed(2, &|range| {
                    let address = at(range, 2) as usize;
                    Ok(mlock::mlock2(address, PAGE, mlock::MLOCK_ONFAULT)?)
                })?;
                timed(3, &|range| Ok(mlock::munlock(at(range, 2) as usize, PAGE)?))?;
            }
        }
        let pages = Pages {
            start: start as usize,
            ranges,
        };
        times[4].push(together(pages, &|page| {
            lock::mlock2(page as *const u8, PAGE, LockFlags::ONFAULT).map_err(other)?;
            lock::munlock(page as *const u8, PAGE).map_err(other)
        })?);
        times[5].push(together(pages, &|page| {
            mlock::mlock2(page, PAGE, mlock::MLOCK_ONFAULT)?;
            Ok(mlock::munlock(page, PAGE)?)
        })?);
    }
    let [
        lock_ns,
        unlock_ns,
        bare_lock_ns,
        bare_unlock_ns,
        threads_ns,
        bare_threads_ns,
    ] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    // SAFETY: mapped above, used no more.
    unsafe { lock::munmap(start.cast(), len) }.map_err(other)?;
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

#[derive(Clone, Copy)]
struct Pages {
    start: usize,
    ranges: usize,
}

/// Nanoseconds a call, of many threads that each lock and unlock pages of their own, all at once.
fn together(pages: Pages, pair: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<f64> {
    let each = CALLS / 8;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    // No other thread has the same page: the ranges are more than all calls of a
                    // turn.
                    (0..each).try_for_each(|call| {
                        let range = (call * THREADS + thread) % pages.ranges;
                        pair(pages.start + (range * 4 + 2) * PAGE)
                    })
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| {
            let end = thread.join();
            end.unwrap_or_else(|_| Err(Error::other("a thread of the measurement panicked")))
        })
    })?;
    Ok(began.elapsed().as_nanos() as f64 / (THREADS * each * 2) as f64)
}
