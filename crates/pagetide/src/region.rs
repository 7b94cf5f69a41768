//! [`Region`]: a span of memory whose resident part is bounded.
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::park::Exemption;
use pagetide_kernel::thread::{Urgency, set_signal_mask, set_urgency};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use pagetide_store::{Store, StoreError};
use rustix::io::Errno;

use crate::ledger::Ledger;
use crate::pager::evict::Evictor;
use crate::pager::fault::FaultThread;
use crate::pager::policy::Kind;
use crate::pager::pool::ServerPool;
use crate::pager::request::{Completion, Request};
use crate::pager::signal::Registration;
use crate::pager::watch::Watcher;
use crate::pager::word::{PIN, PIN_MAX, State};
use crate::pager::{Handles, Ownership, Pager, StartError};
use crate::report::Statistics;

/// A handler of the program's that touches the region must not run on a thread that serves the region.
const NO_SIGNALS: u64 = !0;

/// How a fault reaches the pager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// A handler thread reads the userfaultfd. System calls on missing pages work.
    #[default]
    Thread,
    /// The faulting thread serves its fault itself, in a SIGBUS handler: no other thread has to wake up, which about halves the cost,
    /// and no privilege is needed.
    ///
    /// The price: a system call on a missing page (or a write by one to a protected page) fails with EFAULT, so pass memory to system calls
    /// only inside [`Region::with_resident`] or under a [`Region::pin`]. A SIGBUS handler that the program installs later must pass
    /// on what it does not know; one installed before gets what is not ours. The handler runs on the thread's alternate stack if it has
    /// one and needs little there: it goes on to a stack of its own. Thread stacks must not lie in the region. At most 256 such regions, and
    /// spans tracked by signals, at a time.
    Signal,
}

/// What can go wrong with a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The length is not positive, or too large to map.
    #[error(
        "a region of {0} bytes cannot be mapped; give a length from one page up to what the address space holds"
    )]
    Length(usize),
    /// The pager could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The store could not be opened.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// A range reaches beyond the region.
    #[error("bytes {0:?} reach beyond the region's {1} bytes")]
    Range(Range<usize>, usize),
    /// The pages do not fit in the budget, or are pinned more often than can be counted.
    #[error("{0} pages cannot be pinned within a budget of {1} pages")]
    Pinned(u64, u64),
    /// The new bound did not hold in time.
    #[error(
        "the budget of {0} bytes does not hold yet after {1:?}: pinned pages or a failing store keep memory resident"
    )]
    Budget(u64, Duration),
    /// Too many regions with signal delivery, or the signal handler could not be installed.
    #[error("signal delivery: {0}; use thread delivery, or fewer regions (at most 256 at a time)")]
    Signal(Errno),
    /// Reading from this store allocates memory, which a signal handler must not.
    #[error(
        "signal delivery does not go with the {0} store, whose reads allocate memory: use thread delivery, or let a TLS proxy on this machine encrypt"
    )]
    Delivery(&'static str),
    /// A page could not be made resident: its bytes are lost.
    #[error("a page could not be loaded: {0}")]
    Load(Errno),
}

/// Makes a [`Region`].
#[must_use]
pub struct Builder {
    length: usize,
    resident: Option<u64>,
    store: Option<Box<dyn Store>>,
    uri: String,
    delivery: Delivery,
    policy: Kind,
}

impl Builder {
    /// Bytes of memory; rounded up to pages.
    pub fn length(mut self, bytes: usize) -> Builder {
        self.length = bytes;
        self
    }

