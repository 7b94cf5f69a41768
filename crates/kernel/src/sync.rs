//! Waiting and waking between threads that may not use thread-local state: a mutex and a bare lock,
//! a doorbell, and the futexes under them.
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// For system calls that wait.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Who sleeps for a lock or an answer looks again after so long, woken or not: a wake that was lost
/// costs a moment then, and not the program.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Sleeps while `word` holds `expected`, at most `timeout`; may return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(timespec);
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, timeout.as_ref());
}

/// Wakes up to `count` threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}

/// As [`futex_wait`], for a word in memory that processes share.
pub fn futex_wait_shared(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = timespec(timeout);
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
}

/// As [`futex_wake`], for a word in memory that processes share.
pub fn futex_wake_shared(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of processor time that the calling thread has used.
pub fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of processor time that all threads of this process have used.
pub fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
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

/// A value that one thread at a time may use: a [`Lock`] that owns what it guards. It can be taken
/// where the C library may not be called, and has no poisoning: a thread that panics in it leaves
/// the value as it is.
///
/// A child forked while another thread holds it finds it held, by nobody: take it before the fork
/// and drop the guard on both sides, or see [`Mutex::open_in_child`].
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time reach the value, so sharing the mutex hands the value
// from thread to thread, as sending it does.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Holds a [`Mutex`] and stands for its value; released on drop.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    _held: LockGuard<'a>,
    /// Sent to and shared with other threads where a `&mut T` may be.
    _exclusive: PhantomData<&'a mut T>,
}

impl<T> Mutex<T> {
    /// An open mutex around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            lock: Lock::new(),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes it, waiting while another thread has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.lock.lock())
    }

    /// Takes it if it is open.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.lock.try_lock().map(|held| self.guard(held))
    }

    /// The value of a mutex that nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// In a forked child: open, whoever held it at the fork is not here.
    ///
    /// # Safety
    /// No guard of it is alive in this process, and the value is sound though its holder may have
    /// been in the middle of changing it.
    pub unsafe fn open_in_child(&self) {
        self.lock.reset();
    }

    fn guard<'a>(&'a self, held: LockGuard<'a>) -> MutexGuard<'a, T> {
        MutexGuard {
            mutex: self,
            _held: held,
            _exclusive: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held for as long as the guard lives, and it gives out exclusive
        // references through `&mut self` alone.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => f.debug_tuple("Mutex").field(&&*value).finish(),
            None => f.write_str("Mutex(held)"),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
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
            futex_wait(&self.0, 2, Some(LOOK_AGAIN));
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
        const TIMES: usize = 2_000;
        static COUNT: Mutex<(usize, bool)> = Mutex::new((0, false));
        std::thread::scope(|scope| {
            for waits in [true, false, true, false] {
                scope.spawn(move || {
                    let mut times = 0;
                    while times < TIMES {
                        let guard = match waits {
                            true => Some(COUNT.lock()),
                            false => COUNT.try_lock(),
                        };
                        let Some(mut held) = guard else {
                            std::thread::yield_now();
                            continue;
                        };
                        let (before, inside) = *held;
                        assert!(!inside);
                        *held = (before, true);
                        std::hint::spin_loop();
                        *held = (before + 1, false);
                        times += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), (4 * TIMES, false));
    }

    #[test]
    fn a_thread_that_panics_leaves_the_mutex_open_and_the_value_as_it_is() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                *mutex.lock() = 2;
                let _held = mutex.lock();
                panic!("expected by the test");
            });
            inside.join()
        });
        assert!(panicked.is_err());
        assert_eq!(format!("{mutex:?}"), "Mutex(2)");
    }

    #[test]
    fn a_forked_child_opens_what_another_thread_held() {
        let mutex = Mutex::new(7);
        let held = mutex.lock();
        // SAFETY: the child touches its copy of the mutex and ends itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let was_held = mutex.try_lock().is_none();
            // SAFETY: a number is sound at any time, and the child never uses its copy of `held`.
            unsafe { mutex.open_in_child() };
            let is_open = mutex.try_lock().is_some_and(|value| *value == 7);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if was_held && is_open { 0 } else { 1 }) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(held);
    }
}
