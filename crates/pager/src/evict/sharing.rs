//! Pages that go another way than a batch: clean ones of a region, and pages shared with a forked
//! process.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::memory::{drop_pages, make_exclusive};
use pagetide_kernel::{PageNumber, PageRange};

use super::controller::Evictor;
use crate::page::word::State;

impl Evictor<'_> {
    /// In a region nobody else empties memory, so clean pages can be dropped where they are, many
    /// in one call: they are protected, so no write can be lost, not even a device's. Takes them
    /// out of `candidates`.
    pub(super) fn drop_clean_together(&mut self, candidates: &mut Vec<PageNumber>) {
        let pager = self.pager;
        let Some(dropper) = &pager.handles().dropper else {
            return;
        };
        let drops = &mut self.drops;
        drops.clear();
        candidates.retain(|page| {
            let word = pager.table.load(*page);
            let dropping = word.dropping();
            let claimed =
                dropping.is_some_and(|dropping| pager.table.change(*page, word, dropping));
            if claimed {
                match drops.last_mut() {
                    Some(PageRange { end, .. }) if end == page => *end = page.add(1),
                    _ => drops.push(PageRange::one(*page)),
                }
            }
            !claimed
        });
        if drops.is_empty() {
            return;
        }
        // A page is Dropping, and no fault brings it back, until the last call that may empty it is
        // over.
        // SAFETY: the store holds these pages' bytes, and their words say so.
        let together = unsafe { dropper.drop_ranges(drops) }.is_ok();
        let mut dropped = 0;
        for range in drops.iter().copied() {
            // SAFETY: as above.
            let gone = together || unsafe { drop_pages(range) }.is_ok();
            for page in range.iter() {
                pager.table.update(page, |now| match gone {
                    true => now.dropped(),
                    false => now.not_dropped(true),
                });
                if !gone {
                    pager.enqueue(page);
                }
            }
            dropped += if gone { range.pages() } else { 0 };
        }
        pager.budget.unreserve(dropped);
        pager.ledger.evictions.fetch_add(dropped, Relaxed);
        pager.ledger.clean_drops.fetch_add(dropped, Relaxed);
    }

    /// Pages shared with a forked process cannot be moved until they are this process's own. Leaves
    /// those in `shared` that are now. Clean ones that are protected need not be, and are evicted
    /// in place. Where content tells, nothing may be: who has pinned a page for writing, which is
    /// not protected, writes to it after its bytes were compared. Moving refuses such a page.
    pub(super) fn break_sharing(&mut self, shared: &mut Vec<PageNumber>) {
        let pager = self.pager;
        let state = |page: &PageNumber| pager.table.load(*page).state();
        if !pager.handles().content_tells {
            let clean = shared.iter().filter(|page| state(page) == State::Clean);
            self.batch.refused.extend(clean);
            shared.retain(|page| state(page) != State::Clean);
        }
        shared.retain(|page| matches!(state(page), State::Resident | State::Clean));
        for run in shared.chunk_by(|a, b| a.0 + 1 == b.0) {
            let run = PageRange::of(run[0], run.len() as u64);
            // What the program empties meanwhile is a fault of this thread's.
            let own = || {
                let _ = make_exclusive(run);
            };
            pager.budget.with_room_for_evictor(run, own);
        }
    }
}
