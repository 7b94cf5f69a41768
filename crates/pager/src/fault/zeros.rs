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
        let (walk, window) = self.walks.touched(page);
        let window = window.min(pager.budget.free() / 2).max(1);
        self.fill_walk(walk, PageRange::of(page, window), section)
    }

    fn fill_walk(&mut self, walk: usize, window: PageRange, section: &ReadSection<'_>) -> Outcome {
        let (pager, page) = (self.pager, window.start);
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
            let less = PageRange::of(page, range.pages() / 2);
            drop((claim, room));
            return self.fill_walk(walk, less, section);
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
        self.walks.filled(walk, page.add(installed));
        if progress.pages > 0 {
            self.publish_zeros(progress.pages);
            self.recent.note(page);
        }
        self.outcome(page, progress)
    }
}
