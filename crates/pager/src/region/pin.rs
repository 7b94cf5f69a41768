//! Pages that stay resident while a guard lives.
use std::sync::Arc;

use pagetide_kernel::PageRange;

use super::error::RegionError;
use crate::page::word::{PIN_MAX, Word};
use crate::pager::Pager;
use crate::requests::{Completion, Request};

/// Pins `range` and waits until it is resident. `ask` hands a request to the fault thread.
pub fn pin_pages(
    pager: &Pager,
    range: PageRange,
    ask: impl Fn(Request),
) -> Result<PinGuard<'_>, RegionError> {
    let (pages, budget) = (range.pages(), pager.budget.get());
    if pager.table.ensure(range).is_err() || !pager.pin(pages) {
        return Err(RegionError::Pinned(pages, budget));
    }
    for page in range.iter() {
        let was = pager.table.update(page, |w| w.pinned().unwrap_or(w));
        if was.pins() == PIN_MAX {
            let pinned = page.0 - range.start.0;
            unpin_pages(pager, PageRange::of(range.start, pinned));
            pager.unpin(pages - pinned);
            return Err(RegionError::Pinned(pages, budget));
        }
    }
    let done = Completion::new();
    ask(Request::Load {
        range,
        must: true,
        done: Arc::clone(&done),
    });
    let guard = PinGuard { pager, range };
    done.wait().map_err(RegionError::Load)?;
    Ok(guard)
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
