//! One at a time: the program's calls that change what memory is where, and the evictor while it
//! empties a page where it is.
//!
//! - The kernel empties an address, whatever is there by then. Between the evictor's claim of a
//!   page and that, the program might unmap it, or move or map something else over it, and that
//!   would lose its bytes.
//! - The kernel tells of a call when others may already have used the place it left. A thread that
//!   grows its memory over that place and moves it on is heard of with the place, and the page
//!   words there are still those of the first.
//!
//! A lock, then, held over the system call until its events have been read. Nobody waits for ever:
//! who has waited too long for another call takes the lock away, for its holder may have left by
//! `longjmp`; the evictor leaves the page where it is.
//!
//! Calls that give memory up and leave it mapped go on beside each other and beside these. But of
//! pages that are emptied while their mapping is being divided (`mprotect` of a part) the kernel
//! tells again, and that looks like a call of the program's. So the evictor holds such calls off
//! while it empties more than a page: then it knows whose the second telling is. Where it waits too
//! long for them, it empties page by page: a page cannot be divided.
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use pagetide_kernel::sync::{futex_wait, futex_wake, now_ns};
use rustix::thread::gettid;

/// Longest wait of a call. On a busy machine another may take long, for the threads that it needs
/// get no processor.
const CALL_WAITS_NS: u64 = 2_000_000_000;
/// Longest wait of the evictor.
const EVICTOR_WAITS_NS: u64 = 20_000_000;
/// Longest wait of the evictor for calls that give memory up.
const HOLDING_OFF_WAITS_NS: u64 = 1_000_000;
/// Who is held off looks again after so long.
const HELD_OFF: Duration = Duration::from_millis(20);

/// See the module's text.
#[derive(Debug)]
pub struct MappingLock {
    /// What the pager is told of has to be told one at a time.
    of_events: bool,
    /// The thread inside, 0 for none.
    inside: AtomicU32,
    waiting: AtomicU32,
    /// Calls under way that give memory up.
    giving_up: AtomicU32,
    /// 1 while the evictor lets none begin.
    held_off: AtomicU32,
}

/// Nobody else is inside, until this is dropped.
#[derive(Debug)]
pub struct MappingGuard<'e> {
    lock: &'e MappingLock,
    /// 0 in a call within a call, of a signal handler's for one: the outer one ends it.
    thread: u32,
}

/// Memory is being given up, until this is dropped.
#[derive(Debug)]
pub enum GivingUpGuard<'e> {
    /// Nobody else is inside.
    Alone(MappingGuard<'e>),
    /// Others may be.
    Counted(&'e MappingLock),
}

/// The evictor is inside, until this is dropped.
#[derive(Debug)]
pub(crate) struct EvictorGuard<'e> {
    inside: MappingGuard<'e>,
    holds_off: bool,
}

impl MappingLock {
    /// Where the kernel does not know how many events are under way (before 5.15), calls that only
    /// raise one are to be alone as well.
    pub fn new(counts_events: bool) -> MappingLock {
        MappingLock {
            of_events: !counts_events,
            inside: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            giving_up: AtomicU32::new(0),
            held_off: AtomicU32::new(0),
        }
    }

