//! Where calls of the program that give memory up wait when the pager cannot work for them.
//!
//! From the moment that a thread unmaps, moves or empties memory until it has seen that its event
//! was read, the kernel refuses to move and to install pages. Two threads that do nothing else
//! leave no moment between; faults and evictions would wait for as long as they go on.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use pagetide_kernel::sync::{futex_wait, now_ns};

/// How long one of the pager's threads must have been kept from working for the throttle to close.
const KEPT_NS: u64 = 2_000_000;
/// How long it stays closed then, for the pager to work.
const CLOSED_NS: u64 = 5_000_000;
/// Longest wait of one call, however often it closes.
const WAIT_MAX_NS: u64 = 20_000_000;

/// Open, as a rule.
#[derive(Debug, Default)]
pub struct SyscallThrottle {
    closed_until_ns: AtomicU64,
    /// What waits, waits here; it is not woken.
    never: AtomicU32,
}

/// Since when one of the pager's threads has been kept from working, in nanoseconds of
/// CLOCK_MONOTONIC; none when it has not been. It forgets when it has worked.
pub type KeptSince = Option<u64>;

impl SyscallThrottle {
    /// An event was under way again. Closes for a while if that has gone on for long.
    pub fn kept(&self, since: &mut KeptSince) {
        let now = now_ns();
        if now - *since.get_or_insert(now) > KEPT_NS {
            self.closed_until_ns
                .store(now + CLOSED_NS, Ordering::Relaxed);
        }
    }

    /// Before a call that raises an event. Waits while it is closed, not for long: that is for the
    /// program to get on, nothing depends on it. Async-signal-safe.
    pub fn pass(&self) {
        let closed_until = || self.closed_until_ns.load(Ordering::Relaxed);
        if closed_until() == 0 {
            return;
        }
        let began = now_ns();
        loop {
            let now = now_ns();
            let left = closed_until().min(began + WAIT_MAX_NS).saturating_sub(now);
            if left == 0 {
                break;
            }
            futex_wait(&self.never, 0, Some(Duration::from_nanos(left)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_for_who_is_kept_for_long() {
        let throttle = SyscallThrottle::default();
        let is_closed = || throttle.closed_until_ns.load(Ordering::Relaxed) > now_ns();
        let mut since = None;
        throttle.kept(&mut since);
        assert!(since.is_some() && !is_closed(), "kept for no time");
        since = Some(now_ns() - KEPT_NS - 1);
        throttle.kept(&mut since);
        let until = throttle.closed_until_ns.load(Ordering::Relaxed);
        throttle.pass();
        assert!(now_ns() >= until, "passed while it was closed");
    }

    #[test]
    fn nobody_waits_there_forever() {
        let throttle = SyscallThrottle::default();
        throttle.closed_until_ns.store(u64::MAX, Ordering::Relaxed);
        throttle.pass();
    }
}
