//! Keeps the program from putting other memory where the evictor is emptying a page.
//!
//! The kernel empties an address, whatever is there by then. Between the evictor's claim of a page and that, the program might unmap it, or move or map
//! something else over it, and that would lose its bytes. So emptying a page in place and the program's calls that change what is where exclude each
//! other. Neither waits for long: the evictor leaves the page where it is, and a call that finds no end of waiting goes on.
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use pagetide_kernel::sync::{futex_wait, futex_wake, now_ns};

/// Longest wait of either side.
const WAIT_MAX_NS: u64 = 20_000_000;
/// How often the evictor looks whether the calls under way are over.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// Who is in the way of whom.
#[derive(Debug, Default)]
pub struct Emptying {
    /// 1 while the evictor empties a page, or waits to.
    busy: AtomicU32,
    /// Calls of the program under way.
    calls: AtomicU32,
    never: AtomicU32,
}

/// A call of the program under way, until it is dropped.
#[derive(Debug)]
pub struct Call<'e>(&'e Emptying);

/// No call of the program is under way, until it is dropped.
#[derive(Debug)]
pub struct Alone<'e>(&'e Emptying);

impl Emptying {
    /// Before a call of the program that unmaps or moves memory, or maps some over other. Async-signal-safe.
    pub fn enter_call(&self) -> Call<'_> {
        let mut until_ns = None;
        loop {
            self.calls.fetch_add(1, SeqCst);
            if self.busy.load(SeqCst) == 0 {
                return Call(self);
            }
            let now = now_ns();
            if now > *until_ns.get_or_insert(now + WAIT_MAX_NS) {
                return Call(self);
            }
            self.calls.fetch_sub(1, SeqCst);
            futex_wait(&self.busy, 1, Some(Duration::from_nanos(WAIT_MAX_NS)));
        }
    }

    /// In the evictor, before it claims a page to empty it: waits until no call is under way; `None` if that takes too long.
    pub fn begin(&self) -> Option<Alone<'_>> {
        self.busy.store(1, SeqCst);
        let alone = Alone(self);
        let until_ns = now_ns() + WAIT_MAX_NS;
        while self.calls.load(SeqCst) > 0 {
            if now_ns() > until_ns {
                return None;
            }
            futex_wait(&self.never, 0, Some(LOOK_AGAIN));
        }
        Some(alone)
    }

    /// In a forked child: whoever was in a call is in the parent.
    pub fn forget(&self) {
        self.calls.store(0, SeqCst);
        self.busy.store(0, SeqCst);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // A child may have forgotten it.
        let less = |calls: u32| calls.checked_sub(1);
        let _ = self.0.calls.fetch_update(SeqCst, SeqCst, less);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.busy.store(0, SeqCst);
        futex_wake(&self.0.busy, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_the_evictor_exclude_each_other_and_neither_waits_for_ever() {
        let emptying = Emptying::default();
        let call = emptying.enter_call();
        assert!(emptying.begin().is_none(), "a call is under way");
        drop(call);
        let alone = emptying.begin().expect("nobody is in a call");
        std::thread::scope(|scope| {
            let call = scope.spawn(|| emptying.enter_call());
            while emptying.calls.load(SeqCst) == 0 && !call.is_finished() {
                std::thread::yield_now();
            }
            drop(alone);
            drop(call.join().unwrap());
        });
        let _alone = emptying.begin().expect("the call is over");
        // As for one made by the evictor itself.
        drop(emptying.enter_call());
    }
}
