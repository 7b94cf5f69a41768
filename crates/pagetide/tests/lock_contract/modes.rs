//! Modes, flags and ranges: what one call does.
use ::pagetide::lock::{self as calls, AllFlags, Errno, LockFlags, MapFlags, Mode, ProtFlags};
use pagetide_kernel::{mlock as raw, smaps};

use crate::lock::{
    PAGE, agree, area_of, in_child, locked_pages, map, present, registry_view, touch, vmlck, void,
};
use crate::{LOCKED, ONFAULT, errno, mlock2, munlock, munlock2};

#[test]
fn bad_flags_are_einval_and_change_nothing() {
    in_child(|| {
        let start = map(2);
        let before = vmlck();
        for bits in [0, 3, 4, 5, 0x80, u32::MAX] {
            let flags = LockFlags::from_bits(bits);
            assert_eq!(errno(calls::mlock2(start, PAGE, flags)), Some(Errno::INVAL));
        }
        mlock2(start, 0, 1, ONFAULT);
        for bits in [0, 4, 7, 0x80] {
            let flags = LockFlags::from_bits(bits);
            assert_eq!(
                errno(calls::munlock2(start, PAGE, flags)),
                Some(Errno::INVAL)
            );
        }
        for bits in [0, 4, 8, 9, u32::MAX] {
            let flags = AllFlags::from_bits(bits);
            assert_eq!(errno(calls::mlockall(flags)), Some(Errno::INVAL), "{bits}");
        }
        for bits in [0, 8, 9] {
            let flags = AllFlags::from_bits(bits);
            assert_eq!(errno(calls::munlockall2(flags)), Some(Errno::INVAL));
        }
        assert_eq!(locked_pages(start, 2), [true, false]);
        assert_eq!(vmlck(), before + PAGE as u64);
    });
}

#[test]
fn on_fault_locks_what_is_present_at_once_and_the_rest_when_touched() {
    in_child(|| {
        let start = map(64);
        touch(start, 3);
        mlock2(start, 0, 64, ONFAULT);
        let area = area_of(start);
        assert!(area.locked && (area.on_fault || !smaps::tells_mode()));
        assert_eq!((area.resident, area.locked_share), (4096, 4096));
        touch(start, 10);
        let area = area_of(start);
        assert_eq!((area.resident, area.locked_share), (8192, 8192));
        assert_eq!(present(start, 64).iter().filter(|p| **p).count(), 2);
        assert_eq!(vmlck(), 64 * 4096, "all of it is charged at once");
    });
}

