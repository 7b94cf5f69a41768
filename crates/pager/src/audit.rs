//! The bookkeeping law, checked where the pager is quiet: pages counted resident are the pages the
//! kernel has present, each of them will come up for eviction, and the store's slots in use are the
//! ones page words refer to.
use rustix::io::Errno;

use crate::page::word::State;
use crate::pager::Pager;

/// Both sides of the law.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Audit {
    /// The pager's own count.
    pub counted_resident: u64,
    /// Page words that say resident.
    pub words_resident: u64,
    /// Page words that say resident, of pages the eviction queue has an entry for.
    pub words_queued: u64,
    /// Pages present by the kernel's page map.
    pub kernel_present: u64,
    /// Page words that own a slot in the active store.
    pub words_stored: u64,
    /// Pages the active store says it holds.
    pub store_pages: u64,
}

impl Audit {
    /// Whether the law holds.
    pub fn holds(&self) -> bool {
        self.counted_resident == self.words_resident
            && self.words_resident == self.words_queued
            && self.words_resident == self.kernel_present
            && self.words_stored == self.store_pages
    }
}

impl Pager {
    /// Counts both sides. Only meaningful while no thread touches the attached memory, and none
    /// reads ahead of a scan; the pager's other threads are held still, and the caller must not be
    /// one that holds them.
    pub fn audit(&self) -> Result<Audit, Errno> {
        self.pause();
        let mut audit = Audit {
            counted_resident: self.budget.resident(),
            store_pages: self.stores.active().usage().pages,
            ..Audit::default()
        };
        let generation = self.stores.generation();
        let mut result = Ok(());
        for range in self.space.managed.all() {
            self.table.for_each_used(range, |_, word| {
                let resident = word.is_resident() || word.state() == State::Staged;
                audit.words_resident += u64::from(resident);
                audit.words_queued += u64::from(resident && word.is_queued());
                audit.words_stored +=
                    u64::from(word.owns_slot() && word.place().generation == generation);
            });
            result = result.and(
                self.handles()
                    .pagemap
                    .populated(range, |run, _| audit.kernel_present += run.pages()),
            );
        }
        self.resume();
        result.map(|()| audit)
    }
}
