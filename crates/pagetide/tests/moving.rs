//! Pages that move are counted, and stay where they are when they do not.
mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pagetide_kernel::own::{Mapping, discard};
use pagetide_kernel::residency::mincore;
use pagetide_kernel::uffd::{self, Stop, Uffd, feature};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use support::skipped;

const PAGES: usize = 64;

/// Two areas, the first full, both registered; none where the kernel cannot move pages.
fn areas() -> Option<(Uffd, Mapping, Mapping)> {
    let open = || uffd::open(None).map_err(|error| skipped(&error.to_string()));
    let has = Uffd::kernel_features(open().ok()?).unwrap();
    if has & feature::MOVE == 0 {
        skipped("no UFFDIO_MOVE before Linux 6.8");
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

fn in_memory(page: PageNumber) -> bool {
    let mut byte = [0];
    mincore(PageRange::one(page), &mut byte).unwrap();
    byte[0] & 1 == 1
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
        .filter(|(_, page)| in_memory(*page))
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
            // Changes the entries of what is there without pause, as a tracker, or the processor by
            // its accessed and dirty bits, does.
            while !stop.load(Relaxed) {
                let _ = uffd.write_protect(source.range(), true);
                let _ = uffd.write_protect(source.range(), false);
            }
        });
        for _ in 0..4_000 {
            fill(&source);
            // SAFETY: both areas are this test's own.
            let progress = unsafe { uffd.move_pages(target.range(), source.range().start, false) };
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
