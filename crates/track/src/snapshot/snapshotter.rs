//! [`Snapshotter`]: takes snapshots.
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, TryLockError};

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::trap::Signal;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};

use super::arm::Armer;
use super::begun::Begun;
use super::copy_aside::Shared;
use super::error::{NAME_BYTES_MAX, SnapshotError};
use super::format::{RegionEntry, SnapshotId};
use super::hold::Hold;
use super::pages::EPOCH_MAX;
use super::plan::Plan;
use super::pool::Pool;
use super::sink::{FileSink, Sink, directory_of, naming};
use super::under_way::{Claim, Report, Snapshot};
use super::worker::{Job, Worker};
use super::writer::{Parent, Writer};
use crate::error::system;
use crate::faults::{
    FaultSource, observe, open_for_writes, refuse_huge_pages, register, stop_observing,
};
use crate::guard::{Guard, Protector};
use crate::mapping::Mapping;
use crate::memory::{Backing, Memory};
use crate::presence::Presence;
use crate::spans::Spans;
use crate::threads::lock;
use pagetide_pager::region::Delivery;

/// Least pages that old bytes have room for.
const POOL_PAGES_MIN: usize = 1024;
/// Without a limit given, one page of extra memory for so many of the memory.
const POOL_SHARE: usize = 32;

/// Takes snapshots of some memory, one at a time.
///
/// # What the program must not do
///
/// While a snapshot is being taken, memory must not be emptied (`MADV_DONTNEED`, `MADV_FREE`),
/// unmapped or moved: the snapshot would show zeros or fail. Between snapshots it may be emptied.
/// Devices that write to it by themselves (direct I/O, `io_uring` with registered buffers) must be
/// quiet from the pause until the end. A forked child has the memory without any protection, and
/// must not use the snapshotter.
///
/// ```
/// use pagetide::track::{Image, Mapping, Memory, Plan, SnapshotError, Snapshotter, read_region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("snapshotter-{}", std::process::id()));
/// let mut table = Mapping::new(1 << 20)?;
/// let builder = Snapshotter::builder().memory(Memory::mapping("table", &table)?);
/// let Ok(snapshotter) = builder.build() else { return Ok(()) }; // needs a userfaultfd
/// table.as_mut_slice()[0] = 1;
/// // A closure that takes the writers' lock, or `ParkThreads`; here nobody writes meanwhile.
/// let snapshot = snapshotter.snapshot(&path, Plan::full(), |arm: &mut dyn FnMut()| arm())?;
/// table.as_mut_slice()[0] = 2; // after the instant
/// snapshot.wait()?;
///
/// let mut saved = vec![0; table.len()];
/// read_region(&Image::open(&path)?, "table", &mut saved)?;
/// assert_eq!(saved[0], 1);
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct Snapshotter {
    shared: Arc<Shared>,
    faults: Option<FaultSource>,
    worker: Option<Worker>,
    armer: Option<Armer>,
    incremental: bool,
    /// There if any of the memory is a mapping.
    presence: Option<Presence>,
    /// Held while memory is armed: a round that somebody else is in the middle of must be over
    /// before the writers are held, for that somebody may be among them.
    arming: Mutex<()>,
}

impl Snapshotter {
    /// Makes one.
    pub fn builder() -> SnapshotterBuilder {
        SnapshotterBuilder::default()
    }

    /// Tries to make one over a scratch page.
    pub fn works() -> Result<(), SnapshotError> {
        let memory = Memory::mapping("scratch", &Mapping::new(PAGE_SIZE)?)?;
        Snapshotter::builder().memory(memory).build().map(drop)
    }

    /// Takes a snapshot into the file `path`, which appears when it is complete; a file that was
    /// there is replaced then. Returns when the pause is over.
    pub fn snapshot(
        &self,
        path: impl AsRef<Path>,
        plan: Plan,
        hold: impl Hold,
    ) -> Result<Snapshot, SnapshotError> {
        let path = path.as_ref();
        let sink = FileSink::create(path)?;
        let directory = directory_of(path);
        let directory = directory.canonicalize().map_err(naming(&directory))?;
        self.take(Box::new(sink), path, Some(directory), plan, hold)
    }

    /// Takes a snapshot into a sink; `name` is what incremental ones will call it. The sink runs in
    /// a thread of Pagetide's, where all signals of the program's are blocked: what it starts
    /// inherits that.
    pub fn snapshot_to(
        &self,
        sink: Box<dyn Sink>,
        name: PathBuf,
        plan: Plan,
        hold: impl Hold,
    ) -> Result<Snapshot, SnapshotError> {
        self.take(sink, &name, None, plan, hold)
    }

