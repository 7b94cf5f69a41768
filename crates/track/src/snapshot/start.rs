//! When a snapshot that was queued may begin to be swept.
//!
//! It is queued before the writers are held, and begins when they are let go. But who holds them
//! may write to the memory himself once it is armed; should there be no more room for old bytes
//! then, the sweep has to make some, and begins at once.
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pagetide_kernel::sync::Doorbell;

const WAITING: u64 = 0;
const ARMED: u64 = 1;
const GONE: u64 = 2;
const OFF: u64 = 3;

/// The state of the snapshot that was queued last.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Its number, times four, and its state.
    state: AtomicU64,
    /// Rung when it is decided.
    decided: Doorbell,
}

impl Start {
    /// A new one; its number. One at a time.
    pub fn queue(&self) -> u64 {
        let number = (self.state.load(SeqCst) >> 2) + 1;
        self.state.store(number << 2 | WAITING, SeqCst);
        number
    }

    /// All is protected.
    pub fn arm(&self) {
        let number = self.state.load(SeqCst) >> 2;
        self.step(number, WAITING, ARMED);
    }

    /// Lets it begin if it is armed.
    pub fn go_if_armed(&self) {
        let number = self.state.load(SeqCst) >> 2;
        if self.step(number, ARMED, GONE) {
            self.decided.ring();
        }
    }

    /// It will not be. Whether it has not begun.
    pub fn call_off(&self, number: u64) -> bool {
        let off = self.step(number, WAITING, OFF) || self.step(number, ARMED, OFF);
        self.decided.ring();
        off
    }

    /// Waits until `number` may begin, or is called off. Whether it may.
    pub fn wait(&self, number: u64) -> bool {
        loop {
            let seen = self.decided.look();
            let state = self.state.load(SeqCst);
            match state & 3 {
                // The next one is queued: this one was called off before.
                _ if state >> 2 != number => return false,
                GONE => return true,
                OFF => return false,
                _ => self.decided.wait(seen, None),
            }
        }
    }

    fn step(&self, number: u64, from: u64, to: u64) -> bool {
        let word = |state| number << 2 | state;
        let stepped = self
            .state
            .compare_exchange(word(from), word(to), SeqCst, SeqCst);
        stepped.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_begins_once_it_is_armed_and_never_after_it_was_called_off() {
        let start = Start::default();
        let first = start.queue();
        start.go_if_armed();
        assert!(start.call_off(first), "nothing was armed");
        assert!(!start.wait(first));
        let second = start.queue();
        start.arm();
        start.go_if_armed();
        assert!(start.wait(second) && !start.wait(first));
        assert!(!start.call_off(second), "it has begun");
        let third = start.queue();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| start.wait(third));
            start.arm();
            assert!(start.call_off(third));
            assert!(!waiter.join().unwrap());
        });
    }
}
