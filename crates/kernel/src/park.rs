//! Holding all other threads of this process still, for a moment: each is sent a signal whose
//! handler waits until it is let go.
//!
//! A parked thread is between two instructions of its own, or inside a system call that the signal
//! interrupted; it writes nothing until released. Blocking calls that the kernel does not restart
//! after a signal (`poll`, `epoll_wait`, `nanosleep`, `select`) return `EINTR` then, as after any
//! signal.
//!
//! A thread that blocks the signal is let run: it may write until it runs into a protection that
//! nobody takes off meanwhile. Who needs one instant has to see to that.
//!
//! While threads are parked nothing may be allocated: one of them may hold the allocator's lock.
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RawDir, openat};
use rustix::io::Errno;

use crate::procfs::status::Status;
use crate::sync::{Mutex, MutexGuard, futex_wait, futex_wake, now_ns};

/// Threads that can be parked, and threads that can be exempt.
pub const THREADS_MAX: usize = 4096;

/// Odd while threads are to stay parked.
static HOLD: AtomicU32 = AtomicU32::new(0);
static PARKED: [AtomicI32; THREADS_MAX] = [const { AtomicI32::new(0) }; THREADS_MAX];
static PARKED_COUNT: AtomicU32 = AtomicU32::new(0);
/// Threads still in the handler; the next parking waits for them to leave.
static INSIDE: AtomicU32 = AtomicU32::new(0);
static EXEMPT: [AtomicI32; THREADS_MAX] = [const { AtomicI32::new(0) }; THREADS_MAX];
/// Entries of [`EXEMPT`] from here on were never used.
static EXEMPT_HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
/// The signal, once chosen.
static SIGNAL: Mutex<Option<i32>> = Mutex::new(None);

/// Why the threads could not be parked; none is parked any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParkError {
    /// A thread did not stop in time.
    #[error(
        "thread {thread} of this process did not stop within {after:?} at signal {signal}: it \
         waits in the kernel; be more patient, or hold the writers by a closure of your own"
    )]
    Stubborn {
        /// Its ID.
        thread: i32,
        /// The signal it was sent.
        signal: i32,
        /// How long it was waited for.
        after: Duration,
    },
    /// More threads than can be parked.
    #[error(
        "more than {THREADS_MAX} threads cannot be parked; hold the writers by a closure of your \
         own"
    )]
    TooMany,
    /// Every real-time signal has a handler.
    #[error(
        "no real-time signal is free to park threads with; hold the writers by a closure of your \
         own"
    )]
    NoSignal,
    /// A system call failed.
    #[error("the threads of this process cannot be listed or signalled: {0}")]
    System(#[from] Errno),
}

/// While this lives, all other threads of the process hold still that are not exempt and do not
/// block the signal.
#[derive(Debug)]
#[must_use = "the threads are released when this is dropped"]
pub struct Parked {
    _one_at_a_time: MutexGuard<'static, Option<i32>>,
}

/// A thread will not be parked: it never writes to memory that someone holds others still for. The
/// exemption ends with the guard.
#[derive(Debug)]
pub struct Exemption(usize);

impl Exemption {
    /// Exempts the calling thread. `None` when [`THREADS_MAX`] are exempt.
    pub fn current_thread() -> Option<Exemption> {
        let thread = thread_id();
        let free = |entry: &AtomicI32| entry.compare_exchange(0, thread, SeqCst, SeqCst).is_ok();
        let index = EXEMPT.iter().position(free)?;
        EXEMPT_HIGH_WATER.fetch_max(index + 1, SeqCst);
        Some(Exemption(index))
    }
}

impl Drop for Exemption {
    fn drop(&mut self) {
        EXEMPT[self.0].store(0, SeqCst);
    }
}

fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

extern "C" fn handler(_: i32) {
    INSIDE.fetch_add(1, SeqCst);
    let hold = HOLD.load(SeqCst);
    if hold % 2 == 1 {
        let index = PARKED_COUNT.fetch_add(1, SeqCst) as usize;
        if let Some(entry) = PARKED.get(index) {
            entry.store(thread_id(), SeqCst);
        }
        futex_wake(&PARKED_COUNT, 1);
        while HOLD.load(SeqCst) == hold {
            futex_wait(&HOLD, hold, None);
        }
    }
    INSIDE.fetch_sub(1, SeqCst);
}

/// The highest real-time signal without a handler gets ours.
fn choose_signal() -> Result<i32, ParkError> {
    for signal in (libc::SIGRTMIN() + 1..=libc::SIGRTMAX()).rev() {
        // SAFETY: a zeroed sigaction is valid to be filled in; the handler is async-signal-safe.
        // SA_RESTART lets most calls go on unharmed.
        unsafe {
            let mut current: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut current) != 0
                || current.sa_sigaction != libc::SIG_DFL
            {
                continue;
            }
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = handler as *const () as usize;
            ours.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigfillset(&mut ours.sa_mask);
            if libc::sigaction(signal, &ours, std::ptr::null_mut()) == 0 {
                return Ok(signal);
            }
        }
    }
    Err(ParkError::NoSignal)
}

