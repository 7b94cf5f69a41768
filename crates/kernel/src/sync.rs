//! Waiting and waking between threads that may not use thread-local state: futexes and an event
//! counter.
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Sleeps while `word` holds `expected`, at most `timeout`; may return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(timespec);
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, timeout.as_ref());
}

/// Wakes up to `count` threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A doorbell: any number of ringers, any number of waiters; a ring between looking and waiting is
/// not missed. Ringing where nobody waits costs no system call.
#[derive(Debug, Default)]
pub struct Doorbell {
    rings: AtomicU32,
    waiters: AtomicU32,
}

impl Doorbell {
    /// A doorbell nobody has rung.
    pub const fn new() -> Doorbell {
        Doorbell {
            rings: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// The count of rings, to be taken before looking for work.
    pub fn look(&self) -> u32 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Rings, waking all waiters.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            futex_wake(&self.rings, i32::MAX as u32);
        }
    }

    /// Waits until it is rung after `seen` was taken, at most `timeout`; may return early.
    pub fn wait(&self, seen: u32, timeout: Option<Duration>) {
        // Counted before the kernel compares: a ringer either sees the waiter, or the kernel sees
        // the ring.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        futex_wait(&self.rings, seen, timeout);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// In a forked child: those who waited do not exist here.
    pub fn forget_waiters(&self) {
        self.waiters.store(0, Ordering::SeqCst);
    }
}

/// A mutual exclusion lock for sections of microseconds: spins briefly, then sleeps. Unlike
/// `std::sync::Mutex` it has no poisoning, hence no thread-local look-up, and its state after a
/// fork is known.
#[derive(Debug, Default)]
pub struct Lock(AtomicU32);

/// Holds a [`Lock`]; released on drop.
#[derive(Debug)]
pub struct LockGuard<'a>(&'a Lock);

impl Lock {
    /// An open lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// Takes the lock.
    pub fn lock(&self) -> LockGuard<'_> {
        // 0 open, 1 held, 2 held and someone may sleep (Drepper, "Futexes are tricky", mutex 2).
        if self
            .0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_contended();
        }
        LockGuard(self)
    }

    /// In a forked child: open, whoever held it at the fork is not here.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Takes the lock if it is open.
    pub fn try_lock(&self) -> Option<LockGuard<'_>> {
        self.0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            // Made only when the lock was taken: a guard that is dropped opens it.
            .then(|| LockGuard(self))
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..100 {
            std::hint::spin_loop();
            if self
                .0
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
        while self.0.swap(2, Ordering::Acquire) != 0 {
            futex_wait(&self.0, 2, None);
        }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Ordering::Release) == 2 {
            futex_wake(&self.0.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_not_taken_is_not_opened() {
        let lock = Lock::new();
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "a failed try opened the lock");
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn threads_that_try_and_threads_that_wait_exclude_each_other() {
        let (lock, inside) = (Lock::new(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for waits in [true, false, true, false] {
                let (lock, inside) = (&lock, &inside);
                scope.spawn(move || {
                    let mut times = 0;
                    while times < 20_000 {
                        let guard = match waits {
                            true => Some(lock.lock()),
                            false => lock.try_lock(),
                        };
                        if let Some(_held) = guard {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            times += 1;
                        }
                    }
                });
            }
        });
    }
}
