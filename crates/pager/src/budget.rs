//! The bound on resident pages: what counts, what is reserved, what is lent.
use std::sync::atomic::Ordering;

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::{PAGE_SIZE, PageNumber};

use super::Pager;

/// Most pages lent so that an instruction that needs several at once can finish: 256 KiB.
const LOAN_MAX: u64 = 64;
/// How long a loan lasts.
const LOAN_NS: u64 = 2_000_000;

impl Pager {
    /// The budget in pages.
    pub fn budget(&self) -> u64 {
        self.budget.load(Ordering::Acquire)
    }

    /// Changes the budget (at least one page); the evictor starts at once, and
    /// [`Pager::is_within_budget`] tells when the bound holds.
    pub fn set_budget(&self, pages: u64) {
        self.budget.store(pages.max(1), Ordering::SeqCst);
        self.ledger
            .budget_bytes
            .store(pages.max(1) * PAGE_SIZE as u64, Ordering::Relaxed);
        self.work.ring();
    }

    /// Pages that may still become resident.
    pub fn free(&self) -> u64 {
        self.limit().saturating_sub(self.resident())
    }

    /// Whether no more than the budget is resident.
    pub fn is_within_budget(&self) -> bool {
        self.resident() <= self.budget()
    }

    /// Pages resident, in-flight ones included.
    pub fn resident(&self) -> u64 {
        self.resident.load(Ordering::Acquire)
    }

    /// The most pages that may be resident now: the budget, and what is lent so that one
    /// instruction finds all its pages.
    pub fn limit(&self) -> u64 {
        self.budget() + self.loan.load(Ordering::Acquire)
    }

    /// With a budget of a few pages, an instruction that needs more of them at once would evict one
    /// to get the other for ever. A page that is wanted again that soon shows it; a small loan for
    /// a moment lets the instruction finish.
    pub fn lend(&self) {
        if self.budget() <= 4 * LOAN_MAX {
            let loan = self.loan.load(Ordering::Acquire);
            self.loan
                .store((loan * 2).clamp(4, LOAN_MAX), Ordering::Release);
            self.loan_until_ns
                .store(now_ns() + LOAN_NS, Ordering::Release);
        }
    }

    /// Whether pages are lent.
    pub fn has_loan(&self) -> bool {
        self.loan.load(Ordering::Relaxed) != 0
    }

    /// Ends a loan that is due.
    pub fn end_loan(&self, now_ns: u64) {
        if self.has_loan() && now_ns > self.loan_until_ns.load(Ordering::Acquire) {
            self.loan.store(0, Ordering::Release);
            self.work.ring();
        }
    }

    /// Takes `pages` of the budget, all or nothing; the evictor is woken when little is left.
    pub fn reserve(&self, pages: u64) -> bool {
        let limit = self.limit();
        let resident = self.resident.fetch_add(pages, Ordering::AcqRel) + pages;
        if resident + self.low_water() > limit {
            self.work.ring();
        }
        if resident > limit {
            self.resident.fetch_sub(pages, Ordering::AcqRel);
            return false;
        }
        self.note_resident(resident);
        true
    }

    /// Takes one page of the budget for `page`. If the evictor waits for that page itself, whatever
    /// the budget: nobody else would make room.
    pub(super) fn reserve_for(&self, page: PageNumber) -> bool {
        let reserved = self.reserve(1);
        let [start, end] = &self.evictors;
        let is_evictors =
            || (start.load(Ordering::SeqCst)..end.load(Ordering::SeqCst)).contains(&page.0);
        if !reserved && is_evictors() {
            self.adopt(1);
            return true;
        }
        reserved
    }

    /// Counts `pages` as resident that already are, whatever the budget.
    pub fn adopt(&self, pages: u64) {
        let resident = self.resident.fetch_add(pages, Ordering::AcqRel) + pages;
        self.note_resident(resident);
        if resident + self.low_water() > self.limit() {
            self.work.ring();
        }
    }

    fn note_resident(&self, resident: u64) {
        let bytes = resident * PAGE_SIZE as u64;
        self.ledger.resident_bytes.store(bytes, Ordering::Relaxed);
        if bytes > self.ledger.resident_bytes_max.load(Ordering::Relaxed) {
            self.ledger
                .resident_bytes_max
                .store(bytes, Ordering::Relaxed);
        }
    }

    /// Gives `pages` back to the budget.
    pub fn unreserve(&self, pages: u64) {
        let resident = self
            .resident
            .fetch_sub(pages, Ordering::AcqRel)
            .saturating_sub(pages);
        self.ledger
            .resident_bytes
            .store(resident * PAGE_SIZE as u64, Ordering::Relaxed);
    }

    /// Free pages below which the evictor starts, so that a fault seldom waits for it.
    pub fn low_water(&self) -> u64 {
        self.high_water() / 2
    }

    /// Free pages at which the evictor stops. What lies between the two makes it work in batches.
    /// No more are kept free than there are pages beyond the budget: where everything fits, nothing
    /// is ever evicted ahead.
    pub fn high_water(&self) -> u64 {
        let beyond = self.managed.load(Ordering::Relaxed);
        let beyond = beyond.saturating_sub(self.budget());
        (self.budget() / 32).min(512).min(beyond)
    }
}
