//! Fetching the pages of memory that is restored: those that are touched, those of a working set,
//! and in the background all others.
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use pagetide_kernel::memory::set_inherited;
use pagetide_kernel::uffd::{Event, Message, Stop, Uffd, feature};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange, own};

use super::image::{Image, ImageRun};
use super::reader::{BlockBuffer, FileError};
use super::restore_plan::{LazyPlan, RestoreError};
use super::working_set::WorkingSet;
use crate::error::{TrackError, system};
use crate::threads::{Ending, Promise, lock};

/// Blocks the background fetches before it asks for the next share.
const SLICE: usize = 8;
/// Pages of a working set fetched together.
const BATCH_PAGES: usize = 256;
/// Pages of zeros installed at once where a thread touches memory that the snapshot has nothing
/// for.
const ZERO_PAGES: usize = 16;

/// A region: its memory, and the index of its first page among all pages of the image.
pub(super) struct Place {
    pub memory: Arc<own::Mapping>,
    pub first: u64,
}

/// What the threads that fetch share.
pub(super) struct Fetcher {
    pub image: Image,
    pub places: Vec<Place>,
    pub uffd: Uffd,
    zeros: own::Mapping,
    pub plan: LazyPlan,
    /// Index of the next block for the background.
    next: AtomicUsize,
    /// Where the replay is.
    replayed: AtomicUsize,
    pub faults: AtomicU64,
    pub touched: Mutex<Vec<u64>>,
    pub ending: Ending,
    pub workers: AtomicUsize,
    pub done: Promise<Result<(), RestoreError>>,
}

impl Fetcher {
    pub fn new(
        image: Image,
        places: Vec<Place>,
        uffd: Uffd,
        plan: LazyPlan,
    ) -> Result<Fetcher, TrackError> {
        Ok(Fetcher {
            image,
            places,
            uffd,
            zeros: own::Mapping::new(ZERO_PAGES * PAGE_SIZE).map_err(system("mmap"))?,
            plan,
            next: AtomicUsize::new(0),
            replayed: AtomicUsize::new(0),
            faults: AtomicU64::new(0),
            touched: Mutex::new(Vec::new()),
            ending: Ending::new()?,
            workers: AtomicUsize::new(0),
            done: Promise::default(),
        })
    }

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

    /// Serves those who touch pages that are not there yet, until the end has come.
    pub fn serve_faults(&self) {
        let mut buffer = BlockBuffer::default();
        let mut messages = [Message::default(); 32];
        while !self.ending.has_come() {
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
                self.ending.wait_for_message(&self.uffd);
            }
        }
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
            Err(error) => return self.lose(page, error),
        };
        let place = (u64::from(run.first_in_block) + index - run.first) as usize * PAGE_SIZE;
        // The page that is waited for first; then what came along with it.
        let _ = self.install(PageRange::one(page), bytes[place..].as_ptr());
        if self.plan.record {
            return;
        }
        self.install_block(run, bytes);
        if let Some(set) = &self.plan.working_set {
            // A thread that waits has outrun the replay: help it on.
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
        let pages = match self.plan.record {
            true => 1,
            false => room.min(ZERO_PAGES as u64),
        };
        let range = PageRange {
            start: page,
            end: page.add(pages),
        };
        let _ = self.install(range, self.zeros.as_ptr());
    }

    /// The bytes cannot be had: whoever touches the page is told by SIGBUS, and why by a line.
    fn lose(&self, page: PageNumber, error: FileError) {
        let error = RestoreError::from(error);
        let at = page.address();
        let _ = writeln!(
            std::io::stderr(),
            "pagetide: page at {at:#x} is lost: {error}"
        );
        if self.uffd.features() & feature::POISON == 0 {
            pagetide_kernel::memory::kill_self();
        }
        self.fail(error);
        let _ = self.uffd.poison(PageRange::one(page));
    }

    /// From now on it cannot become plain memory: pages that did not arrive would be zeros. They
    /// are served when they are touched.
    fn fail(&self, error: RestoreError) {
        self.done.give_with(|| Err(error));
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
    pub fn fetch_rest(&self) {
        let mut buffer = BlockBuffer::default();
        if let Some(set) = &self.plan.working_set {
            let mut more = true;
            while more && !self.ending.has_come() {
                more = self.replay_batch(set, &mut buffer);
            }
        }
        if !self.plan.fetches_all() {
            return;
        }
        self.fetch_blocks(&mut buffer);
        if self.workers.fetch_sub(1, SeqCst) == 1 && !self.ending.has_come() {
            self.complete();
        }
    }

    fn fetch_blocks(&self, buffer: &mut BlockBuffer) {
        let blocks = self.image.blocks();
        while !self.ending.has_come() {
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
                            self.fail(RestoreError::Install(format!("{stop:?}")));
                        }
                    }
                    Err(error) => self.fail(error.into()),
                }
            }
        }
    }

    /// Everything that has bytes is there: the rest is zeros, which the kernel gives by itself. Not
    /// after a failure: pages would be zeros that must not be.
    fn complete(&self) {
        self.done.give_with(|| {
            for place in &self.places {
                // SAFETY: every page whose bytes matter is present.
                let _ = unsafe { self.uffd.unregister(place.memory.range()) };
                let _ = set_inherited(place.memory.range(), true);
            }
            Ok(())
        });
    }
}
