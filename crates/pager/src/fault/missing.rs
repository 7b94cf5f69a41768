//! Faults on pages that need no store: one believed present that is missing, and one on its way
//! out.
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};

use super::claim::Claim;
use super::handler::{Handler, Outcome};
use crate::handles::Ownership;
use crate::page::word::{State, Word};
use crate::write_notification::ReadSection;

impl Handler<'_> {
    /// A page believed present is missing: the program emptied it (an event already seen, or
    /// `MADV_FREE`), so it holds zeros. Or the fault is an old one and the page is there, or the
    /// evictor is taking it out just now: then zeros would be wrong bytes. So the page is claimed
    /// first, as for a fetch; a region's memory is emptied by nobody, and its faults of this kind
    /// are all old.
    pub(super) fn refill_vanished(&mut self, page: PageNumber, word: Word) -> Outcome {
        let pager = self.pager;
        if pager.ownership != Ownership::Program {
            return self.wake(page);
        }
        let Some(mut claim) = Claim::vanished(&pager.table, page, word) else {
            return Outcome::Busy;
        };
        // SAFETY: zeros are what emptied memory holds, and COPY never overwrites a page.
        let progress = unsafe {
            let uffd = &pager.handles().uffd;
            uffd.copy(PageRange::one(page), self.zeros.as_ptr(), false)
        };
        claim.settle(progress.pages, Word::filled, |_, _| {});
        drop(claim);
        // The evictor may have passed it over meanwhile.
        pager.enqueue(page);
        if progress.pages > 0 {
            self.publish_refilled(word);
        }
        self.outcome(page, progress)
    }

    /// The page is on its way out and wanted again: moved back from the staging area, or copied
    /// where that is dear and while it is being packed. The evictor sees by the word that it is
    /// taken.
    pub(super) fn take_back(&mut self, page: PageNumber, section: &ReadSection<'_>) -> Outcome {
        let pager = self.pager;
        let gate = match self.may_block {
            true => Some(pager.gate.lock()),
            false => pager.gate.try_lock(),
        };
        let Some(_gate) = gate else {
            return Outcome::Busy;
        };
        let word = pager.table.load(page);
        if word.state() != State::Staged {
            return self.wake(page);
        }
        let index = word.staging_index();
        let (range, source) = (PageRange::one(page), pager.staging.page(index));
        let protect = section.is_write_protected(page);
        let is_packed = pager.staging.is_packed(index);
        // To move it interrupts every processor that runs the program; a copy needs room of its
        // own, as the staged frame counts until the evictor drops it.
        let dear = pager.placement.is_interrupting_expensive();
        let room = (is_packed || protect || dear)
            .then(|| pager.budget.reserve(1))
            .flatten();
        if room.is_none() && !protect && !is_packed {
            // SAFETY: while the word says Staged and the gate is held, the page is there, nobody
            // reads it, and its own place is missing.
            let progress = unsafe { pager.handles().uffd.move_pages(range, source, false) };
            if progress.pages > 0 {
                pager.staging.set_moved_back(index);
                let backing = pager.staging.take_backing(index);
                self.publish_taken_back(page, backing);
            }
            // A mapping that was made read-only takes no moved page, and one that a bare fork has
            // shared is not moved.
            if progress.pages > 0 || progress.stop == Some(Stop::EventPending) {
                return self.outcome(page, progress);
            }
        }
        let Some(mut room) = room.or_else(|| pager.budget.reserve(1)) else {
            return Outcome::NoRoom;
        };
        // SAFETY: while the word says Staged and the gate is held, the staging area holds the
        // program's bytes.
        let progress = unsafe {
            let source = source.address() as *const u8;
            (pager.handles().uffd).copy(range, source, protect)
        };
        room.keep(progress.pages);
        if progress.pages > 0 {
            let backing = match is_packed {
                true => None,
                false => {
                    pager.staging.set_copied_back(index);
                    pager.staging.take_backing(index)
                }
            };
            self.publish_taken_back(page, backing);
        }
        self.outcome(page, progress)
    }
}
