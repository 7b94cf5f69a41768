//! The contract of the lock calls, clause by clause, against what the kernel says of the same memory.
mod lock;

use ::pagetide::lock::{
    self as calls, AllFlags, Errno, ForkPolicy, LockFlags, MapFlags, Mode, MremapFlags, ProtFlags,
};
use lock::{
    PAGE, RW, Random, agree, area_of, become_user, in_child, locked_pages, map, present,
    registry_view, touch, vmlck, void,
};
use pagetide_kernel::{mlock as raw, smaps};

const LOCKED: LockFlags = LockFlags::LOCKED;
const ONFAULT: LockFlags = LockFlags::ONFAULT;

fn errno(result: Result<(), calls::LockError>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn mlock2(start: *mut u8, from: usize, pages: usize, flags: LockFlags) {
    calls::mlock2(start.wrapping_add(from * PAGE), pages * PAGE, flags).unwrap();
}

fn munlock(start: *mut u8, from: usize, pages: usize) {
    calls::munlock(start.wrapping_add(from * PAGE), pages * PAGE).unwrap();
}

fn munlock2(start: *mut u8, from: usize, pages: usize, flags: LockFlags) {
    calls::munlock2(start.wrapping_add(from * PAGE), pages * PAGE, flags).unwrap();
}

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
        // Pages come onto the unevictable list in batches, one batch a processor; a lock taken there empties it.
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
                lock::skip::skipped(
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
fn over_the_limit_nothing_changes() {
    in_child(|| {
        const LIMIT_PAGES: usize = 64;
        become_user((LIMIT_PAGES * PAGE) as u64);
        let start = map(256);
        let mut random = Random(0x9E3779B97F4A7C15);
        let mut refused = 0;
        for _ in 0..3000 {
            let from = random.below(256);
            let pages = random.below(256 - from) + 1;
            let flags = [LOCKED, ONFAULT][random.below(2)];
            let before = (vmlck(), locked_pages(start, 256));
            let address = start.wrapping_add(from * PAGE);
            if random.below(3) == 0 {
                calls::munlock2(address, pages * PAGE, flags).unwrap();
                continue;
            }
            match calls::mlock2(address, pages * PAGE, flags) {
                Ok(()) => assert!(vmlck() <= (LIMIT_PAGES * PAGE) as u64),
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.errno(), Errno::NOMEM);
                    let report = error.report().expect("the limit's report");
                    assert_eq!(report.soft, Some((LIMIT_PAGES * PAGE) as u64));
                    assert!(error.to_string().contains("LimitMEMLOCK="));
                    assert_eq!((vmlck(), locked_pages(start, 256)), before);
                }
            }
        }
        assert!(refused > 100, "{refused}");
        agree(start, 256);
    });
}

