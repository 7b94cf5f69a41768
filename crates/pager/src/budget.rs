//! The bound on resident pages: what counts, what is reserved, what is lent, and who waits for
//! room.
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_kernel::sync::{Doorbell, now_ns};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};

use crate::ledger::Ledger;

/// Most pages lent so that an instruction that needs several at once can finish: 256 KiB.
const LOAN_MAX: u64 = 64;
/// How long a loan lasts.
const LOAN_NS: u64 = 2_000_000;
/// As many as an address space has at most (5-level page tables).
const PAGES_MAX: u64 = 1 << 44;
/// The most pages that are kept free, unless it is said otherwise.
const RESERVE_MAX: u64 = 512;

/// The account of resident pages. Pages are counted before they are installed and until their
/// frames are gone, so what is resident never exceeds what is counted.
pub struct Budget {
    pages: AtomicU64,
    loan: AtomicU64,
    loan_until_ns: AtomicU64,
    resident: AtomicU64,
    /// Resident pages of memory that is to be attached only when the budget is nearly used up, or
    /// is being attached.
    awaited: AtomicU64,
    /// Pages attached.
    managed: AtomicU64,
    /// Pages the fault thread waits for.
    wanted: AtomicU64,
    /// Threads that serve their faults themselves and wait for room.
    waiting: AtomicU64,
    /// The most pages that are kept free.
    reserve_max: u64,
    /// Pages that the evictor itself touches, from the first to before the second; none if they are
    /// equal.
    evictors: [AtomicU64; 2],
    /// Wakes the evictor.
    pub(crate) work: Doorbell,
    /// Rung when resident pages went down, or a request was served.
    pub progress: Doorbell,
    ledger: &'static Ledger,
}

/// Room for pages that are about to be installed; what is not used of it goes back.
pub(crate) struct Reservation<'b> {
    budget: &'b Budget,
    pages: u64,
}

impl Reservation<'_> {
    /// `pages` of it were installed and stay counted.
    pub(crate) fn keep(&mut self, pages: u64) {
        assert!(
            pages <= self.pages,
            "{pages} pages in room for {}",
            self.pages
        );
        self.pages -= pages;
    }

    /// Gives back what is beyond `pages`.
    pub(crate) fn shrink_to(&mut self, pages: u64) {
        self.budget.unreserve(self.pages.saturating_sub(pages));
        self.pages = self.pages.min(pages);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.pages > 0 {
            self.budget.unreserve(self.pages);
        }
    }
}

impl Budget {
    /// At most `pages` pages (at least one).
    pub(crate) fn new(pages: u64, ledger: &'static Ledger) -> Budget {
        let budget = Budget {
            pages: AtomicU64::new(0),
            loan: AtomicU64::new(0),
            loan_until_ns: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            managed: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            reserve_max: RESERVE_MAX,
            evictors: [const { AtomicU64::new(0) }; 2],
            work: Doorbell::new(),
            progress: Doorbell::new(),
            ledger,
        };
        budget.set(pages);
        budget
    }

    /// The budget in pages.
    pub fn get(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }

    /// The budget that a bound of `bytes` is: whole pages, and what no memory exceeds is no bound.
    pub fn pages_of(bytes: u64) -> u64 {
        bytes.div_ceil(PAGE_SIZE as u64).min(PAGES_MAX)
    }

    /// Changes the budget (at least one page); the evictor starts at once, and
    /// [`Budget::is_kept`] tells when the bound holds.
    pub fn set(&self, pages: u64) {
        let pages = pages.max(1);
        self.pages.store(pages, Ordering::SeqCst);
        let bytes = pages * PAGE_SIZE as u64;
        self.ledger.budget_bytes.store(bytes, Ordering::Relaxed);
        self.work.ring();
    }