    /// The most bytes that may be resident; rounded up to pages, at least one. Default: the whole length.
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
        if delivery == Delivery::Signal && store.capabilities().get_allocates {
            return Err(RegionError::Delivery(store.capabilities().scheme));
        }
        let memory = Mapping::new(length).map_err(|_| RegionError::Length(length))?;
        let ledger_memory = Mapping::new(Ledger::SIZE).map_err(|_| RegionError::Length(length))?;
        // SAFETY: a zeroed mapping of the right size is a valid ledger (all atomics); it is leaked below, so it lives for good.
        let ledger: &'static Ledger = unsafe { &*ledger_memory.leak().cast::<Ledger>() };
        ledger.pid.store(std::process::id(), Ordering::Relaxed);
        let pages = PageRange::covering(0, resident.unwrap_or(length as u64) as usize).pages();
        let ownership = match delivery {
            Delivery::Thread => Ownership::Region,
            Delivery::Signal => Ownership::SignalRegion,
        };
        let pager = Arc::new(Pager::new(ownership, pages, store, ledger)?.with_policy(policy));
        pager.install_handles(Handles::open(ownership, None)?)?;
        let pool = Arc::new(ServerPool::new(Arc::clone(&pager))?);
        let signals = match delivery {
            Delivery::Thread => None,
            Delivery::Signal => {
                Some(Registration::new(memory.range(), &pool).map_err(RegionError::Signal)?)
            }
        };
        let mut threads = Vec::new();
        let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
            // Inherited, so that there is no moment without.
            let mask = set_signal_mask(NO_SIGNALS);
            let started = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    // It writes no page's bytes of its own accord, and parked threads may wait for it.
                    let _never_parked = Exemption::current_thread();
                    body();
                })
                .map_err(|_| StartError::System("start a thread", Errno::AGAIN));
            set_signal_mask(mask);
            started
        };
        let (ready, fault_thread) = (Completion::new(), Arc::clone(&pager));
        let told = Arc::clone(&ready);
        threads.push(start(
            "pagetide-fault",
            Box::new(move || match FaultThread::new(&fault_thread) {
                Ok(mut thread) => {
                    told.finish(Ok(()));
                    set_urgency(Urgency::Prompt);
                    thread.run();
                }
                Err(_) => told.finish(Err(Errno::NOMEM)),
            }),
        )?);
        ready
            .wait()
            .map_err(|errno| StartError::System("mmap", errno))?;
        let evictor = Arc::clone(&pager);
        threads.push(start(
            "pagetide-evict",
            Box::new(move || Evictor::new(&evictor).run()),
        )?);
        let served = Arc::new(Served {
            memory,
            signals,
            pool,
            pager,
            threads,
            watching: Mutex::new(()),
        });
        let region = Region { served };
        let attached = Completion::new();
        region.ask(Request::Attach(
            region.served.memory.range(),
            Arc::clone(&attached),
        ));
        attached
            .wait()
            .map_err(|errno| StartError::System("register memory", errno))?;
        Ok(region)
    }
}

/// Memory of which at most a budget is resident; the rest is in a store and comes back when touched.
///
/// # Access
///
/// The memory is plain memory at [`Region::as_ptr`], for any thread and any system call. It starts as zeros. It must not be unmapped,
/// moved (`mremap`), emptied (`madvise`) or shared with a forked child: the child finds no memory there.
///
/// # Safety of references
///
/// [`Region::as_slice`] and [`Region::as_mut_slice`] borrow the region as memory; paging does not change what bytes they show.
/// A page the store lost raises SIGBUS, as a failing disk does under a mapped file.
pub struct Region {
    served: Arc<Served>,
}