    /// Before a call of the program that gives memory up and leaves the mapping. Async-signal-safe.
    pub fn enter_giving_up(&self) -> GivingUpGuard<'_> {
        if self.of_events {
            return GivingUpGuard::Alone(self.enter_call());
        }
        loop {
            // Said first, then asked: either this sees the evictor, or it sees this.
            self.giving_up.fetch_add(1, SeqCst);
            let guard = GivingUpGuard::Counted(self);
            if self.held_off.load(SeqCst) == 0 {
                return guard;
            }
            drop(guard);
            futex_wait(&self.held_off, 1, Some(HELD_OFF));
        }
    }

    /// Before a call of the program that unmaps or moves memory, or maps some over other, or forks.
    /// Async-signal-safe.
    pub fn enter_call(&self) -> MappingGuard<'_> {
        let thread = gettid().as_raw_nonzero().get() as u32;
        self.enter(thread, CALL_WAITS_NS).unwrap_or_else(|| {
            self.inside.store(thread, SeqCst);
            MappingGuard { lock: self, thread }
        })
    }

    /// In the evictor, before it claims pages to empty them; `None` if that takes too long. If they
    /// are `several`, calls that give memory up are held off.
    pub(crate) fn enter_evictor(&self, several: bool) -> Option<EvictorGuard<'_>> {
        let thread = gettid().as_raw_nonzero().get() as u32;
        let inside = self.enter(thread, EVICTOR_WAITS_NS)?;
        let holds_off = several && (self.of_events || self.hold_off());
        Some(EvictorGuard { inside, holds_off })
    }

    /// Whether no call that gives memory up is under way, and none begins.
    fn hold_off(&self) -> bool {
        self.held_off.store(1, SeqCst);
        let until_ns = now_ns() + HOLDING_OFF_WAITS_NS;
        while self.giving_up.load(SeqCst) != 0 {
            if now_ns() > until_ns {
                self.let_on();
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    fn let_on(&self) {
        self.held_off.store(0, SeqCst);
        futex_wake(&self.held_off, i32::MAX as u32);
    }

    fn enter(&self, thread: u32, wait_ns: u64) -> Option<MappingGuard<'_>> {
        let mut until_ns = None;
        loop {
            let of = |thread| MappingGuard { lock: self, thread };
            let other = match self.inside.compare_exchange(0, thread, SeqCst, SeqCst) {
                Ok(_) => return Some(of(thread)),
                Err(own) if own == thread => return Some(of(0)),
                Err(other) => other,
            };
            let now = now_ns();
            let until = *until_ns.get_or_insert(now + wait_ns);
            if now >= until {
                return None;
            }
            self.waiting.fetch_add(1, SeqCst);
            futex_wait(&self.inside, other, Some(Duration::from_nanos(until - now)));
            self.waiting.fetch_sub(1, SeqCst);
        }
    }

    /// In a forked child: whoever else was inside, or waited, is in the parent.
    pub(crate) fn reset_after_fork(&self) {
        self.inside.store(0, SeqCst);
        self.waiting.store(0, SeqCst);
        self.giving_up.store(0, SeqCst);
        self.held_off.store(0, SeqCst);
    }
}

impl EvictorGuard<'_> {
    /// Whether no call of the program that gives memory up is under way.
    pub(crate) fn holds_off(&self) -> bool {
        self.holds_off
    }
}

impl Drop for EvictorGuard<'_> {
    fn drop(&mut self) {
        if self.holds_off {
            self.inside.lock.let_on();
        }
    }
}

impl Drop for GivingUpGuard<'_> {
    fn drop(&mut self) {
        if let GivingUpGuard::Counted(lock) = self {
            // In a child that was forked within the call it was counted out already.
            let one_less = |count: u32| count.checked_sub(1);
            let _ = lock.giving_up.fetch_update(SeqCst, SeqCst, one_less);
        }
    }
}

impl Drop for MappingGuard<'_> {
    fn drop(&mut self) {
        let MappingLock {
            inside, waiting, ..
        } = self.lock;
        // It may have been taken away, or forgotten.
        let left = self.thread != 0
            && inside
                .compare_exchange(self.thread, 0, SeqCst, SeqCst)
                .is_ok();
        if left && waiting.load(SeqCst) > 0 {
            futex_wake(inside, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_inside_at_a_time_and_a_call_within_a_call_ends_nothing() {
        let lock = MappingLock::new(true);
        let counted = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let _inside = lock.enter_call();
                        drop(lock.enter_call());
                        // In two steps, between which another would be seen.
                        let before = counted.load(SeqCst);
                        counted.store(before + 1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(counted.load(SeqCst), 40_000);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let lock = MappingLock::new(true);
        let other = std::thread::scope(|scope| scope.spawn(|| lock.enter_call()).join());
        let other = other.unwrap();
        assert!(lock.enter_evictor(false).is_none(), "a call is under way");
        let call = lock.enter_call();
        drop(other);
        std::thread::scope(|scope| {
            let evictor = scope.spawn(|| lock.enter_evictor(false).is_none());
            assert!(evictor.join().unwrap(), "the call is taken to be another's");
        });
        drop(call);
        assert!(lock.enter_evictor(false).is_some());
    }

    #[test]
    fn calls_that_give_memory_up_are_beside_each_other_and_not_beside_the_evictor() {
        let lock = MappingLock::new(true);
        let calls = [lock.enter_giving_up(), lock.enter_giving_up()];
        assert!(!lock.enter_evictor(true).unwrap().holds_off());
        assert!(!lock.enter_evictor(false).unwrap().holds_off());
        drop(calls);
        let evictor = lock.enter_evictor(true).unwrap();
        assert!(evictor.holds_off());
        let is_in = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _call = lock.enter_giving_up();
                is_in.store(1, SeqCst);
            });
            std::thread::sleep(3 * HELD_OFF);
            assert_eq!(is_in.load(SeqCst), 0);
            drop(evictor);
        });
        assert_eq!(is_in.load(SeqCst), 1);
        assert!(lock.enter_evictor(true).unwrap().holds_off());
    }
}
