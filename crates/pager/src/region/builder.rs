//! How a region comes to be: memory, pager, threads.
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::park::Exemption;
use pagetide_kernel::residency::cachestat;
use pagetide_kernel::sync::Mutex;
use pagetide_kernel::thread::{C_LIBRARY_SIGNALS, Urgency, set_signal_mask, set_urgency};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use pagetide_store::Store;
use rustix::io::Errno;

use super::{Delivery, Region, RegionError, Served};
use crate::budget::Budget;
use crate::evict::controller::Evictor;
use crate::fault::handler::Handler;
use crate::fault::pool::HandlerPool;
use crate::fault::signal::Registration;
use crate::fault::thread::FaultThread;
use crate::handles::system;
use crate::ledger::Ledger;
use crate::page::policy::Kind;
use crate::requests::{Completion, Request};
use crate::{Handles, Ownership, Pager, StartError};

/// Threads that read ahead of scans: while one waits for the disk another installs pages.
const AHEAD_THREADS: usize = 2;

/// A handler of the program's that touches the region must not run on a thread that serves the
/// region.
const NO_SIGNALS: u64 = !C_LIBRARY_SIGNALS;

/// Makes a [`Region`].
///
/// ```
/// use pagetide::{Policy, Region, RegionBuilder};
///
/// let builder: RegionBuilder = Region::builder()
///     .length(64 << 20) // bytes of memory
///     .resident(8 << 20) // bytes that may be resident
///     .store_uri("ram:?max=64M") // where the others are; or a file, a device, a server
///     .policy(Policy::S3Fifo);
/// match builder.build() {
///     Ok(region) => assert_eq!(region.len(), 64 << 20),
///     Err(error) => eprintln!("{error}"), // no right to open a userfaultfd, say
/// }
/// ```
#[must_use]
pub struct Builder {
    length: usize,
    resident: Option<u64>,
    store: Option<Box<dyn Store>>,
    uri: String,
    source: Option<(File, u64, u64)>,
    delivery: Delivery,
    policy: Kind,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            length: 0,
            resident: None,
            store: None,
            uri: "ram:".into(),
            source: None,
            delivery: Delivery::Thread,
            policy: Kind::default(),
        }
    }
}

impl Builder {
    /// Bytes of memory; rounded up to pages.
    pub fn length(mut self, bytes: usize) -> Builder {
        self.length = bytes;
        self
    }

    /// The most bytes that may be resident; rounded up to pages, at least one. Default: the whole
    /// length.
    pub fn resident(mut self, bytes: u64) -> Builder {
        self.resident = Some(bytes);
        self
    }

    /// The store, by URI (default `ram:`).
    pub fn store_uri(mut self, uri: &str) -> Builder {
        self.uri = uri.to_owned();
        self
    }

    /// The store, ready made.
    pub fn store(mut self, store: Box<dyn Store>) -> Builder {
        self.store = Some(store);
        self
    }

