//! [`Snapshotter`]: images of memory at one instant, taken while the program goes on writing.
//!
//! # How
//!
//! While the writers are held still ([`Hold`]), every page is write-protected (`arm`): that is the
//! whole pause. Then they go on. The first write to a page puts its old bytes aside and opens the
//! page at once ([`copy_aside`]); a worker takes the pages put aside and sweeps the rest
//! ([`sweep`]) into a file ([`writer`]). A page is claimed exactly once, under a lock bit of its
//! own ([`pages`]).
//!
//! A snapshotter that is *incremental* leaves pages protected after they are saved. It then knows
//! which pages were written since any earlier snapshot of its own, so that a later one can leave
//! out the rest, and has only those to protect again. *Pre-arming* protects what is open before the
//! writers are held, so that the pause has only to do what was written in the last moment.
pub(crate) mod arm;
pub(crate) mod copy_aside;
pub mod format;
pub mod hold;
pub mod image;
pub mod lazy;
pub(crate) mod pages;
pub(crate) mod place;
pub(crate) mod pool;
pub mod reader;
pub mod restore;
pub mod sink;
pub(crate) mod start;
pub(crate) mod sweep;
mod worker;
pub mod working_set;
pub mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

pub use hold::{Hold, ParkThreads};
use pagetide_kernel::park::ParkError;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
pub use worker::{Report, Snapshot};

use super::faults::{
    Delivery, FaultSource, open_for_writes, refuse_huge_pages, register, unwatch, watch,
};
use super::guard::{Guard, Protector};
use super::memory::{Backing, Memory, Spans, TrackError, system};
use super::presence::Presence;
use arm::Armer;
use copy_aside::Shared;
use format::{RegionEntry, SnapshotId};
use pool::Pool;
use sink::{FileSink, Sink, directory_of};
use worker::{Claim, Job, Outcome, Worker, lock};
use writer::{Parent, Writer};

/// Least pages that old bytes have room for.
const POOL_PAGES_MIN: usize = 1024;
/// Longest name of a snapshot, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Without a limit given, one page of extra memory for so many of the memory.
const POOL_SHARE: usize = 32;

/// Why a snapshot could not be taken. The program's memory is as it would be without it, and no
/// file is left under the snapshot's name.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The memory cannot be snapshotted.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// The writers could not be held.
    #[error(transparent)]
    Park(#[from] ParkError),
    /// The hold closure did not call `arm`.
    #[error(
        "the hold closure returned without arming; it must call its argument once, while the \
         writers hold still"
    )]
    NotArmed,
    /// One at a time.
    #[error("a snapshot of this memory is being taken; wait for it or cancel it")]
    Busy,
    /// The base is not known here.
    #[error(
        "snapshot {0} cannot be built upon: it is not among the last {bases} complete ones of \
         this snapshotter, its file or one that it builds on was replaced by a later snapshot, or \
         the snapshotter is not incremental (Builder::incremental)",
        bases = worker::BASES_MAX
    )]
    Base(SnapshotId),
    /// The name is taken, in the chain.
    #[error(
        "a snapshot that this one would build on is called '{0}' as well; every file of a chain \
         needs a name of its own"
    )]
    SameName(String),
    /// The name cannot be kept in files that would build on this one.
    #[error(
        "'{0}' cannot be a snapshot's name: it must be UTF-8 of at most {NAME_BYTES_MAX} bytes"
    )]
    Name(String),
    /// A snapshot finds the one it builds on beside it.
    #[error("a snapshot that builds on '{0}' must be in the same directory, which is '{1}'")]
    Elsewhere(String, PathBuf),
    /// Cancelled.
    #[error("the snapshot was cancelled")]
    Cancelled,
    /// The file or sink failed.
    #[error("the snapshot could not be written: {0}")]
    Sink(#[from] std::io::Error),
    /// Protecting memory failed while the snapshot was taken: [`Snapshotter::pre_arm`] has said
    /// how.
    #[error(
        "memory could not be protected again while the snapshot was taken, and may have been \
         written unsaved; take it again"
    )]
    Spoiled,
    /// A region's store does not give a page.
    #[error("a page of the memory cannot be had from its store: {0}")]
    Lost(String),
    /// 2^31 snapshots were taken.
    #[error("this snapshotter has taken all the snapshots it can count; make a new one")]
    Epochs,
}

