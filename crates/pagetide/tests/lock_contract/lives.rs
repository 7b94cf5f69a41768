//! What becomes of locks when memory or the process changes: fork, exec, mremap, unmapping, locks
//! of others, owners.
use ::pagetide::lock::{self as calls, AllFlags, Errno, ForkPolicy, MapFlags, Mode, MremapFlags};
use pagetide_kernel::{mlock as raw, smaps};

use crate::lock::{
    PAGE, RW, agree, in_child, locked_pages, map, registry_view, touch, vmlck, void,
};
use crate::{LOCKED, ONFAULT, mlock2, munlock, munlock2};

#[test]
fn a_forked_child_has_its_ranges_locked_again() {
    in_child(|| {
        let start = map(12);
        touch(start, 1);
        mlock2(start, 0, 4, ONFAULT);
        mlock2(start, 6, 2, LOCKED);
        let left_out = start.wrapping_add(2 * PAGE);
        // SAFETY: our own page; the child will not have it.
        let advised = unsafe { libc::madvise(left_out.cast(), PAGE, libc::MADV_DONTFORK) };
        assert_eq!(advised, 0);
        in_child(|| {
            let expected = [true, true, false, true, false, false, true, true, false];
            assert_eq!(locked_pages(start, 9), expected);
            agree(start, 12);
            assert_eq!(calls::fork_error(), None);
            munlock2(start, 3, 5, LOCKED);
            assert!(locked_pages(start, 4)[3]);
        });
        assert_eq!(locked_pages(start, 4), [true; 4]);
        calls::set_fork_policy(ForkPolicy::Drop);
        in_child(|| {
            assert_eq!(vmlck(), 0);
            assert!(calls::ranges().unwrap().is_empty());
        });
    });
}

#[test]
fn future_locking_goes_on_in_a_forked_child() {
    in_child(|| {
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        in_child(|| assert_eq!(locked_pages(map(2), 2), [true; 2]));
    });
}

#[test]
fn an_executed_program_has_no_locks() {
    in_child(|| {
        mlock2(map(4), 0, 4, ONFAULT);
        let output = std::process::Command::new("cat")
            .arg("/proc/self/status")
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmLck")).unwrap();
        assert!(line.contains(" 0 kB"), "{line}");
    });
}

#[test]
fn mremap_takes_locks_along() {
    in_child(|| {
        let remap = |start: *mut u8, old: usize, new: usize, flags, to: Option<*mut u8>| {
            // SAFETY: mappings that only this test uses.
            unsafe { calls::mremap(void(start), old * PAGE, new * PAGE, flags, to.map(void)) }
                .map(|address| address.cast::<u8>())
        };
        let none = MremapFlags::empty();
        // Shrinks in place; grows only by moving, for the guard behind.
        let start = map(8);
        touch(start, 0);
        mlock2(start, 0, 8, ONFAULT);
        assert_eq!(remap(start, 8, 4, none, None).unwrap(), start);
        agree(start, 4);
        assert_eq!(vmlck(), 4 * PAGE as u64);
        // Into the gap that the shrinking left.
        assert_eq!(remap(start, 4, 6, none, None).unwrap(), start);
        assert_eq!(locked_pages(start, 6), [true; 6]);
        agree(start, 6);
        assert_eq!(
            remap(start, 6, 64, none, None).unwrap_err().errno(),
            Errno::NOMEM
        );
        let moved = remap(start, 6, 64, MremapFlags::MAYMOVE, None).unwrap();
        assert_ne!(moved, start);
        assert_eq!(locked_pages(moved, 64), [true; 64]);
        agree(moved, 64);
        // To a place of our own, over something locked in the other mode.
        let target = map(64);
        mlock2(target, 0, 64, LOCKED);
        let moved = remap(moved, 64, 64, MremapFlags::MAYMOVE, Some(target)).unwrap();
        assert_eq!(moved, target);
        assert_eq!(registry_view(moved, 64), [Some(Mode::OnFault); 64]);
        agree(moved, 64);
        // DONTUNMAP: the old range stays mapped, not locked.
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        let away = remap(moved, 64, 64, flags, None).unwrap();
        assert_eq!(locked_pages(moved, 64), [false; 64]);
        agree(moved, 64);
        agree(away, 64);
        assert_eq!(calls::ranges().unwrap().len(), 1);
        // An old length of 0 doubles a shared mapping.
        // SAFETY: a new mapping.
        let shared = unsafe {
            calls::mmap(
                std::ptr::null_mut(),
                4 * PAGE,
                RW,
                MapFlags::SHARED,
                None,
                ONFAULT,
            )
        };
        let shared = shared.unwrap().cast::<u8>();
        let double = remap(shared, 0, 4, MremapFlags::MAYMOVE, None).unwrap();
        agree(shared, 4);
        agree(double, 4);
        assert_eq!(locked_pages(double, 4), [true; 4]);
        // Only a part of a range moves.
        let start = map(8);
        mlock2(start, 0, 8, LOCKED);
        let flags = MremapFlags::MAYMOVE;
        let part = remap(start.wrapping_add(2 * PAGE), 3, 5, flags, None).unwrap();
        agree(start, 8);
        agree(part, 5);
    });
}

