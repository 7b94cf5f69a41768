//! Bringing a snapshot back page by page: the memory is there at once, and each page arrives when
//! it is touched, or when the background gets to it.
//!
//! A page is installed with `UFFDIO_COPY`, which never overwrites one that is there. So the threads
//! that fetch need not agree on who fetches what: a block fetched twice costs time, never bytes.
//! When everything has been fetched the memory is unregistered and is plain memory.
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use pagetide_kernel::memory::set_inherited;
use pagetide_kernel::own::Mapping;
use pagetide_kernel::uffd::{self, Event, Message, Stop, Uffd, feature};
use pagetide_kernel::wait::wait_for;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;

use super::image::{Image, ImageRun};
use super::reader::{BlockBuffer, FileError};
use super::working_set::WorkingSet;
use crate::memory::{TrackError, system};
use crate::threads;

/// Blocks the background fetches before it asks for the next share.
const SLICE: usize = 8;
/// Pages of a working set fetched together.
const BATCH_PAGES: usize = 256;
/// Pages of zeros installed at once where a thread touches memory that the snapshot has nothing
/// for.
const ZERO_PAGES: usize = 16;

/// Why memory could not be restored lazily.
#[derive(Debug, thiserror::Error)]
pub enum LazyError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system. Restoring eagerly needs nothing but memory.
    #[error("{0}; restoring eagerly works without")]
    System(#[from] TrackError),
    /// A region too large to map.
    #[error("region '{0}' has {1} pages, which cannot be mapped here")]
    Map(String, u64),
}

/// How to restore.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct LazyPlan {
    record: bool,
    working_set: Option<WorkingSet>,
    no_background: bool,
}

impl LazyPlan {
    /// Records the order of first touches, for [`Restored::working_set`]. Nothing is fetched before
    /// it is touched then, and each page by itself.
    pub fn record(mut self) -> LazyPlan {
        self.record = true;
        self
    }

    /// Fetches these pages first, in their order, in large batches.
    pub fn replay(mut self, set: WorkingSet) -> LazyPlan {
        self.working_set = Some(set);
        self
    }

    /// Fetches only what is touched (and a replayed working set).
    pub fn without_background(mut self) -> LazyPlan {
        self.no_background = true;
        self
    }

    fn fetches_all(&self) -> bool {
        !self.record && !self.no_background
    }
}

struct Place {
    memory: Mapping,
    first: u64,
}

struct Shared {
    image: Image,
    places: Vec<Place>,
    uffd: Uffd,
    zeros: Mapping,
    plan: LazyPlan,
    /// Index of the next block for the background.
    next: AtomicUsize,
    /// Where the replay is.
    replayed: AtomicUsize,
    faults: AtomicU64,
    touched: Mutex<Vec<u64>>,
    closing: AtomicBool,
    bell: OwnedFd,
    workers: AtomicUsize,
    done: Mutex<Option<Result<(), String>>>,
    told: Condvar,
}

