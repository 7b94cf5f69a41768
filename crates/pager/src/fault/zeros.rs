//! First use of a page: zeros, for it and for those after it when a thread walks through fresh
//! memory.
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};

use super::claim::Claim;
use super::handler::{Handler, Outcome};
use crate::page::word::Word;
use crate::recorder::Kind;
use crate::write_notification::ReadSection;

impl Handler<'_> {
    /// Installs zeros at `page`, and at as many untouched pages after it as the walk so far
    /// suggests.
    pub(super) fn fill_zeros(&mut self, page: PageNumber, section: &ReadSection<'_>) -> Outcome {
        let pager = self.pager;
        // Made when the page was attached, but for memory that is registered ahead of that. What is
        // claimed ends where a word was not made.
        if pager.table.ensure(PageRange::one(page)).is_err() {
            return self.wake(page);
        }
        let most = pager.budget.free() / 2;
        let window = self.walks.window(page).min(most).max(1);
        self.fill(PageRange::of(page, window), section)
    }

    /// Installs zeros at the first page of `window`, and at those after it as far as that goes.
    fn fill(&mut self, window: PageRange, section: &ReadSection<'_>) -> Outcome {
        let (pager, page) = (self.pager, window.start);
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
            let less = PageRange::of(page, range.pages() / 2);
            drop((claim, room));
            return self.fill(less, section);
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
        if installed > 0 {
            self.walks.filled(page, installed);
        }
        if progress.pages > 0 {
            self.publish_zeros(progress.pages);
            self.recent.note(page);
        }
        self.outcome(page, progress)
    }
}
