//! First use of a page: zeros, for it and for those after it when a thread walks through fresh
//! memory.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};

use super::claim::Claim;
use super::handler::{Handler, Outcome, RUN_PAGES};
use crate::page::word::Word;
use crate::recorder::Kind;
use crate::write_notification::ReadSection;

impl Handler<'_> {
    /// Installs zeros at `page`, and at as many untouched pages after it as the walk so far
    /// suggests.
    pub(super) fn fill_zeros(&mut self, page: PageNumber, section: &ReadSection<'_>) -> Outcome {
        let pager = self.pager;
        self.zero_window = match page == self.next_zero {
            true => (self.zero_window * 2).min(RUN_PAGES as u64),
            false => 1,
        };
        let most = self.zero_window.min(pager.budget.spare()).max(1);
        let window = PageRange::of(page, most);
        if pager.table.ensure(window).is_err() {
            return self.wake(page);
        }
        let Some(mut claim) = Claim::untouched(&pager.table, window) else {
            return Outcome::Busy;
        };
        let mut room = pager.budget.reserve(claim.pages().pages());
        if room.is_none() {
            claim.shrink_to(1);
            room = pager.budget.reserve_for(page);
        }
        let Some(mut room) = room else {
            return Outcome::NoRoom;
        };
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
            drop((claim, room));
            self.next_zero = PageNumber(0);
            return self.fill_zeros(page, section);
        }
        let installed = match progress.stop {
            // A page that is there already, unheard of, is resident all the same.
            Some(Stop::Present) => progress.pages.max(1),
            _ => progress.pages,
        };
        room.keep(installed);
        claim.settle(installed, Word::filled, |page, _| {
            pager.enqueue(page);
            pager.record(page, Kind::Zero);
        });
        self.next_zero = page.add(installed);
        let filled = progress.pages;
        pager.ledger.zero_fills.fetch_add(filled, Relaxed);
        if filled > 0 {
            self.recent.note(page);
        }
        self.outcome(page, progress)
    }
}
