//! Where something runs short while locks are held: descriptors, or the limit itself, lowered.
use ::pagetide::lock::{self as calls, AllFlags, Errno, MapFlags, Mode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::lock::{
    PAGE, RW, agree, become_user, in_child, locked_pages, map, present, touch, vmlck, void,
};
use crate::{LOCKED, ONFAULT, errno, mlock2, munlock, munlock2};

/// Lowers the lock limit to so many bytes.
pub fn lower(bytes: usize) {
    let lowered = Rlimit {
        current: Some(bytes as u64),
        ..getrlimit(Resource::Memlock)
    };
    setrlimit(Resource::Memlock, lowered).unwrap();
}

/// Runs `act` where no descriptor can be opened.
pub fn without_descriptors<T>(act: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let done = act();
    setrlimit(Resource::Nofile, before).unwrap();
    done
}

/// Five pages, of which the fourth is not mapped.
fn with_hole() -> *mut u8 {
    let start = map(5);
    // SAFETY: a page of our own mapping that nobody uses.
    unsafe { rustix::mm::munmap(void(start.wrapping_add(3 * PAGE)), PAGE) }.unwrap();
    start
}

#[test]
fn without_descriptors_mlockall_locks_nothing_that_it_cannot_register() {
    in_child(|| {
        let current = AllFlags::CURRENT | AllFlags::ONFAULT;
        let result = without_descriptors(|| calls::mlockall(current));
        assert_eq!(errno(result), Some(Errno::MFILE));
        assert_eq!(vmlck(), 0);
        calls::mlockall(current | AllFlags::FUTURE).unwrap();
        let before = vmlck();
        let result = without_descriptors(|| calls::munlockall2(AllFlags::FUTURE));
        assert_eq!(errno(result), Some(Errno::MFILE));
        assert_eq!(vmlck(), before);
        without_descriptors(calls::munlockall).unwrap();
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn without_descriptors_a_hole_leaves_the_registry_true() {
    in_child(|| {
        let start = with_hole();
        let over = |start: *mut u8| calls::mlock2(start, 5 * PAGE, ONFAULT);
        assert_eq!(
            errno(without_descriptors(|| over(start))),
            Some(Errno::NOMEM)
        );
        agree(start, 5);
        munlock2(start, 0, 3, ONFAULT);
        assert_eq!(locked_pages(start, 5), [false; 5], "it was registered");

        mlock2(start, 0, 3, ONFAULT);
        mlock2(start, 4, 1, ONFAULT);
        let result = without_descriptors(|| calls::munlock(start, 5 * PAGE));
        assert_eq!(errno(result), Some(Errno::NOMEM));
        munlock2(start, 4, 1, ONFAULT);
        assert_eq!(
            locked_pages(start, 5),
            [false; 5],
            "what is behind the hole was still registered"
        );

        // With an owner elsewhere the other way is taken.
        let held = map(1);
        // SAFETY: mapped, and only read.
        let held = calls::hold(
            unsafe { std::slice::from_raw_parts(held, PAGE) },
            Mode::OnFault,
        )
        .unwrap();
        mlock2(start, 0, 3, ONFAULT);
        mlock2(start, 4, 1, ONFAULT);
        let result = without_descriptors(|| calls::munlock(start, 5 * PAGE));
        assert_eq!(errno(result), Some(Errno::NOMEM));
        agree(start, 5);
        assert_eq!(locked_pages(start, 5), [false, false, false, false, true]);
        drop(held);
    });
}

#[test]
fn without_descriptors_nothing_is_replaced_that_might_not_be_locked() {
    in_child(|| {
        become_user(4 * PAGE as u64);
        let start = map(8);
        touch(start, 0);
        // SAFETY: over memory that only this test uses.
        let mapped = without_descriptors(|| unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            calls::mmap(void(start), 8 * PAGE, RW, flags, None, ONFAULT)
        });
        assert_eq!(mapped.unwrap_err().errno(), Errno::MFILE);
        assert!(present(start, 1)[0]);
    });
}

#[test]
fn a_limit_lowered_below_what_is_locked_breaks_nothing() {
    in_child(|| {
        become_user(64 * PAGE as u64);
        let start = map(8);
        // SAFETY: mapped, and only read.
        let bytes = unsafe { std::slice::from_raw_parts(start, 8 * PAGE) };
        mlock2(start, 0, 4, ONFAULT);
        mlock2(start, 4, 4, LOCKED);
        let full = calls::hold(&bytes[..2 * PAGE], Mode::Full).unwrap();
        let on_fault = calls::hold(&bytes[6 * PAGE..], Mode::OnFault).unwrap();
        lower(PAGE);
        // To weaken a lock is refused now. What is to be unlocked is unlocked all the same.
        munlock2(start, 4, 4, LOCKED);
        let locked = |from: usize| locked_pages(start, 8)[from..from + 2].to_vec();
        assert_eq!((locked(4), locked(6)), (vec![false; 2], vec![true; 2]));
        drop(full);
        assert_eq!(locked(0), [true; 2]);
        agree(start, 6);
        drop(on_fault);
        assert_eq!(locked(6), [false; 2]);
        munlock2(start, 0, 4, LOCKED | ONFAULT);
        assert_eq!(vmlck(), 0);
        munlock(start, 0, 8);
        assert!(calls::ranges().unwrap().is_empty());
    });
}

#[test]
fn ending_the_future_never_loses_a_lock_to_a_lowered_limit() {
    in_child(|| {
        const HELD: usize = 512;
        become_user(8 << 20);
        let start = map(HELD);
        // SAFETY: mapped, and only read.
        let bytes = unsafe { std::slice::from_raw_parts(start, HELD * PAGE) };
        let held = calls::hold(bytes, Mode::Full).unwrap();
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        lower(1 << 20);
        let ends: [fn() -> Result<(), calls::LockError>; 2] =
            [|| calls::munlockall2(AllFlags::FUTURE), calls::munlockall];
        for end in ends {
            let error = end().unwrap_err();
            assert_eq!(error.errno(), Errno::NOMEM);
            assert!(error.report().is_some(), "{error}");
            assert_eq!(locked_pages(start, HELD), [true; HELD]);
        }
        lower(8 << 20);
        calls::munlockall().unwrap();
        assert_eq!(locked_pages(start, HELD), [true; HELD]);
        assert_eq!(vmlck(), (HELD * PAGE) as u64);
        drop(held);
        assert_eq!(vmlck(), 0);
    });
}

#[test]
fn under_a_lowered_limit_nothing_is_replaced() {
    in_child(|| {
        become_user(64 * PAGE as u64);
        let (start, other) = (map(4), map(10));
        mlock2(start, 0, 4, LOCKED);
        mlock2(other, 0, 10, LOCKED);
        lower(5 * PAGE);
        // SAFETY: over memory that only this test uses.
        let mapped = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            calls::mmap(void(start), 4 * PAGE, RW, flags, None, ONFAULT)
        };
        assert_eq!(mapped.unwrap_err().errno(), Errno::AGAIN);
        assert_eq!(
            (locked_pages(start, 4), present(start, 4)),
            (vec![true; 4], vec![true; 4])
        );
    });
}

#[test]
fn what_could_not_be_weakened_stays_within_reach() {
    for raised in [false, true] {
        in_child(|| {
            become_user(64 * PAGE as u64);
            let start = map(4);
            // SAFETY: mapped, and only read.
            let bytes = unsafe { std::slice::from_raw_parts(start, 4 * PAGE) };
            mlock2(start, 0, 4, ONFAULT);
            let first = calls::hold(bytes, Mode::OnFault).unwrap();
            let second = calls::hold(bytes, Mode::Full).unwrap();
            lower(PAGE);
            drop(second);
            if raised {
                lower(64 * PAGE);
            }
            drop(first);
            agree(start, 4);
            let mode = if raised { ONFAULT } else { LOCKED };
            munlock2(start, 0, 4, mode);
            assert_eq!(vmlck(), 0);
        });
    }
}