/// Memory that comes back from a snapshot.
///
/// Until [`Restored::wait`] returns, the memory must not be emptied (`madvise`), unmapped or moved:
/// emptied pages would be fetched again. A child forked before that does not find the memory at
/// all, rather than zeros where pages had not arrived. A damaged block ends in SIGBUS for those who
/// touch it (Linux 6.6; before, the process is ended), never in zeros.
pub struct Restored {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

/// Restores all regions of `image` into new memory, which can be used when this returns.
pub fn restore(image: Image, plan: LazyPlan) -> Result<Restored, LazyError> {
    use rustix::event::{EventfdFlags, eventfd};
    let has = Uffd::kernel_features(open()?).map_err(system("UFFDIO_API"))?;
    let uffd = Uffd::negotiate(open()?, has & feature::POISON).map_err(system("UFFDIO_API"))?;
    let mut places = Vec::new();
    for region in image.regions() {
        let failed = || LazyError::Map(region.name.clone(), region.pages);
        let len = usize::try_from(region.pages)
            .ok()
            .and_then(|pages| pages.checked_mul(PAGE_SIZE))
            .filter(|len| *len < 1 << 46)
            .ok_or_else(failed)?;
        let memory = Mapping::new(len).map_err(|_| failed())?;
        places.push(Place {
            memory,
            first: region.first,
        });
    }
    let bell =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("eventfd"))?;
    let zeros = Mapping::new(ZERO_PAGES * PAGE_SIZE).map_err(system("mmap"))?;
    let shared = Arc::new(Shared {
        image,
        places,
        uffd,
        zeros,
        plan,
        next: AtomicUsize::new(0),
        replayed: AtomicUsize::new(0),
        faults: AtomicU64::new(0),
        touched: Mutex::new(Vec::new()),
        closing: AtomicBool::new(false),
        bell,
        workers: AtomicUsize::new(0),
        done: Mutex::new(None),
        told: Condvar::new(),
    });
    // Dropped on an early return, it ends the threads that run.
    let mut restored = Restored {
        shared: Arc::clone(&shared),
        threads: Vec::new(),
    };
    let server = start("pagetide-lazy", &shared, Shared::serve_faults)?;
    restored.threads.push(server);
    for place in &shared.places {
        // SAFETY: the thread just started serves the faults and never touches this memory; nobody
        // else knows it yet.
        let registered = unsafe { shared.uffd.register_missing(place.memory.range()) };
        registered.map_err(system("registering memory for missing faults"))?;
        let _ = set_inherited(place.memory.range(), false);
    }
    let workers = match shared.plan.fetches_all() {
        true => std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(4),
        false => usize::from(shared.plan.working_set.is_some()),
    };
    shared.workers.store(workers, SeqCst);
    for _ in 0..workers {
        let worker = start("pagetide-fetch", &shared, Shared::fetch_rest)?;
        restored.threads.push(worker);
    }
    Ok(restored)
}

fn open() -> Result<OwnedFd, TrackError> {
    uffd::open_for_user_mode().map_err(Into::into)
}

fn start(
    name: &str,
    shared: &Arc<Shared>,
    body: fn(&Shared),
) -> Result<JoinHandle<()>, TrackError> {
    let shared = Arc::clone(shared);
    threads::start(name, move || body(&shared))
}

impl Shared {
    fn page(&self, index: u64) -> PageNumber {
        let after = self.places.partition_point(|place| place.first <= index);
        let place = &self.places[after - 1];
        place.memory.range().start.add(index - place.first)
    }

    fn index(&self, page: PageNumber) -> Option<u64> {
        let holds = |place: &&Place| place.memory.range().contains(page);
        let place = self.places.iter().find(holds)?;
        Some(place.first + page.0 - place.memory.range().start.0)
    }

    /// Installs pages `range` from `source`, leaving those that are there. Where that fails,
    /// whoever waits faults again, and is served again.
    fn install(&self, mut range: PageRange, mut source: *const u8) -> Result<(), Stop> {
        while !range.is_empty() {
            // SAFETY: `source` holds the bytes of the rest of the range: a block buffer or the
            // zeros, which are not registered.
            let progress = unsafe { self.uffd.copy(range, source, false) };
            let step = match progress.stop {
                None => return Ok(()),
                // Somebody waits for it perhaps, having faulted just before it came.
                Some(Stop::Present) => {
                    let there = range.start.add(progress.pages);
                    self.uffd.wake(PageRange::one(there));
                    progress.pages + 1
                }
                Some(Stop::EventPending) => progress.pages,
                Some(stop) => {
                    self.uffd.wake(range);
                    return Err(stop);
                }
            };
            range.start = range.start.add(step);
            source = source.wrapping_add(step as usize * PAGE_SIZE);
        }
        Ok(())
    }

    fn install_run(&self, run: &ImageRun, bytes: &[u8]) -> Result<(), Stop> {
        let start = self.page(run.first);
        let range = PageRange {
            start,
            end: start.add(u64::from(run.pages)),
        };
        let from = run.first_in_block as usize * PAGE_SIZE;
        self.install(range, bytes[from..].as_ptr())
    }

