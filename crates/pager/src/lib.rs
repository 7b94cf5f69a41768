//! The pager: keeps the resident pages of attached memory within a budget, and the rest in a store.
//!
//! Two threads do the work. The *fault thread* ([`fault`]) reads the userfaultfd: it serves faults,
//! follows what the program does to its mappings ([`events`]) and takes requests. The *evictor*
//! ([`evict`]) makes pages non-resident ahead of it. What they share is here. The life of a page is
//! in [`page`].
//!
//! # The gate
//!
//! When the program unmaps, moves or empties memory, the kernel sends an event and refuses to
//! install or move pages until the event is read; then the program goes on. Between reading an
//! event and having acted on it the pager's idea of the memory is stale, so that part is done
//! holding the *gate*, and so is the evictor's claiming and moving of a page. Hence an eviction
//! happens either before the event is read, when the kernel still refuses if it came too late, or
//! after the page words say what became of the memory.
#![warn(missing_docs)]
mod attach;
pub mod audit;
mod budget;
mod choose;
mod errand;
pub mod events;
pub mod evict;
pub mod evict_in_place;
pub mod exclusion;
pub mod fault;
pub mod follow;
pub mod freed;
mod handles;
mod loads;
mod open;
pub mod outgoing;
mod own_drops;
pub mod page;
pub mod peek;
pub mod pool;
mod predict;
mod prefetch;
pub mod protocol;
mod quiet;
mod readopt;
pub mod recorder;
pub mod region;
pub mod request;
pub mod serve;
pub mod signal;
mod spans;
mod store_health;
mod stores;
pub mod streams;
mod together;
pub mod turnstile;
pub mod watch;
mod zero_fill;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::{Doorbell, Lock, now_ns};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_store::{Page, Store};

pub use handles::{Handles, StartError};
pub use protocol::{ledger, report, ungoverned};

use crate::ledger::Ledger;
use freed::FreedPlaces;
use handles::system;
use own_drops::OwnDrops;
use page::policy::{self, Policy};
use page::queue::EvictionQueue;
use page::table::PageTable;
use page::word::GENERATIONS;
use protocol::loss::Loss;
use recorder::Recorder;
use request::Request;

/// The most pages the evictor takes at a time: half of the reserve, so that a refill is one turn.
pub const BATCH_PAGES: usize = 256;

/// What kind of memory a pager serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Memory of a [`Region`](region::Region): nobody unmaps or moves it behind the pager's back.
    Region,
    /// The same, with faults served by the faulting threads themselves, in a signal handler.
    SignalRegion,
    /// Memory of a program that knows nothing of the pager: events are followed, and forks leave it
    /// out unless caught.
    Program,
}

