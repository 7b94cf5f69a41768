//! First use of a page: zeros, for it and for those that are likely to be used next.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::uffd::{Progress, Stop};
use pagetide_kernel::{PageNumber, PageRange};

use super::claim::Claim;
use super::handler::{Handler, Outcome};
use crate::budget::Reservation;
use crate::page::word::{State, Word};
use crate::recorder::Kind;
use crate::write_notification::ReadSection;

impl<'p> Handler<'p> {
    /// Installs zeros at `page`, at as many untouched pages after it as the walk so far suggests,
    /// and in the rest of its block if that is being filled in no order.
    pub(super) fn fill_zeros(&mut self, page: PageNumber, section: &ReadSection<'_>) -> Outcome {
        let pager = self.pager;
        // Made when the page was attached, but for memory that is registered ahead of that. What is
        // claimed ends where a word was not made.
        if pager.table.ensure(PageRange::one(page)).is_err() {
            return self.wake(page);
        }
        let most = pager.budget.free() / 2;
        let window = self.walks.window(page).min(most).max(1);
        let Some(mut claim) = Claim::untouched(&pager.table, PageRange::of(page, window)) else {
            return Outcome::Busy;
        };
        let mut room = pager.budget.reserve(claim.pages().pages());
        if room.is_none() {
            claim.shrink_to(1);
            room = pager.budget.reserve_for(page);
        }
        let Some(room) = room else {
            return Outcome::NoRoom;
        };
        let (progress, installed) = self.install_zeros(claim, room, Word::filled, section);
        if progress.pages > 0 {
            self.publish_zeros(progress.pages);
            self.recent.note(page);
        }
        let outcome = self.outcome(page, progress);
        if installed > 0
            && !self.walks.filled(page, installed)
            && let Some(block) = self.scattered.touched(page)
            && pager.filled_ahead.is_worth_trying()
            && !pager.source.is_some()
            && let Some(block) = pager.space.managed.part_around(page, block)
        {
            self.fill_rest(block, section);
        }
        outcome
    }

    /// Installs zeros in the untouched pages of `block`, as far as there is room. None is in a
    /// source, and all are this pager's: COPY installs pages in what any userfaultfd of the process
    /// has registered, and what is missing there may be stored elsewhere.
    fn fill_rest(&mut self, block: PageRange, section: &ReadSection<'_>) {
        let pager = self.pager;
        let is_untouched = |page: &PageNumber| pager.table.load(*page).state() == State::Untouched;
        let mut rest = block;
        while let Some(start) = rest.iter().find(is_untouched) {
            rest.start = start;
            let most = pager.budget.free() / 2;
            let window = PageRange::of(start, most.min(rest.pages()));
            let Some(claim) = Claim::untouched(&pager.table, window) else {
                return;
            };
            let Some(room) = pager.budget.reserve(claim.pages().pages()) else {
                return;
            };
            let filled = self.install_zeros(claim, room, Word::filled_ahead, section);
            let installed = filled.1;
            pager.filled_ahead.note(installed);
            pager.ledger.zero_fills.fetch_add(installed, Relaxed);
            rest = rest.after(installed.max(1));
        }
    }

    /// Installs zeros in the claimed pages, which are `filled` then. What the kernel did, and how
    /// many are there.
    fn install_zeros(
        &mut self,
        mut claim: Claim<'p>,
        mut room: Reservation<'p>,
        filled: impl Fn(Word) -> Word,
        section: &ReadSection<'_>,
    ) -> (Progress, u64) {
        let pager = self.pager;
        loop {
            let range = claim.pages();
            // Others are protected with those that must be: that costs a fault.
            let protect = section.any_write_protected(range);
            // SAFETY: untouched pages hold zeros, and COPY never overwrites a page.
            let progress = unsafe {
                let uffd = &pager.handles().uffd;
                uffd.copy(range, self.zeros.as_ptr(), protect)
            };
            if range.pages() > 1 && progress.stop == Some(Stop::Absent) && progress.pages == 0 {
                // The kernel takes no range that crosses the end of a mapping.
                claim.shrink_to(range.pages() / 2);
                room.shrink_to(range.pages() / 2);
                continue;
            }
            let installed = match progress.stop {
                // A page that is there already, unheard of, is resident all the same.
                Some(Stop::Present) => progress.pages.max(1),
                _ => progress.pages,
            };
            room.keep(installed);
            claim.settle(installed, filled, |page, _| {
                pager.enqueue(page);
                pager.record(page, Kind::Zero);
            });
            return (progress, installed);
        }
    }
}
