//! `UFFDIO_MOVE`, with an account of every page that moved.
//!
//! From Linux 6.18 (which moves pages in batches) until "userfaultfd: reset err to be 0 when
//! move_pages_ptes succeeded" (August 2026), the kernel can move pages and not count them: when it
//! has to try a page again (another processor changed its entry, or held its lock), and then
//! succeeds, it tries it once more, finds it at its new place, and stops there with EEXIST. Such a
//! page is at neither place that the count names, so it is looked for here.
use rustix::io::Errno;
use rustix::ioctl::{self, Updater};

use super::abi::{MOVE, MOVE_MODE_ALLOW_SRC_HOLES, Progress, Stop, progress, transfer};
use super::descriptor::Uffd;
use crate::page::{PageNumber, PageRange};
use crate::residency::mincore;

impl Uffd {
    /// Moves the pages at `source` to `range` atomically, without copying; `range` must be empty
    /// and wakes its waiters. Refuses pages pinned by a device or shared by fork. A missing page at
    /// `source` ends the move, or is stepped over with `skip_holes`.
    ///
    /// A page that is missing at `source` while its place in `range` is taken counts as moved: see
    /// the module's text.
    ///
    /// # Safety
    /// Whoever uses `source` must expect its pages to vanish; the caller answers for both ranges.
    pub unsafe fn move_pages(
        &self,
        range: PageRange,
        source: PageNumber,
        skip_holes: bool,
    ) -> Progress {
        let mut pages = 0;
        loop {
            let (rest, from) = (range.after(pages), source.add(pages));
            // SAFETY: parts of what the caller answers for.
            let step = unsafe { self.move_counted(rest, from, skip_holes) };
            pages += step.pages;
            let (place, from) = (rest.after(step.pages).start, from.add(step.pages));
            match step.stop {
                // A part was done: why no more was, the next call says.
                Some(Stop::EventPending) if step.pages > 0 => continue,
                Some(stop) if has_moved(place, from, stop) => {
                    pages += 1;
                    // The kernel wakes those that wait for what it has counted.
                    self.wake(PageRange::one(place));
                }
                stop => return Progress { pages, stop },
            }
            if pages == range.pages() {
                return Progress { pages, stop: None };
            }
        }
    }

    /// One call, with the kernel's count.
    ///
    /// # Safety
    /// As [`Uffd::move_pages`].
    unsafe fn move_counted(
        &self,
        range: PageRange,
        source: PageNumber,
        skip_holes: bool,
    ) -> Progress {
        let mode = if skip_holes {
            MOVE_MODE_ALLOW_SRC_HOLES
        } else {
            0
        };
        let mut arg = transfer(range, source.address(), mode);
        // SAFETY: opcode and struct belong together; what moving does to both ranges the caller
        // answers for.
        let result = unsafe { ioctl::ioctl(&self.fd, Updater::<MOVE, _>::new(&mut arg)) };
        progress(result, arg.done)
    }
}

fn in_memory(page: PageNumber) -> Result<bool, Errno> {
    let mut byte = [0];
    loop {
        match mincore(PageRange::one(page), &mut byte) {
            // The kernel is short of memory for a moment.
            Err(Errno::AGAIN) => std::thread::yield_now(),
            result => return result.map(|()| byte[0] & 1 == 1),
        }
    }
}

/// Whether the page at `from`, where a move stopped, is at `place` all the same. EEXIST says that
/// something is there, swapped out or not.
fn has_moved(place: PageNumber, from: PageNumber, stop: Stop) -> bool {
    in_memory(from) == Ok(false) && (stop == Stop::Present || in_memory(place) == Ok(true))
}
