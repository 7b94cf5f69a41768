//! Locks that other code made with bare system calls: left as they are.
use ::pagetide::lock::{self as calls, AllFlags, Mode};
use pagetide_kernel::{mlock as raw, smaps};

use crate::lock::{PAGE, in_child, kernel_view, locked_pages, map, vmlck};
use crate::{LOCKED, ONFAULT, mlock2, munlock, munlock2};

#[test]
fn foreign_locks_are_left_alone() {
    in_child(|| {
        let (ours, foreign) = (map(2), map(2));
        mlock2(ours, 0, 2, ONFAULT);
        raw::mlock2(foreign as usize, 2 * PAGE, 1).unwrap();
        munlock2(foreign, 0, 2, LOCKED | ONFAULT);
        for flags in [AllFlags::ONFAULT, AllFlags::CURRENT, AllFlags::FUTURE] {
            calls::munlockall2(flags).unwrap();
            assert_eq!(locked_pages(foreign, 2), [true; 2], "{flags:?}");
        }
        assert_eq!(locked_pages(ours, 2), [false; 2]);
    });
}

/// What the kernel says of pages locked on fault, where it tells.
fn on_fault() -> Option<Option<bool>> {
    Some(smaps::tells_mode().then_some(true))
}

fn full() -> Option<Option<bool>> {
    Some(smaps::tells_mode().then_some(false))
}

fn bytes(start: *mut u8, pages: usize) -> &'static [u8] {
    // SAFETY: mapped for as long as the test's process lives, and only read.
    unsafe { std::slice::from_raw_parts(start, pages * PAGE) }
}

#[test]
fn the_last_owner_leaves_a_foreign_lock_in_its_mode() {
    in_child(|| {
        let start = map(6);
        raw::mlock2(start as usize + PAGE, PAGE, raw::MLOCK_ONFAULT).unwrap();
        raw::mlock2(start as usize + 3 * PAGE, PAGE, 0).unwrap();
        let found = [None, on_fault(), None, full(), None, None];
        assert_eq!(kernel_view(start, 6), found);
        for mode in [Mode::Full, Mode::OnFault] {
            let one = calls::hold(&bytes(start, 6)[..4 * PAGE], mode).unwrap();
            assert_eq!(kernel_view(start, 6)[3], full(), "not weakened");
            // A second owner finds what the first one noted.
            let two = calls::hold(&bytes(start, 6)[PAGE..5 * PAGE], mode).unwrap();
            assert_eq!(
                locked_pages(start, 6),
                [true, true, true, true, true, false]
            );
            drop(one);
            assert_eq!(
                locked_pages(start, 6),
                [false, true, true, true, true, false]
            );
            drop(two);
            assert_eq!(kernel_view(start, 6), found, "{mode:?}");
            assert!(calls::ranges().unwrap().is_empty());
        }
    });
}

#[test]
fn a_hold_that_fails_leaves_foreign_locks_as_they_were() {
    in_child(|| {
        crate::lock::become_user(4 * PAGE as u64);
        let start = map(8);
        raw::mlock2(start as usize + PAGE, PAGE, raw::MLOCK_ONFAULT).unwrap();
        let before = kernel_view(start, 8);
        calls::hold(bytes(start, 8), Mode::Full).unwrap_err();
        assert_eq!(kernel_view(start, 8), before);
    });
}

#[test]
fn unlocking_a_range_ends_foreign_locks_under_owners_too() {
    in_child(|| {
        let start = map(3);
        raw::mlock2(start as usize, 3 * PAGE, raw::MLOCK_ONFAULT).unwrap();
        let held = calls::hold(bytes(start, 3), Mode::OnFault).unwrap();
        munlock2(start, 0, 3, LOCKED | ONFAULT);
        munlock(start, 0, 1);
        // The process's lock replaces a foreign one, as the kernel's does.
        mlock2(start, 1, 1, ONFAULT);
        munlock2(start, 1, 1, ONFAULT);
        assert_eq!(locked_pages(start, 3), [true; 3]);
        drop(held);
        assert_eq!(locked_pages(start, 3), [false, false, true]);
    });
}

#[test]
fn a_forked_child_has_no_foreign_locks() {
    in_child(|| {
        let start = map(2);
        raw::mlock2(start as usize, 2 * PAGE, 0).unwrap();
        let held = calls::hold(bytes(start, 1), Mode::OnFault).unwrap();
        in_child(|| assert_eq!(kernel_view(start, 2), [on_fault(), None]));
        drop(held);
        assert_eq!(vmlck(), 2 * PAGE as u64);
    });
}

