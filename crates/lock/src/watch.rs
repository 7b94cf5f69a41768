//! Watching what a program touches of a mapped file, and reading ahead of it: the thread about
//! [`Adaptive`].
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::residency::mincore;
use pagetide_kernel::sync::Doorbell;
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::adaptive::{Adaptive, CHUNK_PAGES};

/// Between looks at the fault counters: until the first, as long as faults come, and at most.
const TICK_FIRST: Duration = Duration::from_millis(4);
const TICK: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(32);
/// Major faults that make a look at the pages worth its cost.
const FAULTS_MIN: u64 = 8;
/// Looking takes at most this share (1/N) of the time.
const LOOK_SHARE: u32 = 25;
/// Read at once, and how many of them are on their way. A page that the program waits for queues
/// behind them, but waits the less often the sooner they are there.
const BLOCK_BYTES: usize = 512 << 10;
const BLOCKS_IN_FLIGHT: usize = 8;

/// What the thread that watches an adaptive [`LockedFile`](crate::LockedFile) has done so far.
///
/// ```
/// let none = pagetide::lock::WatchStatistics::default();
/// assert_eq!((none.looks, none.read_bytes), (0, 0));
/// ```
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
    adaptive: Adaptive,
    pagemap: Pagemap,
    /// Chunks to read.
    queue: VecDeque<usize>,
    /// Blocks that are being read.
    in_flight: VecDeque<PageRange>,
    faults: u64,
    /// No look before this.
    next_look: Instant,
}

impl Watch {
    pub fn new(shared: Arc<Shared>, range: PageRange, file: OwnedFd, offset: u64) -> Watch {
        Watch {
            shared,
            range,
            file,
            offset,
            adaptive: Adaptive::new(range.pages() as usize),
            pagemap: Pagemap::open(),
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            faults: major_faults(),
            next_look: Instant::now(),
        }
    }

    /// Until it is stopped, or everything has been read.
    pub fn run(mut self) {
        let mut tick = TICK_FIRST;
        while !self.shared.stopped() {
            if let Some(chunk) = self.queue.pop_front() {
                self.read(chunk);
                self.look_if_due();
                continue;
            }
            while let Some(block) = self.in_flight.pop_front() {
                self.finish(block);
            }
            if self.adaptive.is_done() {
                return;
            }
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

    /// Looks at the pages if there was a reason and the last look was long enough ago. Returns
    /// whether there was a reason.
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

    /// Reads a chunk into the page cache, block by block, so that a page the program waits for has
    /// little before it in the device's queue.
    fn read(&mut self, chunk: usize) {
        const BLOCK_PAGES: usize = BLOCK_BYTES / PAGE_SIZE;
        let start = chunk * CHUNK_PAGES;
        for first in (start..start + CHUNK_PAGES).step_by(BLOCK_PAGES) {
            let block = self.pages(first, first + BLOCK_PAGES);
            if block.is_empty() || self.shared.stopped() {
                return;
            }
            if mlock::hint(block, Hint::WillNeed).is_err() {
                return;
            }
            self.shared
                .read_bytes
                .fetch_add(block.bytes() as u64, Ordering::Relaxed);
            self.in_flight.push_back(block);
            if self.in_flight.len() >= BLOCKS_IN_FLIGHT
                && let Some(oldest) = self.in_flight.pop_front()
            {
                self.finish(oldest);
            }
        }
        sched_yield();
    }

    /// Waits until a block has been read, and reads what the kernel left out of it: read-ahead is a
    /// wish, and pages that another reader is at, or that find no memory at the moment, are passed
    /// over.
    fn finish(&self, block: PageRange) {
        // The last page comes last. Nothing is read that was not asked for.
        let _ = self.read_page(block.end.0 - 1);
        let mut present = [0; BLOCK_BYTES / PAGE_SIZE];
        let present = &mut present[..block.pages() as usize];
        if mincore(block, present).is_err() {
            return;
        }
        for (page, byte) in block.iter().zip(present.iter()) {
            if byte & 1 == 0 && (self.shared.stopped() || self.read_page(page.0).is_err()) {
                return;
            }
        }
    }

    /// A byte of a page of the mapping, from the file.
    fn read_page(&self, page: u64) -> Result<usize, Errno> {
        let at = self.offset + (page - self.range.start.0) * PAGE_SIZE as u64;
        rustix::io::pread(&self.file, &mut [0u8; 1], at)
    }
}

/// Major faults of this process so far: reads that some thread waited for.
fn major_faults() -> u64 {
    pagetide_kernel::residency::major_faults()
}
