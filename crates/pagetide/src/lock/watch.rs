//! Watching what a program touches of a mapped file, and reading ahead of it: the thread about [`Adaptive`].
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::sync::Doorbell;
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::thread::sched_yield;

use super::adaptive::{Adaptive, CHUNK_PAGES};

/// Between looks at the fault counters: as long as faults come, and at most.
const TICK: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(32);
/// Major faults that make a look at the pages worth its cost.
const FAULTS_MIN: u64 = 8;
/// Looking takes at most this share (1/N) of the time.
const LOOK_SHARE: u32 = 25;
/// A page that the program waits for queues behind what is being read for the watcher: so much of the device's time is queued, whatever that is in bytes.
const QUEUED: Duration = Duration::from_millis(10);
/// Chunks queued at most. A device that is faster than that gains nothing from more.
const QUEUED_CHUNKS_MAX: usize = 8;

/// What the watcher has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchStatistics {
    /// Looks at the page table.
    pub looks: u64,
    /// Nanoseconds they took.
    pub look_ns: u64,
    /// Bytes it read or had read.
    pub read_bytes: u64,
}

/// What thread and owner share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    bell: Doorbell,
    looks: AtomicU64,
    look_ns: AtomicU64,
    read_bytes: AtomicU64,
}

impl Shared {
    pub fn statistics(&self) -> WatchStatistics {
        WatchStatistics {
            looks: self.looks.load(Ordering::Relaxed),
            look_ns: self.look_ns.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
        }
    }

    /// Asks the thread to end, soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// The thread's own.
pub(super) struct Watch {
    shared: Arc<Shared>,
    /// The mapping, which outlives the thread.
    range: PageRange,
    file: OwnedFd,
    /// Of the mapping in the file, in bytes.
    offset: u64,
    /// Of the mapping, in bytes.
    len: u64,
    adaptive: Adaptive,
    pagemap: Pagemap,
    /// Chunks to read.
    queue: VecDeque<usize>,
    /// Last bytes, as offsets in the file, of chunks that are being read.
    in_flight: VecDeque<u64>,
    pace: Pace,
    faults: u64,
    /// No look before this.
    next_look: Instant,
}

impl Watch {
    pub fn new(shared: Arc<Shared>, range: PageRange, file: OwnedFd, part: (u64, u64)) -> Watch {
        let (offset, len) = part;
        Watch {
            shared,
            range,
            file,
            offset,
            len,
            adaptive: Adaptive::new(range.pages() as usize),
            pagemap: Pagemap::open(),
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            pace: Pace::new(),
            faults: major_faults(),
            next_look: Instant::now(),
        }
    }

    /// Until it is stopped, or everything has been read.
    pub fn run(mut self) {
        let mut tick = TICK;
        while !self.shared.stopped() {
            if self.adaptive.is_done() && self.queue.is_empty() {
                return;
            }
            if let Some(chunk) = self.queue.pop_front() {
                self.read(chunk);
                self.look_if_due();
                continue;
            }
            self.pace.pause();
            let seen = self.shared.bell.look();
            if self.shared.stopped() {
                return;
            }
            self.shared.bell.wait(seen, Some(tick));
            tick = if self.look_if_due() {
                TICK
            } else {
                (tick * 2).min(TICK_MAX)
            };
        }
    }

    /// Looks at the pages if there was a reason and the last look was long enough ago. Returns whether there was a reason.
    fn look_if_due(&mut self) -> bool {
        let faults = major_faults();
        let streams = self.adaptive.has_stream();
        let missed = faults.wrapping_sub(self.faults) >= FAULTS_MIN;
        if !missed && !streams {
            return false;
        }
        let now = Instant::now();
        if now < self.next_look {
            return true;
        }
        if missed {
            self.faults = faults;
        }
        self.look(!missed);
        let took = now.elapsed();
        self.next_look = now + took + took * LOOK_SHARE;
        self.shared.looks.fetch_add(1, Ordering::Relaxed);
        self.shared
            .look_ns
            .fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        self.queue.extend(self.adaptive.decide());
        true
    }