#[test]
fn touched_pages_are_unevictable() {
    in_child(|| {
        use pagetide_kernel::residency::{Frames, UNEVICTABLE};
        let start = map(8);
        mlock2(start, 0, 4, ONFAULT);
        for page in [0, 2, 5] {
            touch(start, page);
        }
        let range = pagetide_kernel::PageRange::covering(start as usize, 8 * PAGE);
        let unevictable = || {
            let mut pages = Vec::new();
            Frames::open()?.for_each(range, |page, flags| {
                if flags & UNEVICTABLE != 0 {
                    pages.push((page.0 - range.start.0) as usize);
                }
            })?;
            Ok::<_, Errno>(pages)
        };
        // Pages come onto the unevictable list in batches, one batch a processor; a lock taken
        // there empties it.
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let spare = map(1);
        let mut pages = Err(Errno::AGAIN);
        for _ in 0..200 {
            for processor in 0..rustix::thread::CpuSet::MAX_CPU {
                if allowed.is_set(processor) {
                    let mut only = rustix::thread::CpuSet::new();
                    only.set(processor);
                    rustix::thread::sched_setaffinity(None, &only).unwrap();
                    mlock2(spare, 0, 1, LOCKED);
                    munlock(spare, 0, 1);
                }
            }
            pages = unevictable();
            if matches!(&pages, Ok(found) if found == &[0, 2]) {
                return;
            }
            if pages == Err(Errno::PERM) || pages == Err(Errno::ACCESS) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        match pages {
            Err(Errno::PERM | Errno::ACCESS) => {
                crate::lock::skip::skipped(
                    "touched_pages_are_unevictable",
                    "only root sees page frames",
                );
            }
            pages => assert_eq!(pages, Ok(vec![0, 2])),
        }
    });
}

#[test]
fn a_mode_that_is_not_the_ranges_is_left_locked() {
    in_child(|| {
        let start = map(4);
        mlock2(start, 0, 2, ONFAULT);
        mlock2(start, 2, 2, LOCKED);
        munlock2(start, 0, 2, LOCKED);
        munlock2(start, 2, 2, ONFAULT);
        assert_eq!(locked_pages(start, 4), [true; 4]);
        munlock2(start, 0, 4, ONFAULT);
        assert_eq!(locked_pages(start, 4), [false, false, true, true]);
        mlock2(start, 0, 2, ONFAULT);
        munlock2(start, 0, 4, LOCKED);
        assert_eq!(locked_pages(start, 4), [true, true, false, false]);
        mlock2(start, 2, 2, LOCKED);
        munlock2(start, 0, 4, LOCKED | ONFAULT);
        assert_eq!(locked_pages(start, 4), [false; 4]);
        agree(start, 4);
    });
}

#[test]
fn locking_again_replaces_the_mode_both_ways() {
    in_child(|| {
        let start = map(8);
        mlock2(start, 0, 8, ONFAULT);
        assert_eq!(present(start, 8), [false; 8]);
        mlock2(start, 0, 8, LOCKED);
        assert_eq!(present(start, 8), [true; 8]);
        assert_eq!(registry_view(start, 8), [Some(Mode::Full); 8]);
        munlock2(start, 0, 8, ONFAULT);
        assert_eq!(locked_pages(start, 8), [true; 8]);
        mlock2(start, 0, 8, ONFAULT);
        agree(start, 8);
        munlock2(start, 0, 8, LOCKED);
        assert_eq!(locked_pages(start, 8), [true; 8]);
        munlock2(start, 0, 8, ONFAULT);
        assert_eq!(locked_pages(start, 8), [false; 8]);
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn ranges_split_and_merge() {
    in_child(|| {
        let start = map(3);
        let ours = || {
            let ranges = calls::ranges().unwrap();
            ranges
                .iter()
                .map(|range| range.len / PAGE)
                .collect::<Vec<_>>()
        };
        mlock2(start, 0, 3, ONFAULT);
        assert_eq!(ours(), [3]);
        munlock(start, 1, 1);
        assert_eq!(ours(), [1, 1]);
        assert_eq!(locked_pages(start, 3), [true, false, true]);
        mlock2(start, 1, 1, LOCKED);
        assert_eq!(ours(), [1, 1, 1]);
        mlock2(start, 1, 1, ONFAULT);
        assert_eq!(ours(), [3]);
        agree(start, 3);
        munlock(start, 0, 3);
        assert_eq!(ours(), [0usize; 0]);
    });
}

#[test]
fn unaligned_zero_and_wrapping_lengths_are_the_kernels() {
    in_child(|| {
        let start = map(4);
        calls::mlock2(start.wrapping_add(4095), 2, ONFAULT).unwrap();
        assert_eq!(locked_pages(start, 4), [true, true, false, false]);
        calls::munlock2(start.wrapping_add(8191), 1, ONFAULT).unwrap();
        assert_eq!(locked_pages(start, 4), [true, false, false, false]);
        calls::mlock2(start.wrapping_add(2 * PAGE), 0, ONFAULT).unwrap();
        calls::munlock(start, 0).unwrap();
        calls::munlock2(start, 0, LOCKED | ONFAULT).unwrap();
        assert_eq!(locked_pages(start, 4), [true, false, false, false]);
        // The calls answer every length as the kernel's do.
        for len in [
            usize::MAX,
            usize::MAX - 4095,
            usize::MAX - 4096,
            usize::MAX / 2,
        ] {
            let kernel = raw::mlock2(start as usize, len, 1).err();
            assert_eq!(
                errno(calls::mlock2(start, len, ONFAULT)),
                kernel,
                "{len:#x}"
            );
            let kernel = raw::munlock(start as usize, len).err();
            assert_eq!(errno(calls::munlock(start, len)), kernel, "{len:#x}");
            let mode = calls::munlock2(start, len, LOCKED);
            assert_eq!(errno(mode), kernel, "munlock2 {len:#x}");
        }
    });
}

#[test]
fn a_hole_is_enomem_and_what_comes_before_it_is_done() {
    in_child(|| {
        let hole = || {
            let start = map(6);
            // SAFETY: the third page of our own mapping.
            unsafe { calls::munmap(void(start.wrapping_add(2 * PAGE)), PAGE) }.unwrap();
            start
        };
        let (start, peer) = (hole(), hole());
        assert_eq!(raw::mlock2(peer as usize, 6 * PAGE, 1), Err(Errno::NOMEM));
        assert_eq!(
            errno(calls::mlock2(start, 6 * PAGE, ONFAULT)),
            Some(Errno::NOMEM)
        );
        assert_eq!(locked_pages(start, 6), locked_pages(peer, 6));
        agree(start, 6);
        for start in [start, peer] {
            raw::mlock2(start as usize + 3 * PAGE, 3 * PAGE, 1).unwrap();
        }
        mlock2(start, 3, 3, ONFAULT);
        assert_eq!(raw::munlock(peer as usize, 6 * PAGE), Err(Errno::NOMEM));
        for unlock in [calls::munlock as fn(_, _) -> _, |address, len| {
            calls::munlock2(address, len, ONFAULT)
        }] {
            mlock2(start, 0, 2, ONFAULT);
            assert_eq!(errno(unlock(start, 6 * PAGE)), Some(Errno::NOMEM));
            assert_eq!(locked_pages(start, 6), locked_pages(peer, 6));
            agree(start, 6);
        }
    });
}

#[test]
fn memory_without_access_is_locked_on_fault_and_reserves_nothing() {
    in_child(|| {
        // SAFETY: a new mapping.
        let start = unsafe {
            let none = ProtFlags::empty();
            calls::mmap(
                std::ptr::null_mut(),
                64 * PAGE,
                none,
                MapFlags::PRIVATE,
                None,
                ONFAULT,
            )
        };
        let start = start.unwrap().cast::<u8>();
        agree(start, 64);
        // Full: the kernel marks it and says that it cannot fault it in.
        assert_eq!(
            errno(calls::mlock2(start, PAGE, LOCKED)),
            Some(Errno::NOMEM)
        );
        assert_eq!(locked_pages(start, 1), [true]);
        agree(start, 64);
    });
}

#[test]
fn memory_that_is_never_locked_is_no_error_and_never_reported_locked() {
    in_child(|| {
        const MAP_DROPPABLE: i32 = 0x08;
        for (what, flags) in [
            ("droppable", MAP_DROPPABLE | libc::MAP_ANONYMOUS),
            (
                "hugetlb",
                libc::MAP_HUGETLB | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            ),
        ] {
            let len = 2 << 20;
            // SAFETY: a new mapping.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    flags,
                    -1,
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                crate::lock::skip::skipped(what, "no such memory here");
                continue;
            }
            let before = vmlck();
            let kernel = raw::mlock2(start as usize, len, 1).err();
            assert_eq!(
                errno(calls::mlock2(start.cast(), len, ONFAULT)),
                kernel,
                "{what}"
            );
            assert_eq!(vmlck(), before, "{what}");
            assert!(
                calls::ranges()
                    .unwrap()
                    .iter()
                    .all(|r| r.address != start as usize)
            );
            calls::munlock2(start.cast(), len, ONFAULT).unwrap();
            calls::munlock(start.cast(), len).unwrap();
        }
    });
}

#[test]
fn mapping_fully_locked_takes_what_cannot_be_faulted_in_as_the_kernel_does() {
    use std::os::fd::AsFd;
    in_child(|| {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"x").unwrap();
        let start = map(2);
        // SAFETY: over memory that only this test uses.
        let mapped = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let file = Some((file.as_fd(), 0));
            calls::mmap(void(start), 2 * PAGE, ProtFlags::READ, flags, file, LOCKED)
        };
        assert_eq!(mapped.unwrap(), void(start));
        agree(start, 2);
        assert_eq!(locked_pages(start, 2), [true; 2]);
    });
}

#[test]
fn a_hold_on_nothing_and_on_what_is_full_already() {
    in_child(|| {
        drop(calls::hold(&[], Mode::Full).unwrap());
        let start = map(2);
        // SAFETY: pages of our own, which nobody reads from here on.
        unsafe { libc::mprotect(void(start), 2 * PAGE, libc::PROT_NONE) };
        calls::mlock2(start, 2 * PAGE, LOCKED).unwrap_err();
        // SAFETY: never read.
        let bytes = unsafe { std::slice::from_raw_parts(start, 2 * PAGE) };
        let held = calls::hold(bytes, Mode::OnFault).unwrap();
        munlock2(start, 0, 2, LOCKED);
        assert_eq!(locked_pages(start, 2), [true; 2]);
        drop(held);
        assert_eq!(locked_pages(start, 2), [false; 2]);
    });
}