#[test]
fn memory_that_is_never_locked_does_not_hide_a_foreign_lock() {
    in_child(|| {
        let vdso = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(line) = vdso.lines().find(|line| line.ends_with("[vdso]")) else {
            return crate::lock::skip::skipped("a foreign lock beside the vdso", "there is none");
        };
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let (from, len) = (number(from), number(to) - number(from));
        // Succeeds, and the kernel counts nothing.
        calls::mlock2(from as *const u8, len, ONFAULT).unwrap();
        let start = map(len / PAGE);
        raw::mlock2(start as usize, len, raw::MLOCK_ONFAULT).unwrap();
        drop(calls::hold(bytes(start, len / PAGE), Mode::OnFault).unwrap());
        assert_eq!(locked_pages(start, len / PAGE), vec![true; len / PAGE]);
    });
}

#[test]
fn what_was_locked_before_the_future_was_is_left_alone() {
    in_child(|| {
        let start = map(4);
        raw::mlock2(start as usize, 2 * PAGE, 0).unwrap();
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        munlock2(start, 0, 4, LOCKED | ONFAULT);
        calls::munlockall2(AllFlags::CURRENT).unwrap();
        calls::munlockall2(AllFlags::FUTURE).unwrap();
        calls::munlockall2(AllFlags::CURRENT).unwrap();
        assert_eq!(kernel_view(start, 4), [full(), full(), None, None]);
        munlock(start, 0, 1);
        assert_eq!(locked_pages(start, 2), [false, true]);
        calls::munlockall().unwrap();
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn behind_a_hole_nothing_is_taken_over() {
    in_child(|| {
        let start = map(4);
        // SAFETY: a page of our own mapping that nobody uses.
        unsafe { rustix::mm::munmap(start.wrapping_add(PAGE).cast(), PAGE) }.unwrap();
        raw::mlock2(start as usize + 2 * PAGE, PAGE, raw::MLOCK_ONFAULT).unwrap();
        mlock2(start, 3, 1, ONFAULT);
        let first = calls::hold(bytes(start, 1), Mode::Full).unwrap();
        calls::mlock2(start, 4 * PAGE, ONFAULT).unwrap_err();
        assert_eq!(kernel_view(start, 1), [full()], "an owner wants it full");
        munlock2(start, 2, 2, LOCKED);
        munlock2(start, 2, 1, ONFAULT);
        assert_eq!(locked_pages(start, 4), [true, false, true, true]);
        munlock2(start, 3, 1, ONFAULT);
        drop(first);
        munlock2(start, 0, 1, ONFAULT);
        assert_eq!(locked_pages(start, 4), [false, false, true, false]);
    });
}

#[test]
fn under_an_owner_it_is_left_alone_too_when_the_future_is_locked() {
    for end in 0..2 {
        in_child(|| {
            let start = map(2);
            raw::mlock2(start as usize, 2 * PAGE, 0).unwrap();
            let held = calls::hold(bytes(start, 2), Mode::OnFault).unwrap();
            calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
            drop(held);
            match end {
                0 => calls::munlockall2(AllFlags::CURRENT).unwrap(),
                _ => munlock2(start, 0, 2, LOCKED | ONFAULT),
            }
            assert_eq!(kernel_view(start, 2), [full(), full()]);
        });
    }
}

#[test]
fn it_ends_with_its_memory_and_moves_with_it() {
    in_child(|| {
        let (start, other) = (map(2), map(2));
        raw::mlock2(start as usize, 2 * PAGE, raw::MLOCK_ONFAULT).unwrap();
        raw::mlock2(other as usize, 2 * PAGE, raw::MLOCK_ONFAULT).unwrap();
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        // SAFETY: memory that only this test uses; what is mapped in its place is locked by the
        // kernel, for the process.
        let moved = unsafe {
            let moved = calls::mremap(
                other.cast(),
                2 * PAGE,
                2 * PAGE,
                calls::MremapFlags::MAYMOVE,
                Some(start.cast()),
            );
            let flags = calls::MapFlags::PRIVATE | calls::MapFlags::FIXED_NOREPLACE;
            rustix::mm::mmap_anonymous(other.cast(), 2 * PAGE, crate::lock::RW, flags).unwrap();
            moved.unwrap().cast::<u8>()
        };
        calls::munlockall2(AllFlags::CURRENT).unwrap();
        assert_eq!(
            (locked_pages(moved, 2), locked_pages(other, 2)),
            (vec![true; 2], vec![false; 2])
        );
        // SAFETY: as above.
        unsafe {
            calls::munmap(moved.cast(), 2 * PAGE).unwrap();
            let flags = calls::MapFlags::PRIVATE | calls::MapFlags::FIXED_NOREPLACE;
            rustix::mm::mmap_anonymous(moved.cast(), 2 * PAGE, crate::lock::RW, flags).unwrap();
        }
        assert_eq!(locked_pages(moved, 2), [true; 2]);
        calls::munlockall2(AllFlags::CURRENT).unwrap();
        assert_eq!(locked_pages(moved, 2), [false; 2]);
    });
}