    /// `directory` is that of the file, where the sink is one.
    fn take(
        &self,
        sink: Box<dyn Sink>,
        name: &Path,
        directory: Option<PathBuf>,
        plan: Plan,
        hold: impl Hold,
    ) -> Result<Snapshot, SnapshotError> {
        let claim = self.worker().claim().ok_or(SnapshotError::Busy)?;
        let name = name.file_name().unwrap_or_default();
        let name = match name.to_str() {
            Some(name) if name.len() <= NAME_BYTES_MAX => name.to_owned(),
            _ => return Err(SnapshotError::Name(name.to_string_lossy().into_owned())),
        };
        let (base, parent) = match plan.base {
            None => (0, None),
            Some(id) => {
                let (epoch, name) = self.parent(id, &name, directory.as_deref())?;
                (epoch, Some(Parent { id, name }))
            }
        };
        if self.shared.phase().epoch >= EPOCH_MAX {
            return Err(SnapshotError::Epochs);
        }
        let regions = self.shared.guard.spans.iter().map(|span| RegionEntry {
            name: span.name.clone(),
            address: span.range.address() as u64,
            pages: span.range.pages(),
        });
        let id = SnapshotId::random();
        let writer = Writer::new(sink, id, parent.as_ref(), regions.collect())?;
        let arming = lock(&self.arming);
        self.look()?;
        if plan.pre_arm {
            self.armer().protect_most()?;
        }
        let begun = self.begin(claim, id, writer, name, directory);
        begun.arm(base, hold, arming)
    }

    /// The epoch and the name of the snapshot `id`, if one called `name` in `directory` can build
    /// on it.
    fn parent(
        &self,
        id: SnapshotId,
        name: &str,
        directory: Option<&Path>,
    ) -> Result<(u32, String), SnapshotError> {
        let bases = lock(&self.worker().bases);
        let base = bases.find(id).filter(|_| self.incremental);
        let (epoch, base) = base.ok_or(SnapshotError::Base(id))?;
        if bases.chain_has(epoch, name) {
            return Err(SnapshotError::SameName(name.to_owned()));
        }
        match (base.directory, directory) {
            (Some(beside), Some(directory)) if beside != directory => {
                Err(SnapshotError::Elsewhere(base.name, beside))
            }
            _ => Ok((epoch, base.name)),
        }
    }

    /// Queues a snapshot: it is to be armed.
    fn begin(
        &self,
        claim: Claim,
        id: SnapshotId,
        writer: Writer,
        name: String,
        directory: Option<PathBuf>,
    ) -> Begun<'_> {
        let shared = &self.shared;
        let report = Report {
            id,
            open_pages_before: shared.guard.writable_pages() as u64,
            faults: shared.faults.load(SeqCst),
            copies_aside: shared.copies.load(SeqCst),
            waits: shared.waits.load(SeqCst),
            ..Report::default()
        };
        let (started_ns, number) = (now_ns(), shared.start.queue());
        let outcome = self.worker().queue(Job {
            number,
            writer,
            name,
            own_sink: directory.is_some(),
            directory,
            report,
            started_ns,
        });
        Begun {
            shared,
            armer: self.armer(),
            keep_protected: self.incremental,
            number,
            started_ns,
            claim: Some(claim),
            outcome,
            armed: false,
        }
    }

    fn worker(&self) -> &Worker {
        self.worker
            .as_ref()
            .expect("runs until the snapshotter is dropped")
    }

    fn armer(&self) -> &Armer {
        self.armer
            .as_ref()
            .expect("lives as long as the snapshotter")
    }

    /// Protects what is open, while writers go on, until little is: the next snapshot's pause has
    /// only that to do. Returns how many pages are open now. Also useful by itself some time before
    /// a snapshot. While a snapshot is being armed it does nothing.
    pub fn pre_arm(&self) -> Result<usize, SnapshotError> {
        // Who arms for a snapshot may wait for writers, and the caller may be one.
        let _arming = match self.arming.try_lock() {
            Ok(arming) => arming,
            Err(TryLockError::Poisoned(arming)) => arming.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(self.shared.guard.writable_pages()),
        };
        Ok(self.armer().protect_most()?)
    }

    /// Finds what was emptied since it was protected, which then counts as written, and has pages
    /// brought in that could not be protected otherwise.
    fn look(&self) -> Result<(), SnapshotError> {
        let (Some(presence), shared) = (&self.presence, &self.shared) else {
            return Ok(());
        };
        let spans = &shared.guard.spans;
        let epoch = shared.phase().epoch;
        let is_anonymous = |span: &&Memory| span.backing == Backing::Anonymous;
        for span in spans.mappings().filter(is_anonymous) {
            let first = spans.index(span.range.start).expect("it is one of them");
            let index = |page: PageNumber| first + (page.0 - span.range.start.0) as usize;
            let emptied = |gap: PageRange| {
                for page in (index(gap.start)..index(gap.end))
                    .filter(|page| shared.guard.is_protected(*page))
                {
                    shared.pages.set_written(page, page + 1, epoch);
                    shared.guard.mark_writable(page, page + 1);
                }
            };
            if self.incremental {
                presence.unprotected(span.range, emptied)?;
            }
            presence.prepare(span.range)?;
        }
        Ok(())
    }

    /// The most extra memory a snapshot uses for old bytes of pages, in bytes.
    pub fn extra_memory_limit(&self) -> u64 {
        (self.shared.pool.slots() * PAGE_SIZE) as u64
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        // Cancels what is being taken. Then everything is opened while faults are still served, and
        // only then do they end.
        drop(self.worker.take());
        drop(self.armer.take());
        self.shared.guard.unprotect_all();
        stop_observing(&self.shared.guard.spans);
        drop(self.faults.take());
        if let Some(uffd) = self.shared.guard.uffd() {
            for span in self.shared.guard.spans.mappings() {
                // SAFETY: write-protect mode alone: no page's contents depend on the registration.
                let _ = unsafe { uffd.unregister(span.range) };
            }
        }
    }
}

