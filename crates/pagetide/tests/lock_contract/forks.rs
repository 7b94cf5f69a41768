//! Forks: what the child has locked, and what owners from before the fork may still undo there.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::pagetide::lock::{self as calls, AllFlags, ForkPolicy, MapFlags, Mode, ProtFlags};

use crate::lock::{PAGE, agree, become_user, child_status, in_child, locked_pages, map, vmlck};
use crate::scarce::{lower, without_descriptors};
use crate::{LOCKED, ONFAULT, munlock2};

fn bytes(start: *mut u8, pages: usize) -> &'static [u8] {
    // SAFETY: mapped for as long as the test's process lives, and only read.
    unsafe { std::slice::from_raw_parts(start, pages * PAGE) }
}

#[test]
fn an_inherited_owner_takes_nothing_from_a_new_one() {
    in_child(|| {
        calls::set_fork_policy(ForkPolicy::Drop);
        let start = map(2);
        let mut inherited = Some(calls::hold(bytes(start, 2), Mode::OnFault).unwrap());
        in_child(|| {
            let new = calls::hold(bytes(start, 2), Mode::OnFault).unwrap();
            drop(inherited.take());
            assert_eq!(locked_pages(start, 2), [true; 2]);
            in_child(|| assert_eq!(locked_pages(start, 2), [false; 2]));
            drop(new);
            assert_eq!(locked_pages(start, 2), [false; 2]);
        });
        assert_eq!(locked_pages(start, 2), [true; 2]);
    });
}

#[test]
fn what_could_not_be_locked_again_is_lost_to_its_owner_alone() {
    in_child(|| {
        become_user(64 * PAGE as u64);
        let (small, large) = (map(1), map(8));
        let mut held = [
            Some(calls::hold(bytes(small, 1), Mode::OnFault).unwrap()),
            Some(calls::hold(bytes(large, 8), Mode::OnFault).unwrap()),
        ];
        lower(4 * PAGE);
        in_child(|| {
            assert!(calls::fork_error().is_some());
            assert_eq!(locked_pages(small, 1), [true]);
            assert_eq!(locked_pages(large, 8), [false; 8]);
            agree(large, 8);
            let new = calls::hold(bytes(large, 1), Mode::OnFault).unwrap();
            held[1].take();
            assert_eq!(locked_pages(large, 1), [true]);
            held[0].take();
            assert_eq!(locked_pages(small, 1), [false]);
            drop(new);
        });
    });
}

#[test]
fn a_child_that_starts_with_nothing_knows_of_nothing_foreign_either() {
    in_child(|| {
        let start = map(2);
        pagetide_kernel::mlock::mlock2(start as usize, 2 * PAGE, 1).unwrap();
        calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
        calls::set_fork_policy(ForkPolicy::Drop);
        in_child(|| {
            assert_eq!(vmlck(), 0);
            calls::mlockall(AllFlags::FUTURE | AllFlags::ONFAULT).unwrap();
            // SAFETY: memory that only this test uses, mapped anew and locked by the kernel.
            unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                rustix::mm::mmap_anonymous(start.cast(), 2 * PAGE, crate::lock::RW, flags).unwrap();
            }
            assert_eq!(locked_pages(start, 2), [true; 2]);
            calls::munlockall2(AllFlags::CURRENT).unwrap();
            assert_eq!(locked_pages(start, 2), [false; 2]);
        });
    });
}

#[test]
fn a_child_that_cannot_look_says_that_it_is_not_locked() {
    in_child(|| {
        become_user(64 * PAGE as u64);
        let start = map(8);
        let held = calls::hold(bytes(start, 8), Mode::OnFault).unwrap();
        lower(PAGE);
        without_descriptors(|| in_child(|| assert!(calls::fork_error().is_some())));
        drop(held);
    });
}

#[test]
fn memory_without_access_is_locked_again() {
    in_child(|| {
        // SAFETY: a new mapping.
        let mapped = unsafe {
            let at = std::ptr::null_mut();
            calls::mmap(
                at,
                4 * PAGE,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
                None,
                LOCKED,
            )
        };
        let start = mapped.unwrap().cast::<u8>();
        let mlockall = calls::mlockall(AllFlags::CURRENT);
        let charged = vmlck();
        in_child(|| {
            assert_eq!(calls::fork_error(), None);
            agree(start, 4);
            if mlockall.is_ok() {
                assert_eq!(vmlck(), charged);
            }
            munlock2(start, 0, 4, LOCKED);
            assert_eq!(locked_pages(start, 4), [false; 4]);
        });
    });
}

/// A fork while another thread is in the first call of all: the child's first call must not wait
/// for that thread, which is not there.
#[test]
fn a_fork_during_the_first_call_leaves_the_child_usable() {
    for attempt in 0..150 {
        in_child(|| {
            // No call before: `map` would be one.
            let page = Box::leak(Box::new([0u8; PAGE])).as_ptr();
            let go = Arc::new(AtomicBool::new(false));
            let first = std::thread::spawn({
                let (go, page) = (Arc::clone(&go), page as usize);
                move || {
                    while !go.load(Ordering::Acquire) {}
                    (0..attempt * 40 % 2560).for_each(|_| std::hint::spin_loop());
                    let _ = calls::mlock2(page as *const u8, 1, ONFAULT);
                }
            });
            go.store(true, Ordering::Release);
            let status = child_status(|| {
                // SAFETY: ends this child if the call does not return.
                unsafe { libc::alarm(10) };
                calls::mlock2(page, 1, ONFAULT).unwrap();
                calls::munlock2(page, 1, ONFAULT).unwrap();
                assert_eq!(vmlck(), 0);
            });
            assert_eq!(status, 0, "attempt {attempt}");
            first.join().unwrap();
        });
    }
}

/// The C library knows nothing of such a child, and its handlers are not called.
#[test]
fn a_child_of_a_bare_clone_begins_with_nothing() {
    in_child(|| {
        let start = map(2);
        let held = calls::hold(bytes(start, 2), Mode::OnFault).unwrap();
        // SAFETY: as `fork`, without a new stack; the child only looks, and ends without the C
        // library.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let known = calls::ranges().map_or(1, |ranges| ranges.len());
            drop(held);
            // SAFETY: ends the child.
            unsafe { libc::_exit(known as i32) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child as i32, &mut status, 0) };
        assert_eq!(
            status, 0,
            "the registry there says that something is locked"
        );
        assert_eq!(locked_pages(start, 2), [true; 2]);
    });
}