    /// What the memory holds at first: `length` bytes of `file` from `offset` on, and zeros after
    /// them. Pages are read from the file when they are touched, and again after they were evicted,
    /// until they are written; then they go to the store, and the file stays as it is. So it must
    /// not change meanwhile: a page that it has no more is lost. Sets the region's length too, if
    /// that is less.
    ///
    /// ```
    /// use pagetide::Region;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// let length = file.metadata()?.len();
    /// let builder = Region::builder().source(file, 0, length).resident(64 << 10);
    /// let Ok(region) = builder.build() else { return Ok(()) }; // no right to open a userfaultfd
    /// assert_eq!(&region.as_slice()[..4], b"\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    pub fn source(mut self, file: File, offset: u64, length: u64) -> Builder {
        self.length = self
            .length
            .max(usize::try_from(length).unwrap_or(usize::MAX));
        self.source = Some((file, offset, length));
        self
    }

    /// How faults are delivered.
    pub fn delivery(mut self, delivery: Delivery) -> Builder {
        self.delivery = delivery;
        self
    }

    /// Which pages go first (default [`Kind::S3Fifo`]).
    pub fn policy(mut self, policy: Kind) -> Builder {
        self.policy = policy;
        self
    }

    /// Maps the memory and starts the pager.
    pub fn build(self) -> Result<Region, RegionError> {
        let Builder {
            length,
            resident,
            store,
            uri,
            source,
            delivery,
            policy,
        } = self;
        if length == 0 || length > isize::MAX as usize / 2 {
            return Err(RegionError::Length(length));
        }
        let store = match store {
            Some(store) => store,
            None => pagetide_store::open(&uri)?,
        };
        let source = source.map(|(file, offset, length)| {
            let source = pagetide_store::source(file, offset, length, is_cached);
            source.map(|source| (source, length))
        });
        let source = source.transpose()?;
        if delivery == Delivery::Signal && store.capabilities().get_allocates {
            return Err(RegionError::Delivery(store.capabilities().scheme));
        }
        let ownership = match delivery {
            Delivery::Thread => Ownership::Region,
            Delivery::Signal => Ownership::SignalRegion,
        };
        let handles = Handles::open(ownership, policy, None)?;
        let memory = handles.map_managed(length).map_err(|error| match error {
            StartError::System(_, Errno::NOMEM) => RegionError::Length(length),
            error => error.into(),
        })?;
        let counters = Mapping::new(Ledger::SIZE).map_err(|_| RegionError::Length(length))?;
        // SAFETY: the pager, which alone uses it, drops the memory after all else that it has.
        let ledger = unsafe { ledger_in(&counters) };
        let pages = Budget::pages_of(resident.unwrap_or(length as u64));
        let pager = Pager::new(ownership, pages, handles, store, ledger)?.with_policy(policy);
        let mut pager = pager.with_ledger_memory(counters);
        if let Some((source, length)) = source {
            let sourced = PageRange::covering(memory.as_ptr() as usize, length as usize);
            pager = pager.with_source(source, sourced);
        }
        let pager = Arc::new(pager);
        let pool = Arc::new(HandlerPool::new(Arc::clone(&pager))?);
        let signals = match delivery {
            Delivery::Thread => None,
            Delivery::Signal => {
                Some(Registration::new(memory.range(), &pool).map_err(RegionError::Signal)?)
            }
        };
        let threads = start_threads(&pager)?;
        let served = Arc::new(Served {
            memory,
            signals,
            pool,
            pager,
            threads,
            observing: Mutex::new(()),
        });
        let region = Region { served };
        let attached = Completion::new();
        region.ask(Request::Attach(
            region.served.memory.range(),
            Arc::clone(&attached),
        ));
        attached.wait().map_err(|errno| match errno {
            // There is no room for so many page words.
            Errno::NFILE | Errno::NOMEM => RegionError::Length(length),
            errno => StartError::System("register memory", errno).into(),
        })?;
        Ok(region)
    }
}

/// Where the kernel does not tell (before Linux 6.5), what is asked for may be there.
fn is_cached(file: BorrowedFd<'_>, offset: u64, length: u64) -> bool {
    cachestat(file, offset, length)
        .map_or(true, |found| 2 * found.cached * PAGE_SIZE as u64 >= length)
}

/// A ledger of this process in `memory`, which is as large as one and holds zeros.
///
/// # Safety
/// It is not used any more when `memory` is dropped.
unsafe fn ledger_in(memory: &Mapping) -> &'static Ledger {
    // SAFETY: zeros of that size are a valid ledger (all atomics); that it is there as long as it
    // is used is the caller's word.
    let ledger: &'static Ledger = unsafe { &*memory.as_ptr().cast::<Ledger>() };
    ledger.pid.store(std::process::id(), Ordering::Relaxed);
    ledger
}

/// Starts the fault thread and the evictor; on return the first serves.
fn start_threads(pager: &Arc<Pager>) -> Result<Vec<JoinHandle<()>>, StartError> {
    let ready = Completion::new();
    let (fault_pager, evict_pager) = (Arc::clone(pager), Arc::clone(pager));
    let told = Arc::clone(&ready);
    let fault = start("pagetide-fault", move || {
        match FaultThread::new(&fault_pager) {
            Ok(mut thread) => {
                told.finish(Ok(()));
                set_urgency(Urgency::Prompt);
                thread.run();
            }
            Err(_) => told.finish(Err(Errno::NOMEM)),
        }
    })?;
    ready.wait().map_err(system("mmap"))?;
    let evict = start("pagetide-evict", move || Evictor::new(&evict_pager).run())?;
    let mut threads = vec![fault, evict];
    let ahead = usize::from(pager.source.is_some()) * AHEAD_THREADS;
    for _ in 0..ahead {
        let ahead_pager = Arc::clone(pager);
        let ahead = start("pagetide-ahead", move || {
            // Without the memory for it, pages are read by who needs them.
            if let Ok(mut handler) = Handler::for_scans(&ahead_pager) {
                handler.serve_scans();
            }
        });
        threads.push(ahead.inspect_err(|_| pager.close())?);
    }
    Ok(threads)
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    // Inherited, so that there is no moment without.
    let mask = set_signal_mask(NO_SIGNALS);
    let started = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            // It writes no page's bytes of its own accord, and parked threads may wait for it.
            let _never_parked = Exemption::current_thread();
            body();
        });
    set_signal_mask(mask);
    started.map_err(|_| StartError::System("start a thread", Errno::AGAIN))
}