    fn look(&mut self, streams_only: bool) {
        for chunks in self.adaptive.to_look_at(streams_only) {
            self.adaptive.begin_look(chunks.clone());
            let within = self.pages(chunks.start * CHUNK_PAGES, chunks.end * CHUNK_PAGES);
            let (first, adaptive) = (self.range.start.0, &mut self.adaptive);
            let result = self.pagemap.populated(within, |run, _| {
                adaptive.seen((run.start.0 - first) as usize..(run.end.0 - first) as usize);
            });
            if result.is_err() {
                return;
            }
        }
    }

    /// Pages by their index in the file.
    fn pages(&self, start: usize, end: usize) -> PageRange {
        let at = |index: usize| self.range.start.add((index as u64).min(self.range.pages()));
        PageRange {
            start: at(start),
            end: at(end),
        }
    }

    /// Reads a chunk into the page cache, with as many others in flight as the device keeps up with.
    fn read(&mut self, chunk: usize) {
        let pages = self.pages(chunk * CHUNK_PAGES, (chunk + 1) * CHUNK_PAGES);
        if pages.is_empty() || mlock::hint(pages, Hint::WillNeed).is_err() {
            return;
        }
        self.shared
            .read_bytes
            .fetch_add(pages.bytes() as u64, Ordering::Relaxed);
        let last = (pages.end.0 - self.range.start.0) * PAGE_SIZE as u64 - 1;
        self.in_flight
            .push_back(self.offset + last.min(self.len - 1));
        while self.in_flight.len() > self.pace.chunks() {
            let Some(oldest) = self.in_flight.pop_front() else {
                return;
            };
            // Its last page comes last. Nothing is read that was not asked for.
            let _ = rustix::io::pread(&self.file, &mut [0u8; 1], oldest);
            self.pace.came_in(Instant::now());
        }
        sched_yield();
    }
}

/// How many chunks may be queued, by how fast they come in.
#[derive(Debug)]
struct Pace {
    /// Between chunks, a moving average; none before two have come in.
    each: Option<Duration>,
    last: Option<Instant>,
}

impl Pace {
    fn new() -> Pace {
        Pace {
            each: None,
            last: None,
        }
    }

    fn came_in(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let took = now.saturating_duration_since(last);
            self.each = Some(self.each.map_or(took, |each| (each * 7 + took) / 8));
        }
    }

    /// Nothing is wanted for now: the time until there is says nothing of the device.
    fn pause(&mut self) {
        self.last = None;
    }

    fn chunks(&self) -> usize {
        let Some(each) = self.each else { return 1 };
        let fit = QUEUED.as_nanos() / each.as_nanos().max(1);
        fit.clamp(1, QUEUED_CHUNKS_MAX as u128) as usize
    }
}

/// Major faults of this process so far: reads that some thread waited for.
fn major_faults() -> u64 {
    pagetide_kernel::residency::major_faults()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_device_has_more_queued_than_a_slow_one() {
        let queued = |each: Duration| {
            let (mut pace, mut now) = (Pace::new(), Instant::now());
            assert_eq!(pace.chunks(), 1, "nothing is known yet");
            for _ in 0..64 {
                pace.came_in(now);
                now += each;
            }
            pace.chunks()
        };
        assert_eq!(queued(Duration::from_micros(100)), QUEUED_CHUNKS_MAX);
        assert_eq!(queued(Duration::from_micros(1500)), 6);
        assert_eq!(queued(Duration::from_millis(20)), 1);
        let (mut pace, now) = (Pace::new(), Instant::now());
        pace.came_in(now);
        pace.pause();
        pace.came_in(now + 100 * QUEUED);
        pace.came_in(now + 100 * QUEUED + QUEUED / 4);
        assert_eq!(pace.chunks(), 4);
    }
}