    /// Says that this process has been granted so many pages, while it is held to no budget of its
    /// own.
    pub(crate) fn show_granted(&self, pages: u64) {
        let bytes = pages * PAGE_SIZE as u64;
        self.ledger.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether no more than the budget is resident.
    pub fn is_kept(&self) -> bool {
        self.resident_in_all() <= self.get()
    }

    /// Pages resident, those included of memory that is not attached yet.
    pub fn resident_in_all(&self) -> u64 {
        self.resident() + self.awaited.load(Ordering::Acquire)
    }

    /// So many pages are resident of memory that is to be attached only when the budget is nearly
    /// used up. They count as the others do; those that are attached then are no longer awaited.
    pub fn set_awaited(&self, pages: u64) {
        self.awaited.store(pages, Ordering::Release);
        self.note_resident(self.resident());
    }

    /// Whether there are resident pages of memory that is not attached yet.
    pub(crate) fn has_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire) > 0
    }

    /// Pages resident, in-flight ones included.
    pub fn resident(&self) -> u64 {
        self.resident.load(Ordering::SeqCst)
    }

    /// The most pages that may be resident now: the budget, and what is lent so that one
    /// instruction finds all its pages.
    pub(crate) fn limit(&self) -> u64 {
        self.get() + self.loan.load(Ordering::Acquire)
    }

    /// Pages that may still become resident.
    pub(crate) fn free(&self) -> u64 {
        self.limit().saturating_sub(self.resident_in_all())
    }

    /// Pages that may be fetched without being asked for: nearly all that are free. If a fault had
    /// more of the reserve to itself, fewer faults would wait for room, and more would come: most
    /// of what is read ahead is asked for next. What is lent is not for them.
    pub(crate) fn spare(&self) -> u64 {
        let taken = self.resident_in_all() + self.low_water() / 8;
        self.get().saturating_sub(taken)
    }

    /// Free pages below which the evictor starts, so that a fault seldom waits for it.
    pub(crate) fn low_water(&self) -> u64 {
        self.high_water() / 2
    }

    /// Free pages at which the evictor stops. What lies between the two makes it work in batches.
    /// No more are kept free than there are pages beyond the budget: where everything fits, nothing
    /// is ever evicted ahead.
    pub(crate) fn high_water(&self) -> u64 {
        let beyond = self.managed.load(Ordering::Relaxed);
        let beyond = beyond.saturating_sub(self.get());
        (self.get() / 32).min(self.reserve_max).min(beyond)
    }

    /// Keeps no more than `pages` free.
    pub(crate) fn keep_free_at_most(&mut self, pages: u64) {
        self.reserve_max = pages;
    }

    /// So many pages are attached.
    pub(crate) fn set_managed(&self, pages: u64) {
        self.managed.store(pages, Ordering::Relaxed);
    }

    /// Takes `pages` of the budget, all or nothing; the evictor is woken when little is left.
    pub(crate) fn reserve(&self, pages: u64) -> Option<Reservation<'_>> {
        let resident = self.resident.fetch_add(pages, Ordering::SeqCst) + pages;
        let in_all = resident + self.awaited.load(Ordering::Relaxed);
        // Counted first: who lowers the budget and looks then sees these pages, or they are
        // refused.
        let limit = self.limit();
        if in_all + self.low_water() > limit {
            self.work.ring();
        }
        if in_all > limit {
            self.resident.fetch_sub(pages, Ordering::AcqRel);
            return None;
        }
        self.note_resident(resident);
        let budget = self;
        Some(Reservation { budget, pages })
    }

    /// Takes one page of the budget for `page`. If the evictor waits for that page itself, whatever
    /// the budget: nobody else would make room.
    pub(crate) fn reserve_for(&self, page: PageNumber) -> Option<Reservation<'_>> {
        let [start, end] = &self.evictors;
        let is_evictors =
            || (start.load(Ordering::SeqCst)..end.load(Ordering::SeqCst)).contains(&page.0);
        let reserved = self.reserve(1);
        match reserved {
            None if is_evictors() => Some(self.reserve_anyway(1)),
            reserved => reserved,
        }
    }

    /// Takes `pages` pages, whatever the budget.
    pub(crate) fn reserve_anyway(&self, pages: u64) -> Reservation<'_> {
        self.adopt(pages);
        let budget = self;
        Reservation { budget, pages }
    }

    /// Counts `pages` of memory that is being attached, whatever the budget.
    pub(crate) fn adopt_attached(&self, pages: u64) {
        let less = |awaited: u64| Some(awaited.saturating_sub(pages));
        let _ = (self.awaited).fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        self.adopt(pages);
    }

    /// Counts `pages` as resident that already are, whatever the budget.
    pub(crate) fn adopt(&self, pages: u64) {
        let resident = self.resident.fetch_add(pages, Ordering::AcqRel) + pages;
        self.note_resident(resident);
        if resident + self.low_water() > self.limit() {
            self.work.ring();
        }
    }

    /// Gives `pages` back to the budget, which were counted.
    #[track_caller]
    pub(crate) fn unreserve(&self, pages: u64) {
        let before = self.resident.fetch_sub(pages, Ordering::AcqRel);
        debug_assert!(before >= pages, "{pages} pages less of {before}");
        let awaited = self.awaited.load(Ordering::Relaxed);
        let bytes = (before.saturating_sub(pages) + awaited) * PAGE_SIZE as u64;
        self.ledger.resident_bytes.store(bytes, Ordering::Relaxed);
    }

    fn note_resident(&self, resident: u64) {
        let awaited = self.awaited.load(Ordering::Relaxed);
        let (bytes, ledger) = ((resident + awaited) * PAGE_SIZE as u64, self.ledger);
        ledger.resident_bytes.store(bytes, Ordering::Relaxed);
        if bytes > ledger.resident_bytes_max.load(Ordering::Relaxed) {
            ledger.resident_bytes_max.store(bytes, Ordering::Relaxed);
        }
    }

    /// With a budget of a few pages, an instruction that needs more of them at once would evict one
    /// to get the other for ever. A page that is wanted again that soon shows it; a small loan for
    /// a moment lets the instruction finish.
    pub(crate) fn lend(&self) {
        if self.get() <= 4 * LOAN_MAX {
            let loan = self.loan.load(Ordering::Acquire);
            let loan = (loan * 2).clamp(4, LOAN_MAX);
            self.loan.store(loan, Ordering::Release);
            self.loan_until_ns
                .store(now_ns() + LOAN_NS, Ordering::Release);
        }
    }

    /// Whether pages are lent.
    pub(crate) fn has_loan(&self) -> bool {
        self.loan.load(Ordering::Relaxed) != 0
    }

    /// Ends a loan that is due.
    pub(crate) fn end_loan(&self, now_ns: u64) {
        if self.has_loan() && now_ns > self.loan_until_ns.load(Ordering::Acquire) {
            self.loan.store(0, Ordering::Release);
            self.work.ring();
        }
    }

    /// Pages somebody waits for room for.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::SeqCst) + self.waiting.load(Ordering::SeqCst)
    }

    /// Whether the fault thread waits for room.
    pub(crate) fn fault_thread_waits(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > 0
    }

    /// The fault thread waits for room for so many pages.
    pub(crate) fn set_wanted(&self, pages: u64) {
        if self.wanted.load(Ordering::Relaxed) != pages {
            self.wanted.store(pages, Ordering::SeqCst);
        }
    }

    /// The fault thread waits for room for a page at least.
    pub(crate) fn want(&self) {
        self.wanted.fetch_max(1, Ordering::SeqCst);
    }

    /// Runs `wait`, during which a thread that serves its own faults waits for room.
    pub(crate) fn while_waiting(&self, wait: impl FnOnce()) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.work.ring();
        wait();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Runs `touch`, by which the evictor may have faults in `range`: these find room.
    pub(crate) fn with_room_for_evictor(&self, range: PageRange, touch: impl FnOnce()) {
        let [start, end] = &self.evictors;
        start.store(range.start.0, Ordering::SeqCst);
        end.store(range.end.0, Ordering::SeqCst);
        touch();
        end.store(0, Ordering::SeqCst);
    }

    /// In a forked child: nobody waits, and nothing is lent.
    pub(crate) fn reset_after_fork(&self) {
        self.work.forget_waiters();
        self.progress.forget_waiters();
        self.wanted.store(0, Ordering::SeqCst);
        self.loan.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_takes_room_and_is_counted_once() {
        let memory = pagetide_kernel::own::Mapping::new(Ledger::SIZE).unwrap();
        // SAFETY: a zeroed mapping of this size is a ledger, and it is leaked.
        let budget = Budget::new(100, unsafe { &*memory.leak().cast::<Ledger>() });
        budget.set_awaited(90);
        assert!(budget.is_kept() && budget.reserve(11).is_none());
        assert_eq!(budget.free(), 10);
        budget.reserve(10).expect("there is room").keep(10);
        // More was found than had been counted.
        budget.adopt_attached(60);
        budget.adopt_attached(40);
        assert_eq!((budget.resident(), budget.resident_in_all()), (110, 110));
        assert!(!budget.is_kept() && budget.free() == 0);
        let most = budget.ledger.resident_bytes_max.load(Ordering::Relaxed);
        assert_eq!(most, 110 * PAGE_SIZE as u64);
    }

    #[test]
    fn what_is_lent_is_not_for_pages_that_nobody_asked_for() {
        let memory = pagetide_kernel::own::Mapping::new(Ledger::SIZE).unwrap();
        // SAFETY: a zeroed mapping of this size is a ledger, and it is leaked.
        let budget = Budget::new(4, unsafe { &*memory.leak().cast::<Ledger>() });
        budget.reserve(3).expect("there is room").keep(3);
        budget.lend();
        assert!(budget.free() >= 4);
        assert_eq!(budget.spare(), 1);
        budget.reserve(2).expect("some are lent").keep(2);
        assert_eq!(budget.spare(), 0);
    }
}