#[test]
fn limit_0_is_eperm() {
    in_child(|| {
        become_user(0);
        let start = map(1);
        let error = calls::mlock2(start, PAGE, ONFAULT).unwrap_err();
        assert_eq!(error.errno(), Errno::PERM);
        assert!(error.report().is_some());
        assert_eq!(
            errno(calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT)),
            Some(Errno::PERM)
        );
        // SAFETY: a new mapping.
        let mapped = unsafe {
            calls::mmap(
                std::ptr::null_mut(),
                PAGE,
                RW,
                MapFlags::PRIVATE,
                None,
                ONFAULT,
            )
        };
        assert_eq!(mapped.unwrap_err().errno(), Errno::PERM);
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn mapping_locked_is_all_or_nothing() {
    in_child(|| {
        become_user(16 * PAGE as u64);
        let size = || {
            pagetide_kernel::maps::Maps::open().map(|mut maps| {
                let mut bytes = 0;
                maps.for_each(|mapping| bytes += mapping.range.bytes())
                    .unwrap();
                bytes
            })
        };
        let anonymous = |address: *mut u8, pages: usize, more: MapFlags| {
            // SAFETY: a new mapping, or one over memory that only this test uses.
            unsafe {
                calls::mmap(
                    void(address),
                    pages * PAGE,
                    RW,
                    MapFlags::PRIVATE | more,
                    None,
                    ONFAULT,
                )
            }
        };
        let before = size().unwrap();
        let error = anonymous(std::ptr::null_mut(), 17, MapFlags::empty()).unwrap_err();
        assert_eq!(error.errno(), Errno::AGAIN);
        assert!(error.report().is_some());
        assert_eq!(size().unwrap(), before, "no mapping is left behind");
        // What is replaced stays if the limit forbids.
        let start = map(32);
        touch(start, 0);
        let error = anonymous(start, 17, MapFlags::FIXED).unwrap_err();
        assert_eq!(error.errno(), Errno::AGAIN);
        assert!(present(start, 1)[0]);
        let mapped = anonymous(start, 16, MapFlags::FIXED | MapFlags::POPULATE).unwrap();
        assert_eq!(mapped, void(start));
        assert_eq!(present(start, 16), [false; 16], "POPULATE has no effect");
        assert_eq!(vmlck(), 16 * PAGE as u64);
        // Locked memory that is replaced makes room for its successor.
        anonymous(start, 16, MapFlags::FIXED).unwrap();
        assert_eq!(vmlck(), 16 * PAGE as u64);
        agree(start, 32);
        // SAFETY: mapped above.
        unsafe { calls::munmap(void(start), 16 * PAGE) }.unwrap();
        assert_eq!(vmlck(), 0);
        assert!(calls::ranges().unwrap().is_empty());
    });
}

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
        // SAFETY: our own mapping, replaced by a new one at the same place that somebody else locks.
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
            lock::skip::skipped(
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

#[test]
fn future_locking_can_be_ended_alone() {
    in_child(|| {
        let (on_fault, full, free) = (map(3), map(3), map(3));
        mlock2(on_fault, 0, 3, ONFAULT);
        mlock2(full, 0, 3, LOCKED);
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        let later = map(3);
        assert_eq!(locked_pages(later, 3), [true; 3]);
        let charge = vmlck();
        calls::munlockall2(AllFlags::FUTURE).unwrap();
        assert_eq!(locked_pages(map(3), 3), [false; 3], "the future is free");
        assert_eq!(locked_pages(free, 3), [false; 3], "the past as it was");
        for start in [on_fault, full, later] {
            assert_eq!(locked_pages(start, 3), [true; 3]);
            agree(start, 3);
        }
        assert!(vmlck() <= charge);
        assert_eq!(registry_view(full, 3), [Some(Mode::Full); 3]);
    });
}

#[test]
fn future_locking_can_be_ended_where_the_limit_forbids_marking_everything() {
    in_child(|| {
        let start = map(3);
        become_user(4 << 20);
        mlock2(start, 0, 3, ONFAULT);
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        assert_eq!(locked_pages(map(3), 3), [true; 3]);
        calls::munlockall2(AllFlags::FUTURE).unwrap();
        assert_eq!(locked_pages(map(3), 3), [false; 3]);
        assert_eq!(locked_pages(start, 3), [true; 3]);
        agree(start, 3);
    });
}

#[test]
fn current_can_be_unlocked_and_the_future_kept() {
    in_child(|| {
        let start = map(3);
        calls::mlockall(AllFlags::CURRENT | AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        assert_eq!(registry_view(start, 3), [Some(Mode::OnFault); 3]);
        calls::munlockall2(AllFlags::CURRENT).unwrap();
        assert_eq!(locked_pages(start, 3), [false; 3]);
        assert_eq!(locked_pages(map(3), 3), [true; 3]);
    });
}

#[test]
fn on_fault_can_be_unlocked_and_full_locks_kept() {
    in_child(|| {
        let (full, free) = (map(3), map(3));
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        mlock2(full, 0, 3, LOCKED);
        mlock2(free, 0, 3, ONFAULT);
        let later = map(3);
        calls::munlockall2(AllFlags::ONFAULT).unwrap();
        assert_eq!(locked_pages(full, 3), [true; 3]);
        for start in [free, later, map(3)] {
            assert_eq!(locked_pages(start, 3), [false; 3]);
        }
        agree(full, 3);
        // A full future stays.
        calls::mlockall(AllFlags::FUTURE).unwrap();
        calls::munlockall2(AllFlags::ONFAULT).unwrap();
        assert_eq!(locked_pages(map(3), 3), [true; 3]);
        // Each call replaces what was said before.
        calls::mlockall(AllFlags::CURRENT | AllFlags::ONFAULT).unwrap();
        assert_eq!(locked_pages(map(3), 3), [false; 3]);
        calls::munlockall().unwrap();
        assert_eq!(vmlck(), 0);
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
fn a_hold_over_the_limit_changes_nothing() {
    in_child(|| {
        become_user(4 * PAGE as u64);
        let start = map(8);
        mlock2(start, 2, 1, ONFAULT);
        // SAFETY: mapped, and only read.
        let bytes = unsafe { std::slice::from_raw_parts(start, 8 * PAGE) };
        let before = (vmlck(), locked_pages(start, 8));
        let error = calls::hold(bytes, Mode::OnFault).unwrap_err();
        assert_eq!(error.errno(), Errno::NOMEM);
        assert!(error.report().is_some());
        assert_eq!((vmlck(), locked_pages(start, 8)), before);
        agree(start, 8);
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
                lock::skip::skipped(what, "no such memory here");
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
fn the_registry_agrees_with_the_kernel_whatever_is_done() {
    in_child(|| {
        const PAGES: usize = 48;
        let start = map(PAGES);
        let mut random = Random(42);
        let mut held = Vec::new();
        for step in 0..1500 {
            let from = random.below(PAGES);
            let pages = random.below((PAGES - from).min(12)) + 1;
            let address = start.wrapping_add(from * PAGE);
            let flags = [LOCKED, ONFAULT][random.below(2)];
            match random.below(8) {
                0 | 1 => mlock2(start, from, pages, flags),
                2 => munlock(start, from, pages),
                3 => munlock2(start, from, pages, flags),
                4 => {
                    // SAFETY: the test's own memory, which stays mapped; only addresses matter here.
                    let bytes = unsafe { std::slice::from_raw_parts(address, pages * PAGE) };
                    let mode = [Mode::Full, Mode::OnFault][random.below(2)];
                    held.push(calls::hold(bytes, mode).unwrap());
                }
                5 if !held.is_empty() => {
                    let which = random.below(held.len());
                    drop(held.swap_remove(which));
                }
                6 if held.is_empty() || step % 100 == 99 => {
                    held.clear();
                    let len = pages * PAGE;
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                    // SAFETY: as above; nobody holds it.
                    unsafe {
                        calls::munmap(void(address), len).unwrap();
                        rustix::mm::mmap_anonymous(void(address), len, RW, flags).unwrap();
                    }
                }
                _ => touch(start, from),
            }
            if step % 5 == 0 {
                agree(start, PAGES);
            }
        }
        held.clear();
        munlock(start, 0, PAGES);
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn many_threads_at_once() {
    in_child(|| {
        const PAGES: usize = 64;
        let start = map(PAGES) as usize;
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                scope.spawn(move || {
                    let mut random = Random(thread + 1);
                    for _ in 0..400 {
                        let from = random.below(PAGES);
                        let pages = random.below(PAGES - from) + 1;
                        let address = (start + from * PAGE) as *const u8;
                        let flags = [LOCKED, ONFAULT][random.below(2)];
                        match random.below(4) {
                            0 => calls::munlock(address, pages * PAGE).unwrap(),
                            1 => calls::munlock2(address, pages * PAGE, flags).unwrap(),
                            2 => {
                                // SAFETY: mapped for the whole test.
                                let bytes =
                                    unsafe { std::slice::from_raw_parts(address, pages * PAGE) };
                                drop(calls::hold(bytes, Mode::OnFault).unwrap());
                            }
                            _ => calls::mlock2(address, pages * PAGE, flags).unwrap(),
                        }
                    }
                });
            }
        });
        let start = start as *mut u8;
        agree(start, PAGES);
        munlock(start, 0, PAGES);
        assert_eq!(vmlck(), 0);
        in_child(|| assert_eq!(vmlck(), 0));
    });
}
