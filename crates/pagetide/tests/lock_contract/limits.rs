//! Limits: over them nothing changes.
use ::pagetide::lock::{self as calls, AllFlags, Errno, MapFlags, Mode};

use crate::lock::{
    PAGE, RW, Random, agree, become_user, in_child, locked_pages, map, present, settle, touch,
    vmlck, void,
};
use crate::{LOCKED, ONFAULT, errno, mlock2};

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
        settle();
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
