//! mlockall, munlockall and their halves.
use ::pagetide::lock::{self as calls, AllFlags, Mode};

use crate::lock::{agree, become_user, in_child, locked_pages, map, registry_view, vmlck};
use crate::{LOCKED, ONFAULT, mlock2};

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