/// Makes a [`Snapshotter`].
#[derive(Debug, Default)]
#[must_use]
pub struct Builder {
    memory: Vec<Memory>,
    delivery: Delivery,
    extra_bytes: Option<usize>,
    incremental: bool,
}

impl Builder {
    /// Adds a span of memory.
    pub fn memory(mut self, memory: Memory) -> Builder {
        self.memory.push(memory);
        self
    }

    /// How first writes reach the snapshotter (default: [`Delivery::Thread`]).
    pub fn delivery(mut self, delivery: Delivery) -> Builder {
        self.delivery = delivery;
        self
    }

    /// The most memory for old bytes of pages, in bytes (at least 4 MiB; default: that, or a
    /// thirty-second of the memory if it is more). When it is used up, writers wait for the worker
    /// at their next first write to a page.
    pub fn extra_memory(mut self, bytes: usize) -> Builder {
        self.extra_bytes = Some(bytes);
        self
    }

    /// Keeps track of what is written between snapshots. Each page's first write after each
    /// snapshot then costs a fault, and
    /// [`Plan::base`] and a short pause are to be had.
    pub fn incremental(mut self, incremental: bool) -> Builder {
        self.incremental = incremental;
        self
    }

    /// Starts the snapshotter. Nothing is protected yet.
    pub fn build(self) -> Result<Snapshotter, SnapshotError> {
        let spans = Spans::new(self.memory)?;
        let has_mappings = spans.mappings().next().is_some();
        let uffd = match has_mappings {
            true => Some(open_for_writes(self.delivery)?),
            false => None,
        };
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
            Delivery::Signal => FaultSource::by_signal(
                &shared,
                pagetide_kernel::trap::Signal::Bus,
                &shared.guard.spans,
            )?,
        };
        let worker = Worker::start(&shared, self.incremental)?;
        let armer = Armer::new(&shared)?;
        watch(&shared.guard.spans, &shared)?;
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

/// How one snapshot is to be taken.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Plan {
    base: Option<SnapshotId>,
    pre_arm: bool,
}

impl Plan {
    /// A full snapshot.
    pub fn full() -> Plan {
        Plan::default()
    }

    /// Only what changed since snapshot `base` of this snapshotter, which was completed.
    pub fn since(base: SnapshotId) -> Plan {
        Plan {
            base: Some(base),
            ..Plan::default()
        }
    }

    /// Protects most of the memory before the writers are held: the pause shrinks, the writes in
    /// between cost a fault more.
    pub fn pre_armed(mut self) -> Plan {
        self.pre_arm = true;
        self
    }
}

/// Takes snapshots of some memory, one at a time.
///
/// # What the program must not do
///
/// While a snapshot is being taken, memory must not be emptied (`MADV_DONTNEED`, `MADV_FREE`),
/// unmapped or moved: the snapshot would show zeros or fail. Between snapshots it may be emptied.
/// Devices that write to it by themselves (direct I/O, `io_uring` with registered buffers) must be
/// quiet from the pause until the end. A forked child has the memory without any protection, and
/// must not use the snapshotter.
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

/// A snapshot that is begun. Dropped before its writers were let go (arming failed, the hold
/// closure panicked), it will not be.
struct Begun<'s> {
    snapshotter: &'s Snapshotter,
    number: u64,
    /// There until it is given to the worker.
    claim: Option<Claim>,
    outcome: Arc<Outcome>,
    armed: bool,
}

impl Begun<'_> {
    fn let_go(mut self, pause: Duration, arming: Duration) -> Snapshot {
        let claim = self.claim.take().expect("given to the worker once, here");
        Arc::clone(&self.outcome).let_go(claim, pause, arming)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        let snapshotter = self.snapshotter;
        if !snapshotter.shared.start.call_off(self.number) {
            // The sweep has begun, because room ran out, and cleans up after itself.
            self.outcome.give_up(claim);
        } else {
            if self.armed {
                worker::clean_up(&snapshotter.shared, snapshotter.incremental);
            }
            self.outcome.wait_until_over();
        }
    }
}

impl Snapshotter {
    /// Makes one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Tries to make one over a scratch page.
    pub fn works() -> Result<(), SnapshotError> {
        let scratch = pagetide_kernel::own::Mapping::new(PAGE_SIZE).map_err(system("mmap"))?;
        // SAFETY: the scratch page outlives the snapshotter and is known to nobody else.
        let memory = unsafe { Memory::mapping("scratch", scratch.as_ptr(), PAGE_SIZE) }?;
        Snapshotter::builder().memory(memory).build().map(drop)
    }