/// Threads, as many as can be parked, in no memory of the allocator's.
struct Threads {
    ids: [i32; THREADS_MAX],
    count: usize,
}

impl Default for Threads {
    fn default() -> Threads {
        Threads {
            ids: [0; THREADS_MAX],
            count: 0,
        }
    }
}

impl Threads {
    /// False where there is no room.
    fn add(&mut self, thread: i32) -> bool {
        let Some(entry) = self.ids.get_mut(self.count) else {
            return false;
        };
        *entry = thread;
        self.count += 1;
        true
    }

    fn contains(&self, thread: i32) -> bool {
        self.ids[..self.count].contains(&thread)
    }
}

/// `/proc/self/task`. Nothing here allocates.
struct Tasks(OwnedFd);

impl Tasks {
    /// Calls `visit` with every thread of this process. Threads that start meanwhile may be missed.
    fn for_each(&self, mut visit: impl FnMut(i32)) -> Result<(), Errno> {
        rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Start(0))?;
        let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 4096];
        let mut entries = RawDir::new(self.0.as_fd(), &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let number = std::str::from_utf8(name)
                .ok()
                .and_then(|name| name.parse().ok());
            if let Some(thread) = number {
                visit(thread);
            }
        }
        Ok(())
    }

    /// Whether `thread` blocks `signal`; not where it has ended, or that cannot be read.
    fn blocks(&self, thread: i32, signal: i32) -> bool {
        let mut path = [0u8; 32];
        let mut room = &mut path[..];
        if write!(room, "{thread}/status").is_err() {
            return false;
        }
        let left = room.len();
        let path = &path[..path.len() - left];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(file) = openat(&self.0, path, flags, Mode::empty()) else {
            return false;
        };
        let mut text = [0u8; 4096];
        let read = rustix::io::read(file, &mut text).unwrap_or(0);
        // The first line has the thread's name, which need not be text.
        let lines = text[..read].split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| std::str::from_utf8(line).ok())
            .find_map(|line| Status(line).set("SigBlk"))
            .is_some_and(|set| set & 1 << (signal - 1) != 0)
    }
}

