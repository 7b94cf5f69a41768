//! The staging area, where pages are moved out of the program, and the drain area, where their
//! frames are dropped.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_store::Page;

use crate::handles::{Handles, StartError};

/// The most pages the evictor takes at a time: half of the reserve, so that a refill is one turn.
pub(crate) const BATCH_PAGES: usize = 256;

/// Most pages that are evicted in place at a time: so many are copied at once.
pub(super) const RUN_PAGES: usize = 32;

/// Room for one batch in each area.
pub(crate) struct Staging {
    staging: Mapping,
    /// Where staged pages go to be dropped: emptying it raises no events.
    drain: Mapping,
    /// Whose page a staged page is; changes with the gate held, and means something while that
    /// page's word says Staged.
    owners: [AtomicU64; BATCH_PAGES],
}

impl Staging {
    /// Maps and registers both areas.
    pub(crate) fn new(handles: &Handles) -> Result<Staging, StartError> {
        Ok(Staging {
            staging: handles.map_staging(BATCH_PAGES * PAGE_SIZE)?,
            drain: handles.map_drain(BATCH_PAGES * PAGE_SIZE)?,
            owners: [const { AtomicU64::new(0) }; BATCH_PAGES],
        })
    }

    /// In a forked child: registers both areas with its own descriptors.
    pub(crate) fn register(&self, handles: &Handles) -> Result<(), StartError> {
        handles.register_areas(self.staging.range(), self.drain.range())
    }

    /// The first `pages` of the staging area.
    pub(crate) fn first(&self, pages: usize) -> PageRange {
        PageRange::of(self.staging.range().start, pages as u64)
    }

    /// The first `pages` of the drain area.
    pub(crate) fn drain(&self, pages: usize) -> PageRange {
        PageRange::of(self.drain.range().start, pages as u64)
    }

    /// A page of the staging area.
    pub(crate) fn page(&self, index: usize) -> PageNumber {
        self.staging.range().start.add(index as u64)
    }

    /// The bytes of a staged page.
    ///
    /// # Safety
    /// A page was moved to `index` and stays there for as long as the reference is used.
    pub(crate) unsafe fn bytes(&self, index: usize) -> &Page {
        // SAFETY: page-aligned, in our mapping, and present by the caller's word.
        unsafe { &*(self.page(index).address() as *const Page) }
    }

    /// Whose page is at `index`, while its word says so.
    pub(crate) fn owner(&self, index: usize) -> PageNumber {
        PageNumber(self.owners[index].load(Relaxed))
    }

    /// The page at `index` is `page`'s, moved out or followed there. The gate is held.
    pub(crate) fn set_owner(&self, index: usize, page: PageNumber) {
        self.owners[index].store(page.0, Relaxed);
    }
}

/// What is put of pages that are evicted in place.
pub(super) struct Copies(pub(super) Box<[Page; RUN_PAGES]>);

impl Default for Copies {
    fn default() -> Copies {
        Copies(Box::new([Page::ZERO; RUN_PAGES]))
    }
}