    /// Installs all runs of the block of `run` that can be. The rest is served when it is touched.
    fn install_block(&self, run: &ImageRun, bytes: &[u8]) {
        for run in self.image.runs_of_block(run) {
            let _ = self.install_run(run, bytes);
        }
    }

    fn serve_faults(&self) {
        let mut buffer = BlockBuffer::default();
        let mut messages = [Message::default(); 32];
        while !self.closing.load(SeqCst) {
            let count = self.uffd.read(&mut messages).unwrap_or(0);
            for message in &messages[..count] {
                if let Event::Fault { page, .. } = message.decode()
                    && let Some(index) = self.index(page)
                {
                    self.faults.fetch_add(1, SeqCst);
                    self.serve(page, index, &mut buffer);
                }
            }
            if count == 0 {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        let mut fds = [
            PollFd::new(&self.uffd, PollFlags::IN),
            PollFd::new(&self.bell, PollFlags::IN),
        ];
        wait_for(&mut fds, None, Duration::from_millis(100));
    }

    fn serve(&self, page: PageNumber, index: u64, buffer: &mut BlockBuffer) {
        if self.plan.record {
            lock(&self.touched).push(index);
        }
        let Some(run) = self.image.find(index) else {
            return self.serve_zeros(page, index);
        };
        let bytes = match self.image.read(run, buffer) {
            Ok(bytes) => bytes,
            Err(error) => return self.lose(page, &error),
        };
        let place = (u64::from(run.first_in_block) + index - run.first) as usize * PAGE_SIZE;
        // The page that is waited for first; then what came along with it.
        let _ = self.install(PageRange::one(page), bytes[place..].as_ptr());
        if self.plan.record {
            return;
        }
        self.install_block(run, bytes);
        self.fetch_replay_ahead(buffer);
    }

    /// A thread that waits has outrun the replay: help it on.
    fn fetch_replay_ahead(&self, buffer: &mut BlockBuffer) {
        if let Some(set) = &self.plan.working_set {
            self.replay_batch(set, buffer);
        }
    }

    fn serve_zeros(&self, page: PageNumber, index: u64) {
        let next_run = self.image.next_run(index);
        let place = self
            .places
            .iter()
            .find(|place| place.memory.range().contains(page));
        let end = place.map_or(page.add(1), |place| place.memory.range().end);
        let room = (end.0 - page.0).min(next_run.map_or(u64::MAX, |first| first - index));
        let pages = if self.plan.record {
            1
        } else {
            room.min(ZERO_PAGES as u64)
        };
        let range = PageRange {
            start: page,
            end: page.add(pages),
        };
        let _ = self.install(range, self.zeros.as_ptr());
    }

    /// The bytes cannot be had: whoever touches the page is told by SIGBUS.
    fn lose(&self, page: PageNumber, error: &FileError) {
        self.fail(error);
        if self.uffd.features() & feature::POISON == 0 {
            eprintln!("pagetide: page at {:#x} is lost: {error}", page.address());
            pagetide_kernel::memory::kill_self();
        }
        let _ = self.uffd.poison(PageRange::one(page));
    }

    /// From now on it cannot become plain memory: pages that did not arrive would be zeros. They
    /// are served when they are touched.
    fn fail(&self, error: &dyn std::fmt::Display) {
        lock(&self.done).get_or_insert(Err(error.to_string()));
        self.told.notify_all();
    }

    /// Fetches the next pages of the working set; false when there are none left.
    fn replay_batch(&self, set: &WorkingSet, buffer: &mut BlockBuffer) -> bool {
        let from = self.replayed.fetch_add(BATCH_PAGES, SeqCst);
        let Some(rest) = set.pages.get(from..).filter(|rest| !rest.is_empty()) else {
            return false;
        };
        let found = rest[..rest.len().min(BATCH_PAGES)]
            .iter()
            .filter_map(|index| self.image.find(*index));
        // In the order of the file, each block once.
        let mut runs: Vec<&ImageRun> = found.collect();
        runs.sort_unstable_by_key(|run| (run.file, run.block));
        runs.dedup_by_key(|run| (run.file, run.block));
        for run in runs {
            // A damaged block shows when it is touched, or in the background.
            if let Ok(bytes) = self.image.read(run, buffer) {
                self.install_block(run, bytes);
            }
        }
        true
    }

    /// The background: the working set, then every block, in the order of the files.
    fn fetch_rest(&self) {
        let mut buffer = BlockBuffer::default();
        if let Some(set) = &self.plan.working_set {
            let mut more = true;
            while more && !self.closing.load(SeqCst) {
                more = self.replay_batch(set, &mut buffer);
            }
        }
        if !self.plan.fetches_all() {
            return;
        }
        self.fetch_blocks(&mut buffer);
        if self.workers.fetch_sub(1, SeqCst) == 1 && !self.closing.load(SeqCst) {
            self.complete();
        }
    }

    fn fetch_blocks(&self, buffer: &mut BlockBuffer) {
        let blocks = self.image.blocks();
        while !self.closing.load(SeqCst) {
            let from = self.next.fetch_add(SLICE, SeqCst);
            let Some(slice) = blocks.get(from..).filter(|rest| !rest.is_empty()) else {
                return;
            };
            for block in &slice[..slice.len().min(SLICE)] {
                let runs = || {
                    block
                        .iter()
                        .map(|index| &self.image.runs()[*index as usize])
                };
                let Some(first) = runs().next() else { continue };
                match self.image.read(first, buffer) {
                    Ok(bytes) => {
                        let installed = runs().try_for_each(|run| self.install_run(run, bytes));
                        if let Err(stop) = installed {
                            self.fail(&format!("installing pages failed: {stop:?}"));
                        }
                    }
                    Err(error) => self.fail(&error),
                }
            }
        }
    }

    /// Everything that has bytes is there: the rest is zeros, which the kernel gives by itself. Not
    /// after a failure: pages would be zeros that must not be.
    fn complete(&self) {
        let mut done = lock(&self.done);
        if done.is_none() {
            for place in &self.places {
                // SAFETY: every page whose bytes matter is present.
                let _ = unsafe { self.uffd.unregister(place.memory.range()) };
                let _ = set_inherited(place.memory.range(), true);
            }
            *done = Some(Ok(()));
        }
        self.told.notify_all();
    }
}

impl Restored {
    /// The memory of region `name`: its first byte and its length. Valid as long as this lives.
    pub fn region(&self, name: &str) -> Option<(*mut u8, usize)> {
        let regions = self.shared.image.regions();
        let number = regions.iter().position(|region| region.name == name)?;
        let memory = &self.shared.places[number].memory;
        Some((memory.as_ptr(), regions[number].pages as usize * PAGE_SIZE))
    }

    /// The snapshot restored.
    pub fn image(&self) -> &Image {
        &self.shared.image
    }

    /// Pages that somebody had to wait for.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(SeqCst)
    }

    /// The pages touched so far, in order; for a restore that records.
    pub fn working_set(&self) -> WorkingSet {
        WorkingSet {
            snapshot: self.shared.image.files()[0].header().id,
            pages: lock(&self.shared.touched).clone(),
        }
    }

    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        matches!(*lock(&self.shared.done), Some(Ok(())))
    }

    /// Waits until all of it is there and the memory is plain memory. Without background, and when
    /// recording, this returns only after a failure.
    ///
    /// # Errors
    /// The damaged block or the file that could not be read; pages that were lost raise SIGBUS when
    /// touched. Or pages that could not be installed, as memory ran out; they are served when they
    /// are touched, as long as this lives.
    pub fn wait(&self) -> Result<(), String> {
        let mut done = lock(&self.shared.done);
        loop {
            if let Some(result) = &*done {
                return result.clone();
            }
            done = self
                .shared
                .told
                .wait(done)
                .unwrap_or_else(|held| held.into_inner());
        }
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.shared.closing.store(true, SeqCst);
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restored")
            .field("image", &self.shared.image.files()[0].name())
            .finish_non_exhaustive()
    }
}
