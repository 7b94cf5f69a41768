//! Pages that stay resident while a guard lives.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::error::RegionError;
use crate::page::table::PageTable;
use crate::page::word::{GUARDS_MAX, State, Word};
use crate::pager::Pager;
use crate::requests::{Completion, Request};

/// Pins `range` and waits until it is resident. `ask` hands a request to the fault thread: for
/// what is not resident, or on its way out.
#[inline]
pub fn pin_pages(
    pager: &Pager,
    range: PageRange,
    ask: impl Fn(Request),
) -> Result<PinGuard<'_>, RegionError> {
    let (pages, budget) = (range.pages(), pager.budget.get());
    if pager.table.ensure(range).is_err() || !pager.pin(pages) {
        return Err(RegionError::Pinned(pages, budget));
    }
    let mut absent: Option<PageRange> = None;
    for page in range.iter() {
        let Some(is_held) = pin_page(&pager.table, page) else {
            let pinned = page.0 - range.start.0;
            unpin_pages(pager, PageRange::of(range.start, pinned));
            pager.unpin(pages - pinned);
            return Err(RegionError::PinCount(GUARDS_MAX));
        };
        if !is_held {
            absent.get_or_insert(PageRange::one(page)).end = page.add(1);
        }
    }
    let guard = PinGuard { pager, range };
    if let Some(range) = absent {
        let done = Completion::new();
        ask(Request::Load {
            range,
            must: true,
            done: Arc::clone(&done),
        });
        done.wait().map_err(RegionError::Load)?;
        let is_lost = |page| pager.table.load(page).state() == State::Poisoned;
        if range.iter().any(is_lost) {
            return Err(RegionError::Load(Errno::IO));
        }
    }
    Ok(guard)
}

impl Pager {
    /// Counts pins on `pages` pages; false if not all pinned pages would fit in the budget.
    fn pin(&self, pages: u64) -> bool {
        let fits = self.pinned.fetch_add(pages, Ordering::AcqRel) + pages <= self.budget.get();
        if !fits {
            self.unpin(pages);
        }
        fits
    }

    /// Pages that guards have pinned now, counted once a pin.
    pub fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Acquire)
    }

    /// Takes back so many of them.
    fn unpin(&self, pages: u64) {
        self.pinned.fetch_sub(pages, Ordering::AcqRel);
    }
}

/// Takes a pin on `page`: whether that alone holds it. None if guards have too many.
fn pin_page(table: &PageTable, page: PageNumber) -> Option<bool> {
    loop {
        let word = table.load(page);
        let held = word.held();
        let pinned = held.or_else(|| word.guarded())?;
        if table.change(page, word, pinned) {
            return Some(held.is_some());
        }
    }
}

/// Takes one pin off every page of `range`.
fn unpin_pages(pager: &Pager, range: PageRange) {
    for page in range.iter() {
        pager.table.update(page, Word::unpinned);
    }
    pager.unpin(range.pages());
}

/// Keeps pages resident while it lives.
///
/// ```
/// use pagetide::Region;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let Ok(region) = Region::builder().length(1 << 20).build() else {
///     return Ok(()); // no right to open a userfaultfd
/// };
/// let pinned = region.pin(0..8192)?; // two pages
/// region.evict(0..region.len())?; // all that may go
/// assert_eq!(region.stats().resident_bytes, 8192);
///
/// drop(pinned);
/// region.evict(0..region.len())?;
/// assert_eq!(region.stats().resident_bytes, 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "the pages are pinned only while the guard lives"]
pub struct PinGuard<'r> {
    pager: &'r Pager,
    range: PageRange,
}

impl Drop for PinGuard<'_> {
    fn drop(&mut self) {
        unpin_pages(self.pager, self.range);
    }
}