/// The state the pager's threads share.
pub struct Pager {
    /// What is known of each page.
    pub table: PageTable,
    /// Resident pages, oldest first.
    pub small: EvictionQueue,
    /// The same, of those that have shown that they are used.
    pub main: EvictionQueue,
    /// Chooses between them.
    policy: Box<dyn Policy>,
    /// What is missed in a steady order, and what to read ahead of it.
    streams: streams::Streams,
    /// Faults are recorded there, if anybody wants to know.
    recorder: AtomicPtr<Recorder>,
    /// See the module's text.
    pub gate: Lock,
    /// Counters.
    pub ledger: &'static Ledger,
    /// Whose memory it is.
    pub ownership: Ownership,
    /// Pages are moved here out of the program's memory.
    pub staging: Mapping,
    /// Whose page a staged page is, by its number; changes with the gate held, and means something
    /// while that page's word says Staged.
    staged_owner: [AtomicU64; BATCH_PAGES],
    /// Where staged pages go to be dropped.
    pub drain: Mapping,
    /// A page without access.
    unreadable: Mapping,
    /// Attached memory, in address order, not overlapping.
    pub spans: Mutex<Vec<PageRange>>,
    /// Events were read and not yet acted on: page words may name what is no longer there, so no
    /// eviction begins. Changes with the gate held.
    renaming: AtomicBool,
    /// Ranges the evictor is emptying in place: their remove events are not the program's.
    own_drops: OwnDrops,
    /// Wakes the evictor.
    pub work: Doorbell,
    errand: errand::Errand,
    /// Rung when resident pages went down, or a request was served.
    pub progress: Doorbell,
    /// In the way of the program's calls when they leave the pager no moment to work.
    pub turnstile: turnstile::Turnstile,
    /// Lets one at a time in of the program's calls that change what is where, and pages that are
    /// emptied in place.
    pub exclusion: exclusion::Exclusion,
    /// Pages the fault thread waits for.
    pub wanted: AtomicU64,
    /// Threads that serve their faults themselves and wait for room.
    pub waiting: AtomicU64,
    /// Where threads that serve their faults themselves run.
    fault_processors: follow::FaultProcessors,
    together: together::Together,
    /// Set in a process that has forked or was forked: pages may be shared with another process.
    pub forked: AtomicBool,
    /// Pages that the evictor itself touches, from the first to before the second; none if they are
    /// equal.
    evictors: [AtomicU64; 2],
    /// Holders that want the evictor to hold still.
    pub pause: AtomicU32,
    /// The evictor is in a round.
    pub evicting: AtomicU32,
    /// Someone wants the fault thread to hold still too (a fork), and whether it does.
    pub park: AtomicU32,
    /// See `park`.
    pub parked: AtomicU32,
    /// Someone without the pager's descriptors wants the fault thread woken.
    pub ring_wanted: AtomicBool,
    /// Counts unmappings and moves heard of: the program may map anew.
    pub mappings_changed: AtomicU64,
    /// Pages pinned, counted once a pin.
    pub pinned: AtomicU64,
    /// Ranges to evict at once, and how many of such requests were served.
    pub evict_now: Mutex<Vec<(PageRange, std::sync::Arc<request::Completion>)>>,
    /// Who is told of first writes.
    pub watch: watch::Watch,
    /// Asks the threads to end (a region is dropped).
    pub closing: AtomicBool,
    requests: Mutex<Vec<Request>>,
    freed: FreedPlaces,
    budget: AtomicU64,
    loan: AtomicU64,
    loan_until_ns: AtomicU64,
    resident: AtomicU64,
    /// Pages attached.
    managed: AtomicU64,
    stores: [AtomicPtr<Box<dyn Store>>; GENERATIONS],
    generation: AtomicU32,
    handles: AtomicPtr<Handles>,
}

impl Pager {
    /// A pager with an empty table. Costs some address space and little memory until memory is
    /// attached.
    pub fn new(
        ownership: Ownership,
        budget_pages: u64,
        handles: Handles,
        store: Box<dyn Store>,
        ledger: &'static Ledger,
    ) -> Result<Pager, StartError> {
        // Stale entries can outnumber resident pages; the queue's memory is given back as it is
        // passed, so be generous.
        let machine_pages = rustix::system::sysinfo().totalram / PAGE_SIZE as u64;
        let queue = || EvictionQueue::new(4 * machine_pages + (1 << 20)).map_err(system("mmap"));
        let pager = Pager {
            table: PageTable::new().map_err(system("mmap"))?,
            small: queue()?,
            main: queue()?,
            policy: policy::Kind::default().make(),
            streams: streams::Streams::default(),
            recorder: AtomicPtr::new(std::ptr::null_mut()),
            gate: Lock::new(),
            ledger,
            ownership,
            staging: handles.map_staging(BATCH_PAGES * PAGE_SIZE)?,
            drain: handles.map_drain(BATCH_PAGES * PAGE_SIZE)?,
            unreadable: Mapping::reserve(PAGE_SIZE).map_err(system("mmap"))?,
            staged_owner: [const { AtomicU64::new(0) }; BATCH_PAGES],
            spans: Mutex::new(Vec::with_capacity(1024)),
            renaming: AtomicBool::new(false),
            own_drops: OwnDrops::default(),
            work: Doorbell::new(),
            errand: errand::Errand::default(),
            progress: Doorbell::new(),
            turnstile: turnstile::Turnstile::default(),
            exclusion: exclusion::Exclusion::new(pagetide_kernel::uffd::events::are_counted()),
            wanted: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            fault_processors: follow::FaultProcessors::default(),
            together: together::Together::default(),
            forked: AtomicBool::new(false),
            evictors: [const { AtomicU64::new(0) }; 2],
            pause: AtomicU32::new(0),
            evicting: AtomicU32::new(0),
            park: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            ring_wanted: AtomicBool::new(false),
            mappings_changed: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            evict_now: Mutex::new(Vec::new()),
            watch: watch::Watch::new(),
            closing: AtomicBool::new(false),
            requests: Mutex::new(Vec::with_capacity(64)),
            budget: AtomicU64::new(budget_pages.max(1)),
            loan: AtomicU64::new(0),
            loan_until_ns: AtomicU64::new(0),
            freed: FreedPlaces::new().map_err(system("mmap"))?,
            resident: AtomicU64::new(0),
            managed: AtomicU64::new(0),
            stores: [const { AtomicPtr::new(std::ptr::null_mut()) }; GENERATIONS],
            generation: AtomicU32::new(0),
            handles: AtomicPtr::new(Box::into_raw(Box::new(handles))),
        };
        pager.stores[0].store(Box::into_raw(Box::new(store)), Ordering::Release);
        ledger
            .budget_bytes
            .store(budget_pages.max(1) * PAGE_SIZE as u64, Ordering::Relaxed);
        ledger.started_ns.store(now_ns(), Ordering::Relaxed);
        Ok(pager)
    }

