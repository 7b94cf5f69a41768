//! What the pager's threads share.
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_store::Store;

use crate::address_space::space::AddressSpace;
use crate::budget::Budget;
use crate::callback::ThreadCallback;
use crate::evict::adapting::Automatic;
use crate::evict::staging::{BATCH_PAGES, HELD_MAX, Staging};
use crate::fault::blocks::Blocks;
use crate::fault::filled_ahead::FilledAhead;
use crate::fault::pointers::Pointers;
use crate::fault::scans::{self, Scans};
use crate::fault::streams::Streams;
use crate::footprint::Footprint;
use crate::gate::Gate;
use crate::handles::{Handles, Ownership, StartError, system};
use crate::ledger::Ledger;
use crate::measure::probes::Probes;
use crate::page::backing::Backings;
use crate::page::policy::Kind;
use crate::page::table::PageTable;
use crate::page::victims::VictimQueues;
use crate::page::word::Word;
use crate::pause::Pauses;
use crate::placement::Placement;
use crate::protocol::loss::Loss;
use crate::recorder::{self, Recorder};
use crate::requests::{EvictNow, Inbox, Request};
use crate::source::Source;
use crate::stores::Stores;
use crate::tree::member::Member;
use crate::write_notification::WriteNotifications;

/// The state the pager's threads share, by what belongs together.
pub struct Pager {
    /// Whose memory it is.
    pub ownership: Ownership,
    /// What is known of each page.
    pub table: PageTable,
    /// The order in which resident pages go.
    pub(crate) victims: VictimQueues,
    /// The bound on resident pages.
    pub budget: Budget,
    /// All memory of the process, and the bound on it.
    pub(crate) footprint: Footprint,
    /// This process's part in the budget of its run; none where it has one of its own.
    pub member: Option<Member>,
    /// Where the bytes of pages that are not resident are.
    pub stores: Stores,
    /// The pages whose first contents are in a source.
    pub(crate) source: Source,
    /// Where pages are on their way there.
    pub(crate) staging: Staging,
    /// Whether what the store has of pages that were fetched is worth keeping.
    pub(crate) backings: Backings,
    /// Whether pages that are filled before they are asked for are used.
    pub(crate) filled_ahead: FilledAhead,
    /// Held where page words and memory may differ.
    pub(crate) gate: Gate,
    /// Which memory is managed, and who may change it.
    pub space: AddressSpace,
    /// Who is told of first writes.
    pub write_notifications: WriteNotifications,
    /// Which processors the threads use.
    pub(crate) placement: Placement,
    /// What is missed in a steady order.
    pub(crate) streams: Streams,
    /// The same that goes on for long, in a source.
    pub(crate) scans: Scans,
    /// Where neighbours are missed together.
    pub(crate) blocks: Blocks,
    pub(crate) pointers: Pointers,
    /// Who is asked to hold still.
    pub(crate) pauses: Pauses,
    /// What the fault thread is asked for.
    pub(crate) requests: Inbox<Request>,
    /// What the evictor is asked for.
    pub(crate) evict_now: Inbox<EvictNow>,
    /// The looks at pages that tell how much memory the program needs.
    pub(crate) probes: Probes,
    /// What every thread is to call.
    pub(crate) callback: ThreadCallback,
    /// Counters.
    pub ledger: &'static Ledger,
    /// The budget follows the program, up to the ceiling.
    pub(crate) automatic: Option<Automatic>,
    /// It was told that memory is short.
    pub(crate) memory_is_short: AtomicBool,
    /// In pages. Here and not in the ledger: a forked child has a new one.
    pub(crate) ceiling: AtomicU64,
    /// Told of losses, beside whoever reads the ledger. Called in signal handlers, too.
    teller: fn(&str),
    /// Faults are recorded there, if anybody wants to know.
    recorder: AtomicPtr<Recorder>,
    /// Descriptors, exchanged in a forked child.
    handles: AtomicPtr<Handles>,
    /// A page without access.
    unreadable: Mapping,
    /// Pages pinned, counted once a pin.
    pub(crate) pinned: AtomicU64,
    /// Set in a process that has forked or was forked: pages may be shared with another process.
    forked: AtomicBool,
    /// Asks the threads to end (a region is dropped).
    closing: AtomicBool,
    /// The ledger's memory, where it is a region's. The last field, so that it is dropped last.
    ledger_memory: Option<Mapping>,
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
        let victims = VictimQueues::new(4 * machine_pages + (1 << 20));
        ledger.started_ns.store(now_ns(), Ordering::Relaxed);
        Ok(Pager {
            ownership,
            table: PageTable::new().map_err(system("mmap"))?,
            victims: victims.map_err(system("mmap"))?,
            budget: Budget::new(budget_pages, ledger),
            footprint: Footprint::default(),
            member: None,
            stores: Stores::new(store).map_err(system("mmap"))?,
            source: Source::default(),
            staging: Staging::new(&handles)?,
            backings: Backings::default(),
            filled_ahead: FilledAhead::default(),
            gate: Gate::default(),
            space: AddressSpace::new(),
            write_notifications: WriteNotifications::new(),
            placement: Placement::default(),
            streams: Streams::default(),
            scans: Scans::default(),
            blocks: Blocks::default(),
            pointers: Pointers::default(),
            pauses: Pauses::default(),
            requests: Inbox::default(),
            evict_now: Inbox::default(),
            probes: Probes::default(),
            callback: ThreadCallback::default(),
            ledger,
            automatic: None,
            memory_is_short: AtomicBool::new(false),
            ceiling: AtomicU64::new(budget_pages),
            teller: match ownership {
                Ownership::Program => |_| {},
                _ => tell_standard_error,
            },
            recorder: AtomicPtr::new(std::ptr::null_mut()),
            handles: AtomicPtr::new(Box::into_raw(Box::new(handles))),
            unreadable: Mapping::reserve(PAGE_SIZE).map_err(system("mmap"))?,
            pinned: AtomicU64::new(0),
            forked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ledger_memory: None,
        })
    }

    /// The same pager with another policy; before any memory is attached.
    pub fn with_policy(mut self, kind: Kind) -> Pager {
        self.victims.set_policy(kind);
        self
    }

    /// The same pager, with the memory that its ledger lies in.
    pub(crate) fn with_ledger_memory(mut self, memory: Mapping) -> Pager {
        self.ledger_memory = Some(memory);
        self
    }

    /// The same pager, with a part in the budget of a run; it begins with what that comes with.
    pub fn with_member(mut self, member: Member) -> Pager {
        self.member = Some(member);
        self.join_run();
        self
    }

    /// Takes this process's part in the budget of its run, if there is one: before the threads run.
    pub fn join_run(&self) {
        if let Some(member) = &self.member {
            member.join(&self.budget);
            member.note_whole(self.ledger);
        }
    }

    /// The most pages of this process that may be resident, or that may come to be where its run
    /// has one budget.
    pub fn most_pages(&self) -> u64 {
        let member = self.member.as_ref();
        member.map_or_else(|| self.budget.get(), Member::most)
    }

    /// Changes the budget of this process, or the most that it may have of its run's; or the bound
    /// on all its memory where that is bounded (at least one page).
    pub fn set_limit(&self, pages: u64) {
        match &self.member {
            Some(member) => member.set_cap(&self.budget, pages, self.ledger),
            None if self.footprint.bound().is_some() => self.set_memory(pages),
            None => {
                self.ceiling.store(pages, Ordering::Relaxed);
                self.budget.set(pages);
            }
        }
    }

    /// A page of `word` is fetched because it was asked for.
    pub(crate) fn note_fetch(&self, word: Word) {
        if let Some(member) = &self.member
            && self.victims.is_near_miss(word)
        {
            member.note_near_miss();
        }
    }

    /// The same pager, whose budget follows the program, with what it has now as the most.
    pub fn with_automatic(mut self, automatic: Automatic) -> Pager {
        automatic.note(self.ledger);
        self.automatic = Some(automatic);
        self
    }

    /// Whether the budget follows the program.
    pub fn follows_program(&self) -> bool {
        self.automatic.is_some()
    }

    /// Calls `found` with each run of pages of `range` that the kernel has, resident or swapped
    /// out, in order; with none where that cannot be told.
    pub fn each_populated(&self, range: PageRange, mut found: impl FnMut(PageRange)) {
        let _ = (self.handles().pagemap).populated(range, |run, _| found(run));
    }

    /// The same pager, with `teller` to be told of losses: it may be called in a signal handler.
    pub fn with_teller(mut self, teller: fn(&str)) -> Pager {
        self.teller = teller;
        self
    }

    /// The same pager, for memory whose first pages `range` hold what `source` has in slot 0 and
    /// those after it; before any memory is attached.
    pub(crate) fn with_source(mut self, source: Box<dyn Store>, range: PageRange) -> Pager {
        let generation = self.stores.put_below(source);
        self.source = Source::new(range, generation);
        self.budget.keep_free_at_most(scans::RESERVE_PAGES);
        self
    }

    /// The descriptors.
    pub fn handles(&self) -> &Handles {
        // SAFETY: made from a box with the pager, and never freed before it.
        unsafe { &*self.handles.load(Ordering::Acquire) }
    }

    /// In a forked child: gives the pager descriptors of its own, with which the staging and drain
    /// areas are registered. The parent's are forgotten, not closed: their numbers mean nothing
    /// here.
    pub fn replace_handles(&self, handles: Handles) -> Result<(), StartError> {
        self.staging.register(&handles)?;
        let handles = Box::into_raw(Box::new(handles));
        self.handles.store(handles, Ordering::Release);
        Ok(())
    }

    /// In a forked child, whose copy was made while everything held still: nobody holds or waits
    /// any more, and whatever was recorded is the parent's.
    pub fn reset_after_fork(&self) {
        self.recorder.store(std::ptr::null_mut(), Ordering::Release);
        self.placement.reset_after_fork();
        self.space.mapping_lock.reset_after_fork();
        self.space.own_drops.reset_after_fork();
        self.space.managed.reset_after_fork();
        self.requests.reset_after_fork();
        self.evict_now.reset_after_fork();
        self.pauses.reset_after_fork();
        self.budget.reset_after_fork();
        self.gate.reset_after_fork();
        // The child has a ledger of its own.
        if let Some(automatic) = &self.automatic {
            automatic.note(self.ledger);
        }
        self.forked.store(true, Ordering::SeqCst);
    }

    /// This process has forked.
    pub fn note_fork(&self) {
        self.forked.store(true, Ordering::SeqCst);
    }

    /// Whether pages may be shared with another process.
    pub(crate) fn has_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// Has the threads end. Only for threads that share the pager's descriptors.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.budget.work.ring();
        self.budget.progress.ring();
        self.scans.asked.ring();
        self.ring_fault_thread();
    }

    /// Whether the threads are to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Records the faults served from now on. A recorder once set lives as long as the process.
    pub fn set_recorder(&self, recorder: Recorder) {
        let recorder = Box::into_raw(Box::new(recorder));
        self.recorder.store(recorder, Ordering::Release);
    }

    /// Records a fault, if anybody wants to know.
    pub(crate) fn record(&self, page: PageNumber, kind: recorder::Kind) {
        // SAFETY: set once and never freed.
        if let Some(recorder) = unsafe { self.recorder.load(Ordering::Acquire).as_ref() } {
            recorder.record(page, kind);
        }
    }

    /// Puts `page` in an eviction queue unless it is in one.
    pub(crate) fn enqueue(&self, page: PageNumber) {
        self.victims.enqueue(&self.table, page);
    }

    /// Pages to be evicted that are held aside for a while, to see whether they are wanted: where
    /// that costs the program nothing but the fault. A process that forks holds none any more: a
    /// fork waits until all are packed.
    pub(crate) fn held_pages(&self) -> u64 {
        match self.victims.held_share() {
            Some(share) if self.handles().content_tells && !self.has_forked() => {
                (self.budget.get() / share).min(HELD_MAX as u64)
            }
            _ => 0,
        }
    }

    /// `range` is managed from now on.
    pub(crate) fn add_managed(&self, range: PageRange) {
        self.note_managed(self.space.managed.add(range));
    }

    /// `range` is managed no more. The pages' words stay as they are.
    pub(crate) fn remove_managed(&self, range: PageRange) {
        self.note_managed(self.space.managed.remove(range));
    }

    /// So many pages are managed.
    pub(crate) fn note_managed(&self, pages: u64) {
        let (bytes, ledger) = (pages * PAGE_SIZE as u64, self.ledger);
        self.budget.set_managed(pages);
        ledger.managed_bytes.store(bytes, Ordering::Relaxed);
        ledger.managed_bytes_max.fetch_max(bytes, Ordering::Relaxed);
    }

    /// The managed ranges, in address order.
    pub fn managed_ranges(&self) -> Vec<PageRange> {
        self.space.managed.all()
    }

    /// Calls `each` with every managed range, while nobody adds or removes any. Does not allocate.
    pub fn each_managed(&self, each: impl FnMut(PageRange)) {
        self.space.managed.each(each);
    }

    /// The first part of `range` that is managed.
    pub fn first_managed_in(&self, range: PageRange) -> Option<PageRange> {
        self.space.managed.first_in(range)
    }

    /// Whether `range` is one registered mapping, at a moment when no event is under way.
    pub(crate) fn is_registered(&self, range: PageRange) -> Result<(), Stop> {
        let uffd = &self.handles().uffd;
        uffd.is_registered(range, self.unreadable.range())
    }

    /// Whether `range`, if it is one registered mapping at a moment when no event is under way, is
    /// of a kind that is paged. Shared memory that was mapped where private memory was seen is not.
    pub(crate) fn is_ours(&self, range: PageRange) -> Result<bool, Stop> {
        let is_shared = self.handles().uffd.is_shared(range.start)?;
        self.is_registered(range)?;
        // What it was asked about first is what is there: no event was under way meanwhile, or one
        // is, and this is asked again.
        Ok(!is_shared)
    }

    /// Whether a thread of the program has begun to unmap, move or empty memory and its event is
    /// unread, or was until just now: the kernel then refuses this operation, which does nothing.
    pub(crate) fn has_event_pending(&self) -> bool {
        let nothing = self.staging.pages(0, BATCH_PAGES);
        self.handles().uffd.write_protect(nothing, false) == Err(Stop::EventPending)
    }

    /// The processor of the server that has the pages, if that is known.
    pub(crate) fn server_cpu(&self) -> Option<usize> {
        let cpu = self.stores.active().server_cpu();
        cpu.map(|cpu| cpu as usize)
    }

    /// Leaves a request for the fault thread. The caller rings it ([`Pager::ring_fault_thread`]) if
    /// it shares its descriptors.
    pub fn post(&self, request: Request) {
        self.requests.post(request);
    }

    /// Wakes the fault thread. Only from threads that share the pager's descriptors.
    pub fn ring_fault_thread(&self) {
        let _ = rustix::io::write(&self.handles().bell, &1u64.to_ne_bytes());
    }

    /// Has the fault thread and the evictor call `what`, the same function each time, once more:
    /// each before it next serves a fault or evicts.
    pub fn call_in_threads(&self, what: fn()) {
        self.callback.ask(what);
        self.budget.work.ring();
        self.ring_fault_thread();
    }

    /// Called in the program's own threads before anything that shows where they may run, or hands
    /// it on: forks, new threads and programs, questions about processors. A thread that is held
    /// beside the fault thread is let go for a moment. Takes a few nanoseconds when none is held.
    pub fn let_threads_go(&self) {
        self.placement.let_go();
    }

    /// The same before a call that may take long, such as one that starts a thread; none is held
    /// until [`Pager::end_call`].
    pub fn begin_call(&self) {
        self.placement.begin_call();
    }

    /// Ends one [`Pager::begin_call`].
    pub fn end_call(&self) {
        self.placement.end_call();
    }

    /// Ends the process because pages cannot be kept, leaving `message` for whoever reads the
    /// ledger.
    pub fn end_process(&self, message: &str) -> ! {
        self.end_process_for(Loss::Pager, message)
    }

    /// The same, for a reason that is told apart.
    pub fn end_process_for(&self, loss: Loss, message: &str) -> ! {
        self.note_loss(loss, message);
        pagetide_kernel::memory::kill_self()
    }

    /// Leaves `message` for whoever reads the ledger, and tells the teller. May be called in a
    /// signal handler.
    pub(crate) fn note_loss(&self, loss: Loss, message: &str) {
        self.ledger.set_loss(loss, message.as_bytes());
        (self.teller)(message);
    }
}

/// For regions, whose ledgers nobody reads.
fn tell_standard_error(message: &str) {
    let standard_error = std::io::stderr();
    for part in ["pagetide: ", message, "\n"] {
        let _ = rustix::io::write(&standard_error, part.as_bytes());
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // SAFETY: never null, and the threads are gone (the owner joined them), so nobody uses the
        // handles.
        drop(unsafe { Box::from_raw(self.handles.load(Ordering::Acquire)) });
    }
}
