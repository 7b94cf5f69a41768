//! [`Snapshotter`]: images of memory at one instant, taken while the program goes on writing.
//!
//! # How
//!
//! While the writers are held still ([`Hold`]), every page is write-protected ([`arm`]): that is the whole pause. Then they go on. The first
//! write to a page puts its old bytes aside and opens the page at once ([`copy_aside`]); a worker takes the pages put aside and sweeps the rest
//! ([`sweep`]) into a file ([`writer`]). A page is claimed exactly once, under a lock bit of its own ([`pages`]).
//!
//! A snapshotter that is *incremental* leaves pages protected after they are saved. It then knows which pages were written since any earlier
//! snapshot of its own, so that a later one can leave out the rest, and has only those to protect again. *Pre-arming* protects what is
//! open before the writers are held, so that the pause has only to do what was written in the last moment.
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
pub(crate) mod sweep;
mod worker;
pub mod working_set;
pub mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use hold::{Hold, ParkThreads};
use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::park::ParkError;
use pagetide_kernel::sync::now_ns;
pub use worker::{Report, Snapshot};

use super::faults::{Delivery, FaultSource, open_for_writes, register, unwatch, watch};
use super::guard::{Guard, Protector};
use super::memory::{Memory, Spans, TrackError, system};
use arm::Armer;
use copy_aside::Shared;
use format::{RegionEntry, SnapshotId};
use pool::Pool;
use sink::{FileSink, Sink};
use worker::{Job, Worker, lock};
use writer::{Parent, Writer};

/// Least pages that old bytes have room for.
const POOL_PAGES_MIN: usize = 1024;
/// Without a limit given, one page of extra memory for so many of the memory.
const POOL_SHARE: usize = 32;

/// Why a snapshot could not be taken. The program's memory is as it would be without it, and no file is left under the snapshot's name.
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
        "the hold closure returned without arming; it must call its argument once, while the writers hold still"
    )]
    NotArmed,
    /// One at a time.
    #[error("a snapshot of this memory is being taken; wait for it or cancel it")]
    Busy,
    /// The base is not known here.
    #[error(
        "snapshot {0} cannot be built upon: it is not among the last {bases} complete ones of this snapshotter, or that is not incremental (Builder::incremental)",
        bases = worker::BASES_MAX
    )]
    Base(SnapshotId),
    /// The name is taken, in the chain.
    #[error(
        "a snapshot that this one would build on is called '{0}' as well; every file of a chain needs a name of its own"
    )]
    SameName(String),
    /// Cancelled.
    #[error("the snapshot was cancelled")]
    Cancelled,
    /// The file or sink failed.
    #[error("the snapshot could not be written: {0}")]
    Sink(#[from] std::io::Error),
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

    /// The most memory for old bytes of pages, in bytes (at least 4 MiB; default: that, or a thirty-second of the memory if it is more). When it is
    /// used up, writers wait for the worker at their next first write to a page.
    pub fn extra_memory(mut self, bytes: usize) -> Builder {
        self.extra_bytes = Some(bytes);
        self
    }

    /// Keeps track of what is written between snapshots. Each page's first write after each snapshot then costs a fault, and
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
        }
        let default = spans.pages() / POOL_SHARE;
        let slots = self.extra_bytes.map_or(default, |bytes| bytes / PAGE_SIZE);
        let pool = Pool::new(slots.max(POOL_PAGES_MIN)).map_err(system("mmap"))?;
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

    /// Protects most of the memory before the writers are held: the pause shrinks, the writes in between cost a fault more.
    pub fn pre_armed(mut self) -> Plan {
        self.pre_arm = true;
        self
    }
}

