//! Freezes: what a forked child may rely on, and that nothing is kept longer than it is needed.

use crate::common::*;
use pagetide_store::{ErrorKind, Freeze, Page, Slot, Store};
use std::io::{Read, Write};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn close(fd: i32) -> i32;
    fn dup(fd: i32) -> i32;
}

/// Runs `child` in a forked child beside `parent` and asserts that it returned zero.
fn in_child(parent: impl FnOnce(), child: impl FnOnce() -> i32) {
    // SAFETY: the child only does what `child` does, which is restricted to calls that neither
    // allocate nor lock.
    let pid = unsafe { fork() };
    if pid == 0 {
        let status = child();
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { _exit(status) }
    }
    parent();
    let mut status = -1;
    // SAFETY: `status` is valid for the call.
    assert_eq!(unsafe { waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed with status {:#x}", status);
}

pub fn a_forked_child_reads_what_the_parent_deletes(f: &Fixture) {
    let pages: Vec<Page> = (0..700).map(page).collect();
    let slots = put_all(&*f.store, &pages);
    f.store.delete(&slots[600..]);
    let descriptors = f.store.descriptors();
    // SAFETY: plain descriptor numbers.
    let copies: Vec<i32> = descriptors.iter().map(|fd| unsafe { dup(*fd) }).collect();
    let mut found = Page::ZERO;
    let (mut ready, mut done) = std::io::pipe().unwrap();
    let freeze = f.store.freeze();
    let parent = || {
        // Everything the parent can do to the shared bytes: delete all, reuse the room, delete
        // that, again.
        f.store.delete(&slots[..600]);
        for round in 0..3 {
            let others: Vec<Page> = (0..700)
                .map(|seed| random_page(seed + round * 1000))
                .collect();
            let others = put_all(&*f.store, &others);
            f.store.delete(&others);
        }
        done.write_all(&[0]).unwrap();
    };
    let child = || {
        for fd in &descriptors {
            // SAFETY: the child's own table; the store is told of the copies instead.
            unsafe { close(*fd) };
        }
        f.store.inherit(&copies);
        f.store.delete(&slots[..300]);
        let mut slot = [Slot(0)];
        if f.store.put(&[&pages[0]], &mut slot).is_ok() {
            return 2;
        }
        // Twice: while the parent does its worst, and after.
        for round in 0..2 {
            for index in (0..600).rev() {
                if f.store.get(slots[index], &mut found).is_err() || found.0 != pages[index].0 {
                    return 3;
                }
            }
            if f.store.get(slots[650], &mut found).is_ok() {
                return 4;
            }
            if round == 0 && ready.read_exact(&mut [0]).is_err() {
                return 5;
            }
        }
        0
    };
    in_child(parent, child);
    f.store.thaw(freeze);
    for fd in copies {
        // SAFETY: made above and used by nobody else in this process.
        unsafe { close(fd) };
    }
    assert_eq!(f.store.usage().pages, 0);
    // The parent's store is as good as before.
    let slots = put_all(&*f.store, &pages);
    slots
        .iter()
        .zip(&pages)
        .for_each(|(slot, page)| assert_holds(&*f.store, *slot, page));
}

pub fn frozen_slots_are_not_reused_until_thawed(f: &Fixture) {
    let slots = put_all(&*f.store, &(0..50).map(random_page).collect::<Vec<_>>());
    let freeze = f.store.freeze();
    f.store.delete(&slots);
    f.store.delete(&slots);
    assert_eq!(f.store.usage().pages, 0);
    let held = f.store.usage().bytes;
    for slot in &slots {
        assert_eq!(
            f.store
                .get(*slot, &mut Page::ZERO.clone())
                .unwrap_err()
                .kind,
            ErrorKind::Corrupt
        );
    }
    let others = put_all(&*f.store, &(0..50).map(page).collect::<Vec<_>>());
    assert!(others.iter().all(|slot| !slots.contains(slot)));
    // Born after the freeze: free for reuse at once.
    f.store.delete(&others[..25]);
    let again = put_all(&*f.store, &(0..25).map(page).collect::<Vec<_>>());
    assert!(again.iter().all(|slot| others[..25].contains(slot)));
    f.store.thaw(freeze);
    let reused = put_all(&*f.store, &(0..50).map(random_page).collect::<Vec<_>>());
    assert!(reused.iter().all(|slot| slots.contains(slot)));
    assert!(f.store.usage().bytes <= held + (1 << 20));
    assert_eq!(f.store.usage().pages, 100);
}

pub fn freezes_overlap(f: &Fixture) {
    let store = &*f.store;
    let put = |seed| put_all(store, &[random_page(seed)])[0];
    let free = |store: &dyn Store, slot: Slot| {
        // Whether the slot comes back shows whether it was released. Probes are deleted again in
        // the same order.
        let probes = put_all(store, &(0..8).map(page).collect::<Vec<_>>());
        store.delete(&probes);
        probes.contains(&slot)
    };
    let a = put(1);
    let first = store.freeze();
    let b = put(2);
    let second = store.freeze();
    let c = put(3);
    store.delete(&[a, b, c]);
    assert!(free(store, c), "born after both");
    assert!(!free(store, a) && !free(store, b));
    store.thaw(second);
    assert!(free(store, b), "only the second freeze needed it");
    assert!(!free(store, a), "the first still does");
    store.thaw(Freeze(999));
    store.thaw(second);
    assert!(!free(store, a));
    store.thaw(first);
    assert!(free(store, a));
    assert_eq!(store.usage().pages, 0);

    // The other order: the older one ends first.
    let a = put(4);
    let first = store.freeze();
    store.delete(&[a]);
    let second = store.freeze();
    let b = put(5);
    store.thaw(first);
    assert!(free(store, a), "deleted before the second freeze");
    store.thaw(second);
    assert_holds(store, b, &random_page(5));
}