    /// In a forked child: gives the pager descriptors of its own, with which the staging and drain
    /// areas are registered. The parent's are forgotten, not closed: their numbers mean nothing
    /// here.
    pub fn replace_handles(&self, handles: Handles) -> Result<(), StartError> {
        handles.register_areas(self.staging.range(), self.drain.range())?;
        self.handles
            .store(Box::into_raw(Box::new(handles)), Ordering::Release);
        Ok(())
    }

    /// Records the faults served from now on. A recorder once set lives as long as the process.
    pub fn set_recorder(&self, recorder: Recorder) {
        self.recorder
            .store(Box::into_raw(Box::new(recorder)), Ordering::Release);
    }

    /// In a forked child: the recorder is the parent's.
    pub fn forget_recorder(&self) {
        self.recorder.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// Records a fault, if anybody wants to know.
    fn record(&self, page: PageNumber, kind: recorder::Kind) {
        // SAFETY: set once and never freed.
        if let Some(recorder) = unsafe { self.recorder.load(Ordering::Acquire).as_ref() } {
            recorder.record(page, kind);
        }
    }

    /// The descriptors.
    pub fn handles(&self) -> &Handles {
        // SAFETY: made from a box with the pager, and never freed.
        unsafe { &*self.handles.load(Ordering::Acquire) }
    }

    /// Wakes the fault thread. Only from threads that share the pager's descriptors.
    pub fn ring_fault_thread(&self) {
        let _ = rustix::io::write(&self.handles().bell, &1u64.to_ne_bytes());
    }

    /// Updates what is known of the managed memory's size from `spans`.
    pub fn note_managed(&self, spans: &[PageRange]) {
        let bytes: u64 = spans.iter().map(|s| s.bytes() as u64).sum();
        self.managed
            .store(bytes / PAGE_SIZE as u64, Ordering::Relaxed);
        self.ledger.managed_bytes.store(bytes, Ordering::Relaxed);
        self.ledger
            .managed_bytes_max
            .fetch_max(bytes, Ordering::Relaxed);
    }

    /// Pages somebody waits for room for.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::SeqCst) + self.waiting.load(Ordering::SeqCst)
    }

    /// A page of the staging area.
    pub fn staged_page(&self, index: usize) -> PageNumber {
        self.staging.range().start.add(index as u64)
    }

    /// The bytes of a staged page.
    ///
    /// # Safety
    /// A page was moved to `index` and stays there for as long as the reference is used.
    pub unsafe fn staged_bytes(&self, index: usize) -> &Page {
        // SAFETY: page-aligned, in our mapping, and present by the caller's word.
        unsafe { &*(self.staged_page(index).address() as *const Page) }
    }

    /// Ends the process because pages cannot be kept, leaving `message` for whoever reads the
    /// ledger.
    pub fn end_process(&self, message: &str) -> ! {
        self.end_process_for(Loss::Pager, message)
    }

    /// The same, for a reason that is told apart.
    pub fn end_process_for(&self, loss: Loss, message: &str) -> ! {
        self.ledger.set_loss(loss, message.as_bytes());
        pagetide_kernel::memory::kill_self()
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // SAFETY: never null, and the threads are gone (the owner joined them), so nobody uses the
        // handles.
        drop(unsafe { Box::from_raw(self.handles.load(Ordering::Acquire)) });
        for store in &self.stores {
            let store = store.load(Ordering::Acquire);
            if !store.is_null() {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(store) });
            }
        }
    }
}