    /// Takes a snapshot into the file `path`, which appears when it is complete; a file that was
    /// there is replaced then. Returns when the pause is over.
    pub fn snapshot(
        &self,
        path: &Path,
        plan: Plan,
        hold: impl Hold,
    ) -> Result<Snapshot, SnapshotError> {
        let sink = FileSink::create(path)?;
        let directory = directory_of(path).canonicalize()?;
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
        let worker = self
            .worker
            .as_ref()
            .expect("runs until the snapshotter is dropped");
        let claim = worker.claim().ok_or(SnapshotError::Busy)?;
        let name = name.file_name().unwrap_or_default();
        let name = match name.to_str() {
            Some(name) if name.len() <= NAME_BYTES_MAX => name.to_owned(),
            _ => return Err(SnapshotError::Name(name.to_string_lossy().into_owned())),
        };
        let (base, parent) = match plan.base {
            None => (0, None),
            Some(id) => {
                let base = worker.base(id).filter(|_| self.incremental);
                let (epoch, parent, beside) = base.ok_or(SnapshotError::Base(id))?;
                if worker.chain_has(epoch, &name) {
                    return Err(SnapshotError::SameName(name));
                }
                if let (Some(beside), Some(directory)) = (beside, &directory)
                    && beside != *directory
                {
                    return Err(SnapshotError::Elsewhere(parent, beside));
                }
                (epoch, Some(Parent { id, name: parent }))
            }
        };
        if self.shared.phase().epoch >= pages::EPOCH_MAX {
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
            self.close_most()?;
        }
        let armer = self
            .armer
            .as_ref()
            .expect("lives as long as the snapshotter");
        let shared = &self.shared;
        let report = Report {
            id,
            open_pages_before: shared.guard.open_pages() as u64,
            faults: shared.faults.load(SeqCst),
            copies_aside: shared.copies.load(SeqCst),
            waits: shared.waits.load(SeqCst),
            ..Report::default()
        };
        let started_ns = now_ns();
        let number = shared.start.queue();
        let outcome = worker.queue(Job {
            number,
            writer,
            name,
            own_sink: directory.is_some(),
            directory,
            report,
            started_ns,
        });
        let mut begun = Begun {
            snapshotter: self,
            number,
            claim: Some(claim),
            outcome,
            armed: false,
        };
        let (mut armed_ns, mut result) = (0, Ok(()));
        let held = hold.hold(&mut || {
            let start_ns = now_ns();
            if !begun.armed {
                begun.armed = true;
                shared.begin(base);
                result = armer.close_all();
                if result.is_ok() {
                    shared.start.arm();
                }
            }
            armed_ns = now_ns() - start_ns;
        });
        let pause_ns = now_ns() - started_ns;
        if !begun.armed {
            held?;
            return Err(SnapshotError::NotArmed);
        }
        drop(arming);
        result.map_err(system("write-protecting memory"))?;
        shared.start.go_if_armed();
        Ok(begun.let_go(
            Duration::from_nanos(pause_ns),
            Duration::from_nanos(armed_ns),
        ))
    }

    /// Protects what is open, while writers go on, until little is: the next snapshot's pause has
    /// only that to do. Returns how many pages are open now. Also useful by itself some time before
    /// a snapshot. While a snapshot is being armed it does nothing.
    pub fn pre_arm(&self) -> Result<usize, SnapshotError> {
        // Who arms for a snapshot may wait for writers, and the caller may be one.
        let _arming = match self.arming.try_lock() {
            Ok(arming) => arming,
            Err(TryLockError::Poisoned(arming)) => arming.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(self.shared.guard.open_pages()),
        };
        self.close_most()
    }

    /// Finds what was emptied since it was closed, which then counts as written, and has pages
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
                for closed in
                    (index(gap.start)..index(gap.end)).filter(|page| shared.guard.is_closed(*page))
                {
                    shared.pages.set_written(closed, closed + 1, epoch);
                    shared.guard.mark(closed, closed + 1);
                }
            };
            if self.incremental {
                presence.unprotected(span.range, emptied)?;
            }
            presence.prepare(span.range)?;
        }
        Ok(())
    }

    fn close_most(&self) -> Result<usize, SnapshotError> {
        let armer = self
            .armer
            .as_ref()
            .expect("lives as long as the snapshotter");
        Ok(armer.close_most()?)
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
        self.shared.guard.open_everything();
        unwatch(&self.shared.guard.spans);
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