/// The memory and all that serves it. A tracker or a snapshotter of the region shares it, so that it lasts as long as they do.
pub(crate) struct Served {
    pub(crate) memory: Mapping,
    signals: Option<Registration>,
    pool: Arc<ServerPool>,
    pub(crate) pager: Arc<Pager>,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// Held by whoever begins to watch.
    watching: Mutex<()>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Served {
    /// Has `watcher` told of first writes to pages it has closed; false if somebody watches already. When this returns, everybody
    /// who serves knows.
    ///
    /// # Safety
    /// `watcher` lives until [`Pager::unwatch`] has returned.
    pub(crate) unsafe fn watch(&self, watcher: *const dyn Watcher) -> bool {
        let _one = self
            .watching
            .lock()
            .unwrap_or_else(|held| held.into_inner());
        // SAFETY: passed on.
        if !unsafe { self.pager.watch(watcher) } {
            return false;
        }
        // The pager's threads, and those that serve their own faults, have finished what they were at.
        self.pager.hold_still();
        self.pager.let_go();
        self.pool.wait_for_all();
        true
    }
}

impl Region {
    /// A builder with the defaults: `ram:` store, thread delivery, everything resident.
    pub fn builder() -> Builder {
        Builder {
            length: 0,
            resident: None,
            store: None,
            uri: "ram:".into(),
            delivery: Delivery::Thread,
            policy: Kind::default(),
        }
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.served.memory.as_ptr()
    }

    /// Bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.served.memory.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for the region's life; writes need `&mut self` or raw pointers, whose users answer for aliasing.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The memory, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, exclusive by the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// The statistics now.
    pub fn stats(&self) -> Statistics {
        self.served.pager.note_store();
        self.served.pager.ledger.statistics()
    }

    /// Changes the most bytes that may be resident (at least one page) and waits, at most ten seconds, until the bound holds.
    pub fn set_budget(&self, bytes: u64) -> Result<(), RegionError> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let pages = PageRange::covering(0, bytes as usize).pages();
        self.served.pager.set_budget(pages);
        match wait_within_budget(&self.served.pager, PATIENCE) {
            true => Ok(()),
            false => Err(RegionError::Budget(bytes, PATIENCE)),
        }
    }

    /// Page number `index` of the region (its 4096 bytes), made resident first if it is not: without a trap, so at a fraction of a
    /// fault's cost. For code that can ask before it touches, such as a database or a graph engine; a page that is resident costs
    /// one load and a comparison. The page may be evicted at any time, then the next access is a fault as usual.
    ///
    /// # Panics
    /// If the region has no such page.
    pub fn get(&self, index: usize) -> Result<&[u8; PAGE_SIZE], RegionError> {
        assert!(
            index < self.len() / PAGE_SIZE,
            "page {index} of a region of {} pages",
            self.len() / PAGE_SIZE
        );
        let page = self.served.memory.range().start.add(index as u64);
        if !self.served.pager.table.load(page).is_resident()
            && !self.served.pool.serve(page, false, false)
        {
            return Err(RegionError::Load(Errno::IO));
        }
        // SAFETY: inside the memory, mapped for the region's life; as `as_slice` otherwise.
        Ok(unsafe { &*(page.address() as *const [u8; PAGE_SIZE]) })
    }

    /// Calls `action` with the bytes of `range`, all resident and writable without a fault, so that system calls can read and write them
    /// in any delivery. They must fit in the budget.
    pub fn with_resident<R>(
        &self,
        range: Range<usize>,
        action: impl FnOnce(*mut [u8]) -> R,
    ) -> Result<R, RegionError> {
        let _pinned = self.pin(range.clone())?;
        for page in self.pages(range.clone())?.iter() {
            // A page that is there but protected would fail a system call that writes to it.
            let protected = self.served.pager.watch.is_watched()
                || self.served.pager.table.load(page).state() == State::Clean;
            if protected && !self.served.pool.serve(page, true, true) {
                return Err(RegionError::Load(Errno::IO));
            }
        }
        // SAFETY: `pages` has checked that the range lies in the region.
        let start = unsafe { self.as_ptr().add(range.start) };
        Ok(action(std::ptr::slice_from_raw_parts_mut(
            start,
            range.end - range.start,
        )))
    }

    /// Starts making `range` (bytes) resident as far as the budget has room, without waiting.
    pub fn prefetch(&self, range: Range<usize>) -> Result<(), RegionError> {
        let range = self.pages(range)?;
        self.ask(Request::Load {
            range,
            must: false,
            done: Completion::new(),
        });
        Ok(())
    }