#[test]
fn an_unmapped_range_is_forgotten_and_its_successor_left_alone() {
    in_child(|| {
        let start = map(4);
        mlock2(start, 0, 4, ONFAULT);
        // SAFETY: our own mapping, replaced by a new one at the same place that somebody else
        // locks.
        unsafe {
            calls::munmap(void(start), 4 * PAGE).unwrap();
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            rustix::mm::mmap_anonymous(void(start), 4 * PAGE, RW, flags).unwrap();
        }
        raw::mlock2(start as usize, 4 * PAGE, 1).unwrap();
        munlock2(start, 0, 4, LOCKED | ONFAULT);
        calls::munlockall2(AllFlags::ONFAULT | AllFlags::CURRENT).unwrap();
        assert_eq!(locked_pages(start, 4), [true; 4]);
        assert!(calls::ranges().unwrap().is_empty());
    });
}

#[test]
fn a_range_unmapped_behind_the_registrys_back_is_found_out() {
    in_child(|| {
        let start = map(4);
        mlock2(start, 0, 4, ONFAULT);
        // SAFETY: as above, with the bare system call.
        unsafe {
            rustix::mm::munmap(void(start), 4 * PAGE).unwrap();
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            rustix::mm::mmap_anonymous(void(start), 4 * PAGE, RW, flags).unwrap();
        }
        assert!(calls::ranges().unwrap().is_empty());
        if !smaps::tells_mode() {
            crate::lock::skip::skipped(
                "a full lock over a stale entry",
                "this kernel does not tell modes",
            );
            return;
        }
        mlock2(start, 0, 4, ONFAULT);
        // SAFETY: as above.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            rustix::mm::mmap_anonymous(void(start), 4 * PAGE, RW, flags).unwrap();
        }
        raw::mlock2(start as usize, 4 * PAGE, 0).unwrap();
        calls::munlockall2(AllFlags::ONFAULT).unwrap();
        assert_eq!(locked_pages(start, 4), [true; 4]);
    });
}

#[test]
fn a_page_is_locked_until_its_last_owner_lets_go() {
    in_child(|| {
        let start = map(4);
        // SAFETY: mapped, and only read.
        let bytes = unsafe { std::slice::from_raw_parts(start, 4 * PAGE) };
        let one = calls::hold(&bytes[..PAGE + 100], Mode::OnFault).unwrap();
        let two = calls::hold(&bytes[PAGE + 200..3 * PAGE], Mode::Full).unwrap();
        assert_eq!(locked_pages(start, 4), [true, true, true, false]);
        agree(start, 4);
        drop(one);
        assert_eq!(locked_pages(start, 4), [false, true, true, false]);
        mlock2(start, 0, 4, ONFAULT);
        agree(start, 4);
        // The calls take nothing from an owner.
        munlock(start, 0, 4);
        assert_eq!(locked_pages(start, 4), [false, true, true, false]);
        raw::mlock2(start as usize, PAGE, 1).unwrap();
        calls::munlockall().unwrap();
        assert_eq!(locked_pages(start, 4), [false, true, true, false]);
        agree(start, 4);
        mlock2(start, 1, 1, LOCKED);
        drop(two);
        assert_eq!(locked_pages(start, 4), [false, true, false, false]);
        calls::munlockall().unwrap();
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn what_is_held_can_be_written() {
    in_child(|| {
        let start = map(4);
        // SAFETY: mapped, and used through this slice alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, 4 * PAGE) };
        let mut held = calls::hold_mut(&mut bytes[PAGE..3 * PAGE], Mode::OnFault).unwrap();
        held.fill(7);
        assert_eq!((held[2 * PAGE - 1], held.locked_bytes()), (7, 2 * PAGE));
        assert_eq!(locked_pages(start, 4), [false, true, true, false]);
        drop(held);
        assert_eq!((bytes[PAGE], vmlck()), (7, 0));
    });
}