/// Takes snapshots of some memory, one at a time.
///
/// # What the program must not do
///
/// While a snapshot is being taken, memory must not be emptied (`MADV_DONTNEED`, `MADV_FREE`), unmapped or moved: the snapshot would show
/// zeros or fail. Devices that write to it by themselves (direct I/O, `io_uring` with registered buffers) must be quiet from the pause until the end.
/// A forked child has the memory without any protection, and must not use the snapshotter.
pub struct Snapshotter {
    shared: Arc<Shared>,
    faults: Option<FaultSource>,
    worker: Option<Worker>,
    armer: Option<Armer>,
    incremental: bool,
    /// Held while memory is armed: a round that somebody else is in the middle of must be over before the writers are held, for that somebody may
    /// be among them.
    arming: Mutex<()>,
}

/// A snapshot that is begun and not handed to the worker yet.
struct Begun<'s>(&'s Snapshotter);

impl Drop for Begun<'_> {
    /// It will not be, as arming failed or the hold closure panicked.
    fn drop(&mut self) {
        worker::clean_up(&self.0.shared, self.0.incremental);
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

    /// Takes a snapshot into the file `path`, which appears when it is complete; a file that was there is replaced then. Returns when the pause is over.
    pub fn snapshot(
        &self,
        path: &Path,
        plan: Plan,
        hold: impl Hold,
    ) -> Result<Snapshot, SnapshotError> {
        let sink = FileSink::create(path)?;
        self.snapshot_to(Box::new(sink), path.to_owned(), plan, hold)
    }

    /// Takes a snapshot into a sink; `name` is what incremental ones will call it.
    pub fn snapshot_to(
        &self,
        sink: Box<dyn Sink>,
        name: PathBuf,
        plan: Plan,
        hold: impl Hold,
    ) -> Result<Snapshot, SnapshotError> {
        let worker = self
            .worker
            .as_ref()
            .expect("runs until the snapshotter is dropped");
        let claim = worker.claim().ok_or(SnapshotError::Busy)?;
        let name = name
            .file_name()
            .map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let (base, parent) = match plan.base {
            None => (0, None),
            Some(id) => {
                let base = worker.base(id).filter(|_| self.incremental);
                let (epoch, parent) = base.ok_or(SnapshotError::Base(id))?;
                if worker.chain_has(epoch, &name) {
                    return Err(SnapshotError::SameName(name));
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
        if plan.pre_arm {
            self.close_most()?;
        }
        let armer = self
            .armer
            .as_ref()
            .expect("lives as long as the snapshotter");
        let (faults, copies) = (
            self.shared.faults.load(SeqCst),
            self.shared.copies.load(SeqCst),
        );
        let waits = self.shared.waits.load(SeqCst);
        let open_pages = self.shared.guard.open_pages();
        let started_ns = now_ns();
        let (mut epoch, mut armed_ns) = (None, 0);
        let mut result = Ok(());
        let mut begun = None;
        let held = hold.hold(&mut || {
            let start_ns = now_ns();
            if epoch.is_none() {
                begun = Some(Begun(self));
                epoch = Some(self.shared.begin(base));
                result = armer.close_all();
            }
            armed_ns = now_ns() - start_ns;
        });
        let pause_ns = now_ns() - started_ns;
        let Some(epoch) = epoch else {
            held?;
            return Err(SnapshotError::NotArmed);
        };
        drop(arming);
        result.map_err(system("write-protecting memory"))?;
        std::mem::forget(begun);
        let report = Report {
            id,
            pause: Duration::from_nanos(pause_ns),
            arming: Duration::from_nanos(armed_ns),
            open_pages_before: open_pages as u64,
            faults,
            copies_aside: copies,
            waits,
            ..Report::default()
        };
        Ok(worker.submit(
            claim,
            Job {
                writer,
                phase: self.shared.phase(),
                epoch,
                name,
                report,
                started_ns,
            },
        ))
    }

    /// Protects what is open, while writers go on, until little is: the next snapshot's pause has only that to do. Returns how many pages are
    /// open now. Also useful by itself some time before a snapshot.
    pub fn pre_arm(&self) -> Result<usize, SnapshotError> {
        let _arming = lock(&self.arming);
        self.close_most()
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
        // Cancels what is being taken. Then everything is opened while faults are still served, and only then do they end.
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
