//! The program's advice about its memory: emptied at once where it may be at any time
//! (`MADV_FREE`), and what it wants of it in forked children (`MADV_DONTFORK`, `MADV_WIPEONFORK`),
//! remembered because the agent uses the same advice for its own ends.
use std::sync::atomic::{AtomicUsize, Ordering};

use pagetide_kernel::PageRange;
use pagetide_kernel::syscall::syscall;
use rustix::io::Errno;

use crate::agent::agent;
use crate::next::returned;
use crate::scratch_stack;

/// What the program asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The child does not have the memory.
    Absent = 1,
    /// The child finds zeros.
    Wiped = 2,
}

struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    wish: AtomicUsize,
}

const CAPACITY: usize = 256;
static WISHES: [Entry; CAPACITY] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        wish: AtomicUsize::new(0),
    }
}; CAPACITY];
const BUSY: usize = usize::MAX;

fn remember(range: PageRange, wish: Wish) -> bool {
    WISHES.iter().any(|entry| {
        let taken = entry
            .wish
            .compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            entry.start.store(range.start.0 as usize, Ordering::Relaxed);
            entry.end.store(range.end.0 as usize, Ordering::Relaxed);
            entry.wish.store(wish as usize, Ordering::Release);
        }
        taken
    })
}

fn forget(range: PageRange, wish: Wish) {
    for entry in &WISHES {
        let known = entry.wish.load(Ordering::Acquire) == wish as usize;
        if known
            && range.start.0 as usize <= entry.start.load(Ordering::Relaxed)
            && entry.end.load(Ordering::Relaxed) <= range.end.0 as usize
        {
            entry.wish.store(0, Ordering::Release);
        }
    }
}

/// Calls `visit` with every range the program has that wish for.
pub fn each(wish: Wish, mut visit: impl FnMut(PageRange)) {
    use pagetide_kernel::PageNumber;
    for entry in &WISHES {
        if entry.wish.load(Ordering::Acquire) == wish as usize {
            let number = |word: &AtomicUsize| PageNumber(word.load(Ordering::Relaxed) as u64);
            visit(PageRange {
                start: number(&entry.start),
                end: number(&entry.end),
            });
        }
    }
}

/// Whether all of it is under the pager. Such memory is emptied at once where the program leaves
/// that to the kernel (`MADV_FREE`), which the program must be prepared for: a page that lingers is
/// written again without a fault, and would be resident without being counted.
fn is_governed(address: *mut libc::c_void, len: usize) -> bool {
    let range = PageRange::covering(address as usize, len);
    agent().is_some_and(|agent| {
        scratch_stack::with(move || agent.pager.first_managed_in(range) == Some(range))
    })
}

/// Whether the kernel tells the pager of memory so advised on.
fn gives_up(advice: i32) -> bool {
    const MADV_DONTNEED_LOCKED: i32 = 24;
    matches!(
        advice,
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | MADV_DONTNEED_LOCKED
    )
}

/// Stands before `madvise`.
///
/// # Safety
/// As `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut libc::c_void, len: usize, advice: i32) -> i32 {
    let asked = match advice {
        libc::MADV_FREE if is_governed(address, len) => libc::MADV_DONTNEED,
        _ => advice,
    };
    let giving_up = agent().filter(|_| gives_up(advice));
    let call = giving_up.map(|agent| {
        agent.pager.space.throttle.pass();
        agent.pager.space.mapping_lock.enter_giving_up()
    });
    let args = [address as usize, len, asked as usize];
    // SAFETY: the program answers for its advice.
    let result = unsafe { syscall(libc::SYS_madvise as usize, args) };
    drop(call);
    if result.is_err() {
        return returned(result);
    }
    let ours = matches!(
        advice,
        libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK
    );
    if let Some(agent) = agent().filter(|_| ours) {
        let range = PageRange::covering(address as usize, len);
        let room = match advice {
            libc::MADV_DONTFORK => remember(range, Wish::Absent),
            libc::MADV_WIPEONFORK => remember(range, Wish::Wiped),
            libc::MADV_DOFORK => {
                forget(range, Wish::Absent);
                // The agent keeps its own mark on governed memory; a fork it catches takes it off.
                // Its own copy of the range: the lock that is held may not wait for a page of the
                // program's stack.
                scratch_stack::with(move || {
                    agent.pager.each_managed(|managed| {
                        let part = managed.intersection(range);
                        if !part.is_empty() {
                            let _ = pagetide_kernel::memory::set_inherited(part, false);
                        }
                    });
                });
                true
            }
            _ => {
                forget(range, Wish::Wiped);
                true
            }
        };
        if !room {
            return returned(Err(Errno::AGAIN));
        }
    }
    0
}
