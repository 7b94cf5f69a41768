//! Anything, in any order and from many threads.
use ::pagetide::lock::{self as calls, MapFlags, Mode};

use crate::lock::{PAGE, RW, Random, agree, in_child, map, touch, vmlck, void};
use crate::{LOCKED, ONFAULT, mlock2, munlock, munlock2};

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
                    // SAFETY: the test's own memory, which stays mapped; only addresses matter
                    // here.
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