/// Stops all other threads of this process that are not exempt, within `patience`. Those that block
/// the signal run on.
pub fn park_others(patience: Duration) -> Result<Parked, ParkError> {
    let mut chosen = SIGNAL.lock();
    let signal = match *chosen {
        Some(signal) => signal,
        None => *chosen.insert(choose_signal()?),
    };
    let tasks = Tasks(openat(
        rustix::fs::CWD,
        c"/proc/self/task",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    // Asked before anybody stops: it takes a while for each.
    let mut blocking = Threads::default();
    tasks.for_each(|thread| {
        if tasks.blocks(thread, signal) {
            blocking.add(thread);
        }
    })?;
    while INSIDE.load(SeqCst) != 0 {
        std::thread::yield_now();
    }
    PARKED_COUNT.store(0, SeqCst);
    PARKED.iter().for_each(|entry| entry.store(0, SeqCst));
    HOLD.fetch_add(1, SeqCst);
    // From here on threads stop: no allocation. Dropping `parked` lets them go.
    let parked = Parked {
        _one_at_a_time: chosen,
    };
    stop_all(&tasks, signal, &blocking, patience)?;
    Ok(parked)
}

/// `blocking` blocked the signal just now.
fn stop_all(
    tasks: &Tasks,
    signal: i32,
    blocking: &Threads,
    patience: Duration,
) -> Result<(), ParkError> {
    let (own, process) = (
        thread_id(),
        rustix::process::getpid().as_raw_nonzero().get(),
    );
    let deadline = now_ns() + patience.as_nanos() as u64;
    let mut signalled = Threads::default();
    loop {
        let parked = (PARKED_COUNT.load(SeqCst) as usize).min(THREADS_MAX);
        let (mut awaited, mut failure) = (None, None);
        tasks.for_each(|thread| {
            let is = |list: &[AtomicI32]| list.iter().any(|entry| entry.load(SeqCst) == thread);
            if thread == own || is(&PARKED[..parked]) || is_exempt(thread) {
                return;
            }
            // Not sent to one that blocks it: signals would pile up there.
            let sent = signalled.contains(thread);
            if (sent || blocking.contains(thread)) && tasks.blocks(thread, signal) {
                return;
            }
            awaited = Some(thread);
            if sent {
                return;
            }
            if !signalled.add(thread) {
                failure = Some(ParkError::TooMany);
                return;
            }
            // SAFETY: tgkill(2) of a thread of our own; one that has just ended is not there any
            // more, which is as good.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let Some(thread) = awaited else {
            // A thread stopped may have made another that the list did not show yet; once nobody
            // runs, a list is complete. One that blocks the signal makes such as block it, too.
            let now_parked = (PARKED_COUNT.load(SeqCst) as usize).min(THREADS_MAX);
            if now_parked == parked {
                return Ok(());
            }
            continue;
        };
        if now_ns() > deadline {
            return Err(ParkError::Stubborn {
                thread,
                signal,
                after: patience,
            });
        }
        let seen = PARKED_COUNT.load(SeqCst);
        if seen as usize == parked {
            futex_wait(&PARKED_COUNT, seen, Some(Duration::from_micros(200)));
        }
    }
}

fn is_exempt(thread: i32) -> bool {
    let used = &EXEMPT[..EXEMPT_HIGH_WATER.load(SeqCst)];
    used.iter().any(|entry| entry.load(SeqCst) == thread)
}

impl Drop for Parked {
    fn drop(&mut self) {
        HOLD.fetch_add(1, SeqCst);
        futex_wake(&HOLD, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// Held by each test: parking is of the whole process, and one of them has a thread that does
    /// not stop.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Ends the threads however the test ends.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    #[test]
    fn parked_threads_write_nothing_and_go_on_after() {
        let _alone = ALONE.lock();
        static COUNTERS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
        let stop = AtomicBool::new(false);
        let sum = || -> u64 { COUNTERS.iter().map(|c| c.load(SeqCst)).sum() };
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            for counter in &COUNTERS {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        counter.fetch_add(1, SeqCst);
                    }
                });
            }
            while COUNTERS.iter().any(|c| c.load(SeqCst) == 0) {
                std::thread::yield_now();
            }
            for _ in 0..50 {
                // Other tests of this process start and end threads meanwhile.
                let parked = park_others(Duration::from_secs(20)).unwrap();
                let before = sum();
                for _ in 0..100 {
                    std::thread::yield_now();
                }
                let after = sum();
                drop(parked);
                assert_eq!(before, after);
                while sum() == after {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn a_thread_that_blocks_the_signal_runs_on_and_is_sent_none() {
        let _alone = ALONE.lock();
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let (done, pending) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _ends = Ends(&done);
            scope.spawn(|| {
                crate::thread::set_signal_mask(u64::MAX);
                while !done.load(SeqCst) {
                    COUNTER.fetch_add(1, SeqCst);
                }
                // SAFETY: a zeroed set is valid to be filled in.
                unsafe {
                    let mut set: libc::sigset_t = std::mem::zeroed();
                    libc::sigpending(&mut set);
                    let any = (1..=libc::SIGRTMAX()).any(|one| libc::sigismember(&set, one) == 1);
                    pending.store(any, SeqCst);
                }
            });
            while COUNTER.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..3 {
                let parked = park_others(Duration::from_secs(20)).unwrap();
                let before = COUNTER.load(SeqCst);
                while COUNTER.load(SeqCst) == before {
                    std::thread::yield_now();
                }
                drop(parked);
            }
        });
        assert!(
            !pending.load(SeqCst),
            "a signal waits in a thread that blocks all"
        );
    }

    /// One that waits in the kernel for the end of another task, as after `vfork`, hears no signal.
    #[test]
    fn a_thread_that_waits_in_the_kernel_is_named() {
        static STATE: AtomicU32 = AtomicU32::new(0);
        const WAITS: u32 = 1;
        const DONE: u32 = 2;
        extern "C" fn task(_: *mut libc::c_void) -> i32 {
            STATE.store(WAITS, SeqCst);
            while STATE.load(SeqCst) != DONE {
                futex_wait(&STATE, WAITS, None);
            }
            0
        }
        /// Ends the task however the test ends.
        struct Done;
        impl Drop for Done {
            fn drop(&mut self) {
                STATE.store(DONE, SeqCst);
                futex_wake(&STATE, 1);
            }
        }
        let _alone = ALONE.lock();
        let mut stack = vec![0u128; 1 << 12];
        let thread = AtomicI32::new(0);
        std::thread::scope(|scope| {
            let _done = Done;
            scope.spawn(|| {
                thread.store(thread_id(), SeqCst);
                let top = stack.as_mut_ptr_range().end.cast();
                let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                // SAFETY: the task has a stack of its own; this thread waits until it has ended.
                unsafe {
                    let child = libc::clone(task, top, flags, std::ptr::null_mut());
                    assert!(child > 0, "clone: {}", std::io::Error::last_os_error());
                    assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
                }
            });
            while STATE.load(SeqCst) != WAITS {
                std::thread::yield_now();
            }
            let result = park_others(Duration::from_millis(300));
            let expected = thread.load(SeqCst);
            assert!(
                matches!(result, Err(ParkError::Stubborn { thread, .. }) if thread == expected),
                "{result:?}"
            );
        });
    }
}