    /// Makes the resident pages of `range` (bytes) that are not pinned non-resident, and waits until they are.
    pub fn evict(&self, range: Range<usize>) -> Result<(), RegionError> {
        let range = self.pages(range)?;
        self.served.pager.evict_range(range);
        Ok(())
    }

    /// Makes `range` (bytes) resident and keeps it so until the guard is dropped. Pins nest. All pinned pages must fit in the budget.
    pub fn pin(&self, range: Range<usize>) -> Result<PinGuard<'_>, RegionError> {
        let range = self.pages(range)?;
        pin_pages(&self.served.pager, range, |request| self.ask(request))?;
        Ok(PinGuard {
            pager: &self.served.pager,
            range,
        })
    }

    fn pages(&self, range: Range<usize>) -> Result<PageRange, RegionError> {
        if range.start > range.end || range.end > self.len() {
            return Err(RegionError::Range(range, self.len()));
        }
        Ok(PageRange::covering(
            self.as_ptr() as usize + range.start,
            range.end - range.start,
        ))
    }

    fn ask(&self, request: Request) {
        self.served.pager.post(request);
        self.served.pager.ring_fault_thread();
    }

    pub(crate) fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// The pager, for checks of its bookkeeping.
    #[doc(hidden)]
    pub fn pager(&self) -> &Pager {
        &self.served.pager
    }
}

/// Waits until no more than the budget is resident, at most `timeout`; whether it is.
pub fn wait_within_budget(pager: &Pager, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let seen = pager.progress.look();
        if pager.is_within_budget() {
            return true;
        }
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        pager.work.ring();
        pager
            .progress
            .wait(seen, Some((deadline - now).min(Duration::from_millis(20))));
    }
}

/// Pins `range` and waits until it is resident. `ask` hands a request to the fault thread.
pub fn pin_pages(
    pager: &Pager,
    range: PageRange,
    ask: impl Fn(Request),
) -> Result<(), RegionError> {
    let (pages, budget) = (range.pages(), pager.budget());
    if pager.table.ensure(range).is_err()
        || pager.pinned.fetch_add(pages, Ordering::AcqRel) + pages > budget
    {
        pager.pinned.fetch_sub(pages, Ordering::AcqRel);
        return Err(RegionError::Pinned(pages, budget));
    }
    for page in range.iter() {
        let was = pager.table.update(page, |w| {
            if w.pins() < PIN_MAX {
                w.with_pins(w.pins() + 1)
            } else {
                w
            }
        });
        if was.pins() == PIN_MAX {
            unpin_pages(
                pager,
                PageRange {
                    start: range.start,
                    end: page,
                },
            );
            pager
                .pinned
                .fetch_sub(range.end.0 - page.0, Ordering::AcqRel);
            return Err(RegionError::Pinned(pages, budget));
        }
    }
    let done = Completion::new();
    ask(Request::Load {
        range,
        must: true,
        done: Arc::clone(&done),
    });
    done.wait().map_err(|errno| {
        unpin_pages(pager, range);
        RegionError::Load(errno)
    })
}

/// Takes one pin off every page of `range`.
pub fn unpin_pages(pager: &Pager, range: PageRange) {
    for page in range.iter() {
        pager.table.update(page, |w| {
            if w.pins() > 0 {
                crate::pager::word::Word(w.0 - PIN)
            } else {
                w
            }
        });
    }
    pager.pinned.fetch_sub(range.pages(), Ordering::AcqRel);
}

/// Keeps pages resident while it lives.
#[must_use = "the pages are pinned only while the guard lives"]
pub struct PinGuard<'r> {
    pager: &'r Pager,
    range: PageRange,
}

impl Drop for PinGuard<'_> {
    fn drop(&mut self) {
        unpin_pages(self.pager, self.range);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.pager.closing.store(true, Ordering::SeqCst);
        self.pager.work.ring();
        self.pager.ring_fault_thread();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.signals = None;
    }
}
