//! The staging area, where pages are moved out of the program, and the drain area, where their
//! frames are dropped.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_store::{Page, Slot};

use crate::handles::{Handles, StartError};
use crate::page::word::Place;

/// The most pages the evictor takes at a time: half of the reserve, so that a refill is one turn.
pub(crate) const BATCH_PAGES: usize = 256;

/// Most pages that are evicted in place at a time: so many are copied at once.
pub(super) const RUN_PAGES: usize = 32;

/// The most pages that are held aside between rounds: 16 MiB.
pub(crate) const HELD_MAX: usize = 4096;
/// Places in the staging area: what is held, and what two rounds add before the oldest leave it.
pub(super) const PLACES: usize = HELD_MAX + 2 * BATCH_PAGES;

/// No page, in a place whose page was moved back.
const MOVED_BACK: u64 = 0;
/// The same in one whose page was copied back while it was held: its frame is here still.
const COPIED_BACK: u64 = 1;

/// The staging area: a ring of places, in which pages are held for a while before the oldest are
/// packed a batch at a time; and the drain area.
pub(crate) struct Staging {
    staging: Mapping,
    /// Where staged pages go to be dropped: emptying it raises no events.
    drain: Mapping,
    places: Box<[StagingPlace]>,
    /// The places whose bytes are being read on their way to the store, the first of them and how
    /// many: nothing is moved out of them. Changes with the gate held.
    packed: [AtomicUsize; 2],
}

/// What is known of a place in the staging area; it changes with the gate held.
#[derive(Default)]
struct StagingPlace {
    /// Whose page is there; means something while that page's word says Staged.
    owner: AtomicU64,
    /// Where the store has the bytes that the page was fetched with: a [`Place`] and [`BACKED`];
    /// [`FILLED_AHEAD`], or 0.
    backing: AtomicU64,
}

/// In a place's `backing`: the store has the bytes.
const BACKED: u64 = 1 << 63;
/// In a place's `backing`: the page was filled before it was asked for, and never stored.
const FILLED_AHEAD: u64 = 1;

impl Staging {
    /// Maps and registers both areas.
    pub(crate) fn new(handles: &Handles) -> Result<Staging, StartError> {
        Ok(Staging {
            staging: handles.map_staging(PLACES * PAGE_SIZE)?,
            drain: handles.map_drain(BATCH_PAGES * PAGE_SIZE)?,
            places: (0..PLACES).map(|_| StagingPlace::default()).collect(),
            packed: [const { AtomicUsize::new(0) }; 2],
        })
    }

    /// In a forked child: registers both areas with its own descriptors.
    pub(crate) fn register(&self, handles: &Handles) -> Result<(), StartError> {
        handles.register_areas(self.staging.range(), self.drain.range())
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
    /// A page was moved to `index` and stays there for as long as the reference is used: the gate
    /// is held, or it is being packed.
    pub(crate) unsafe fn bytes(&self, index: usize) -> &Page {
        // SAFETY: page-aligned, in our mapping, and present by the caller's word.
        unsafe { &*(self.page(index).address() as *const Page) }
    }

    /// `len` pages of the staging area from `index` on.
    pub(crate) fn pages(&self, index: usize, len: usize) -> PageRange {
        PageRange::of(self.page(index), len as u64)
    }

    /// Whose page is at `index`, while its word says so.
    pub(crate) fn owner(&self, index: usize) -> PageNumber {
        PageNumber(self.places[index].owner.load(Relaxed))
    }

    /// The page at `index` is `page`'s, moved out or followed there. The gate is held.
    pub(crate) fn set_owner(&self, index: usize, page: PageNumber) {
        self.places[index].owner.store(page.0, Relaxed);
    }

    /// The page at `index` was moved back where it belongs. The gate is held.
    pub(crate) fn set_moved_back(&self, index: usize) {
        self.places[index].owner.store(MOVED_BACK, Relaxed);
    }

    /// Whether it was.
    pub(super) fn is_moved_back(&self, index: usize) -> bool {
        self.places[index].owner.load(Relaxed) == MOVED_BACK
    }

    /// The page at `index`, which was held, was copied back where it belongs. The gate is held.
    pub(crate) fn set_copied_back(&self, index: usize) {
        self.places[index].owner.store(COPIED_BACK, Relaxed);
    }

    /// Whether the page at `index` came back while it was held.
    pub(super) fn came_back(&self, index: usize) -> bool {
        matches!(
            self.places[index].owner.load(Relaxed),
            MOVED_BACK | COPIED_BACK
        )
    }

    /// The store has the bytes that the page at `index` was fetched with, at `backing`. The gate is
    /// held.
    pub(super) fn set_backing(&self, index: usize, backing: Option<Place>) {
        let number =
            |place: Place| BACKED | u64::from(place.generation) << 32 | u64::from(place.slot.0);
        let number = backing.map_or(0, number);
        self.places[index].backing.store(number, Relaxed);
    }

    /// The page at `index`, which the store has nothing of, was filled before it was asked for. The
    /// gate is held.
    pub(super) fn set_filled_ahead(&self, index: usize) {
        self.places[index].backing.store(FILLED_AHEAD, Relaxed);
    }

    /// Whether it was.
    pub(super) fn is_filled_ahead(&self, index: usize) -> bool {
        self.places[index].backing.load(Relaxed) == FILLED_AHEAD
    }

    /// Where the store has them.
    pub(super) fn backing(&self, index: usize) -> Option<Place> {
        let number = self.places[index].backing.load(Relaxed);
        (number & BACKED != 0).then_some(Place {
            generation: (number >> 32) as u8,
            slot: Slot(number as u32),
        })
    }

    /// The same for who gives it back, or gives it back to the page: it is forgotten here. The gate
    /// is held.
    pub(crate) fn take_backing(&self, index: usize) -> Option<Place> {
        let backing = self.backing(index);
        self.places[index].backing.store(0, Relaxed);
        backing
    }

    /// The bytes of `len` pages from `first` on are being read, or of none. The gate is held.
    pub(super) fn set_packed(&self, first: usize, len: usize) {
        self.packed[0].store(first, Relaxed);
        self.packed[1].store(len, Relaxed);
    }

    /// Whether those of the page at `index` are. The gate is held.
    pub(crate) fn is_packed(&self, index: usize) -> bool {
        let [first, len] = [0, 1].map(|i: usize| self.packed[i].load(Relaxed));
        (first..first + len).contains(&index)
    }
}