impl std::fmt::Debug for Snapshotter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshotter")
            .field("incremental", &self.incremental)
            .finish_non_exhaustive()
    }
}

/// Makes a [`Snapshotter`].
///
/// ```
/// use pagetide::Delivery;
/// use pagetide::track::{Mapping, Memory, Snapshotter};
///
/// let table = Mapping::new(1 << 20)?;
/// let snapshotter = Snapshotter::builder()
///     .memory(Memory::mapping("table", &table)?)
///     .delivery(Delivery::Signal)
///     .incremental(true)
///     .build();
/// if let Err(error) = snapshotter {
///     eprintln!("{error}"); // no right to open a userfaultfd, say, and what to do about it
/// }
/// # Ok::<(), pagetide::track::TrackError>(())
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct SnapshotterBuilder {
    memory: Vec<Memory>,
    delivery: Delivery,
    extra_bytes: Option<usize>,
    incremental: bool,
}

impl SnapshotterBuilder {
    /// Adds a span of memory.
    pub fn memory(mut self, memory: Memory) -> SnapshotterBuilder {
        self.memory.push(memory);
        self
    }

    /// How first writes to a mapping reach the snapshotter. With [`Delivery::Thread`], the default,
    /// system calls that write to protected pages work, at about 8 to 12 us a page; with
    /// [`Delivery::Signal`] they get `EFAULT`, at about 5 us. A region's come as it was built.
    pub fn delivery(mut self, delivery: Delivery) -> SnapshotterBuilder {
        self.delivery = delivery;
        self
    }

    /// The most memory for old bytes of pages, in bytes (at least 4 MiB; default: that, or a
    /// thirty-second of the memory if it is more). When it is used up, writers wait for the worker
    /// at their next first write to a page.
    pub fn extra_memory(mut self, bytes: usize) -> SnapshotterBuilder {
        self.extra_bytes = Some(bytes);
        self
    }

    /// Keeps track of what is written between snapshots. Each page's first write after each
    /// snapshot then costs a fault, and
    /// [`Plan::since`] and a short pause are to be had.
    pub fn incremental(mut self, incremental: bool) -> SnapshotterBuilder {
        self.incremental = incremental;
        self
    }

    /// Starts the snapshotter. Nothing is protected yet.
    pub fn build(self) -> Result<Snapshotter, SnapshotError> {
        let spans = Spans::new(self.memory)?;
        let has_mappings = spans.mappings().next().is_some();
        let uffd = has_mappings
            .then(|| open_for_writes(self.delivery))
            .transpose()?;
        if let Some(uffd) = &uffd {
            register(uffd, &spans)?;
            refuse_huge_pages(uffd, &spans)?;
        }
        let presence = uffd.as_ref().map(Presence::new).transpose()?;
        let default = spans.pages() / POOL_SHARE;
        let slots = self.extra_bytes.map_or(default, |bytes| bytes / PAGE_SIZE);
        // No page is put aside twice.
        let slots = slots.min(spans.pages()).max(POOL_PAGES_MIN);
        let pool = Pool::new(slots).map_err(system("mmap"))?;
        let shared = Arc::new(Shared::new(
            Guard::new(spans, uffd.map(Protector::Uffd)),
            pool,
        ));
        let faults = match self.delivery {
            _ if !has_mappings => FaultSource::none(),
            Delivery::Thread => FaultSource::by_thread(&shared)?,
            Delivery::Signal => FaultSource::by_signal(&shared, Signal::Bus, &shared.guard.spans)?,
        };
        let worker = Worker::start(&shared, self.incremental)?;
        let armer = Armer::new(&shared)?;
        observe(&shared.guard.spans, &shared)?;
        Ok(Snapshotter {
            shared,
            faults: Some(faults),
            worker: Some(worker),
            armer: Some(armer),
            incremental: self.incremental,
            presence,
            arming: Mutex::new(()),
        })
    }
}
