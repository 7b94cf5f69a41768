//! Ranges evicted because somebody asks for it, whatever the need.
use std::sync::Arc;

use pagetide_kernel::PageRange;

use super::controller::Evictor;
use super::staging::BATCH_PAGES;
use crate::page::word::State;
use crate::pager::Pager;
use crate::requests::{Completion, EvictNow};

/// Looks at a page that is being loaded while its eviction was asked for.
const LOADING_TRIES: u32 = 1000;

impl Pager {
    /// Makes the unpinned resident pages of `range` non-resident, as far as the store takes them,
    /// and waits until that is done.
    pub(crate) fn evict_range(&self, range: PageRange) {
        let done = Completion::new();
        self.evict_now.post(EvictNow {
            range,
            done: Arc::clone(&done),
        });
        self.budget.work.ring();
        let _ = done.wait();
    }
}

impl Evictor<'_> {
    /// Evicts the ranges asked for. Whether there were any.
    pub(super) fn serve_requests(&mut self) -> bool {
        let requests = self.pager.evict_now.take();
        for EvictNow { range, done } in &requests {
            let mut rest = *range;
            while !rest.is_empty() {
                let batch = PageRange::of(rest.start, rest.pages().min(BATCH_PAGES as u64));
                // A page may just have been installed whose word is about to say so.
                for _ in 0..LOADING_TRIES {
                    if !self.evict_present(batch) {
                        break;
                    }
                    std::thread::yield_now();
                }
                rest.start = batch.end;
            }
            done.finish(Ok(()));
        }
        !requests.is_empty()
    }

    /// Evicts the pages of `batch` that are present and not pinned. Whether some are being loaded.
    fn evict_present(&mut self, batch: PageRange) -> bool {
        let mut loading = false;
        self.candidates.clear();
        let candidates = &mut self.candidates;
        let table = &self.pager.table;
        table.for_each_used(batch, |page, word| match word.state() {
            State::Resident | State::Clean if word.pins() == 0 => candidates.push(page),
            State::Loading => loading = true,
            _ => {}
        });
        self.evict_candidates(0);
        loading
    }
}
