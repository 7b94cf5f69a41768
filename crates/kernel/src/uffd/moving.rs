//! `UFFDIO_MOVE`, with an account of every page that moved.
//!
//! From Linux 6.18 (which moves pages in batches) until "userfaultfd: reset err to be 0 when move_pages_ptes succeeded" (August 2026), the kernel can
//! move pages and not count them: when it has to try a page again (another processor changed its entry, or held its lock), and then succeeds, it tries it
//! once more, finds it at its new place, and stops there with EEXIST. Such a page is at neither place that the count names, so it is looked for here.
use rustix::io::Errno;
use rustix::ioctl::{self, Updater};

use super::{MOVE, MOVE_MODE_ALLOW_SRC_HOLES, Progress, Stop, Uffd, progress, transfer};
use crate::page::{PageNumber, PageRange};
use crate::residency::mincore;

impl Uffd {
    /// Moves the pages at `source` to `range` atomically, without copying; `range` must be empty and wakes its waiters. Refuses
    /// pages pinned by a device or shared by fork. A missing page at `source` ends the move, or is stepped over with `skip_holes`.
    ///
    /// A page that is missing at `source` while its place in `range` is taken counts as moved: see the module's text.
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
        // SAFETY: opcode and struct belong together; what moving does to both ranges the caller answers for.
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

/// Whether the page at `from`, where a move stopped, is at `place` all the same. EEXIST says that something is there, swapped out or not.
fn has_moved(place: PageNumber, from: PageNumber, stop: Stop) -> bool {
    in_memory(from) == Ok(false) && (stop == Stop::Present || in_memory(place) == Ok(true))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;
    use crate::own::{Mapping, discard};
    use crate::page::PAGE_SIZE;
    use crate::uffd::feature;

    const PAGES: usize = 64;

    /// Two areas, the first full, both registered; none where the kernel cannot move pages.
    fn areas() -> Option<(Uffd, Mapping, Mapping)> {
        let skip = |why: &str| eprintln!("SKIPPED uffd::moving: {why}");
        let open = || crate::uffd::open(None).map_err(|error| skip(&error.to_string()));
        let has = Uffd::kernel_features(open().ok()?).unwrap();
        if has & feature::MOVE == 0 {
            skip("no UFFDIO_MOVE before Linux 6.8");
            return None;
        }
        let wanted = feature::MOVE | feature::PAGEFAULT_FLAG_WP;
        let uffd = Uffd::negotiate(open().ok()?, wanted).unwrap();
        let map = || Mapping::new(PAGES * PAGE_SIZE).unwrap();
        let (source, target) = (map(), map());
        uffd.register_target(source.range()).unwrap();
        uffd.register_target(target.range()).unwrap();
        Some((uffd, source, target))
    }

    fn number(area: &Mapping, index: usize) -> *mut usize {
        area.as_ptr().wrapping_add(index * PAGE_SIZE).cast()
    }

    fn fill(area: &Mapping) {
        // SAFETY: within the mapping, which only this thread writes to.
        (0..PAGES).for_each(|index| unsafe { number(area, index).write_volatile(index + 1) });
    }

    /// The numbers of the pages that are there.
    fn present(area: &Mapping) -> Vec<usize> {
        let pages = area.range().iter().enumerate();
        pages
            .filter(|(_, page)| in_memory(*page).unwrap())
            // SAFETY: within the mapping.
            .map(|(index, _)| unsafe { number(area, index).read_volatile() })
            .collect()
    }

    #[test]
    fn every_page_that_moves_is_counted_while_its_entry_changes() {
        let Some((uffd, source, target)) = areas() else {
            return;
        };
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            scope.spawn(|| {
                // Changes the entries of what is there without pause, as a tracker, or the processor by its accessed and dirty bits, does.
                while !stop.load(Relaxed) {
                    let _ = uffd.write_protect(source.range(), true);
                    let _ = uffd.write_protect(source.range(), false);
                }
            });
            for _ in 0..4_000 {
                fill(&source);
                // SAFETY: both areas are this test's own.
                let progress =
                    unsafe { uffd.move_pages(target.range(), source.range().start, false) };
                let moved = progress.pages as usize;
                let numbers: Vec<usize> = (1..=PAGES).collect();
                let (there, here) = (present(&target), present(&source));
                // SAFETY: the target is this test's own.
                unsafe { discard(target.range()) }.unwrap();
                assert!(
                    (&there[..], &here[..]) == (&numbers[..moved], &numbers[moved..]),
                    "{progress:?}, but there are {there:?}, and {here:?} stayed"
                );
            }
        });
    }

    #[test]
    fn a_place_that_is_taken_and_a_page_that_is_missing_end_the_move() {
        let Some((uffd, source, target)) = areas() else {
            return;
        };
        fill(&source);
        // SAFETY: within the mapping.
        unsafe { number(&target, 5).write_volatile(99) };
        // SAFETY: both areas are this test's own.
        let go = || unsafe { uffd.move_pages(target.range(), source.range().start, false) };
        assert_eq!((go().pages, present(&target).len()), (5, 6));
        // SAFETY: both areas are this test's own.
        unsafe { discard(target.range()) }.unwrap();
        let stopped = go();
        assert_eq!((stopped.pages, stopped.stop), (0, Some(Stop::Absent)));
        assert_eq!(present(&source).len(), PAGES - 5);
    }
}
