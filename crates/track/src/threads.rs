//! Threads of Pagetide's own, and how they wait and are ended.
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use pagetide_kernel::park::Exemption;
use pagetide_kernel::thread::{C_LIBRARY_SIGNALS, set_signal_mask};
use pagetide_kernel::uffd::Uffd;
use pagetide_kernel::wait::wait_for;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::error::{TrackError, system};
use pagetide_pager::requests::Completion;

/// All but those that report the thread's own mistakes, and those that the C library waits for.
const BLOCKED: u64 = !(1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1) | C_LIBRARY_SIGNALS);

/// Starts a thread that runs no signal handler of the program's and is never parked, not even while
/// it starts: whoever parks threads waits for what this one does.
pub(crate) fn start(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, TrackError> {
    // Inherited, so that there is no moment without.
    let mask = set_signal_mask(BLOCKED);
    let ready = Completion::new();
    let told = Arc::clone(&ready);
    let started = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let _never_parked = Exemption::current_thread();
            told.finish(Ok(()));
            body();
        });
    set_signal_mask(mask);
    let thread = started.map_err(|_| TrackError::System("starting a thread", Errno::AGAIN))?;
    let _ = ready.wait();
    Ok(thread)
}

/// Ends a thread that waits for a userfaultfd's messages.
pub(crate) struct Ending {
    closing: AtomicBool,
    bell: OwnedFd,
}

impl Ending {
    pub fn new() -> Result<Ending, TrackError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Ending {
            closing: AtomicBool::new(false),
            bell: bell.map_err(system("eventfd"))?,
        })
    }

    /// Whether the thread is to end.
    pub fn has_come(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// Asks it to.
    pub fn come(&self) {
        self.closing.store(true, SeqCst);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Waits a moment for a message, or the end.
    pub fn wait_for_message(&self, uffd: &Uffd) {
        let mut fds = [
            PollFd::new(uffd, PollFlags::IN),
            PollFd::new(&self.bell, PollFlags::IN),
        ];
        wait_for(&mut fds, None, Duration::from_millis(100));
    }
}

/// Whether somebody panicked meanwhile or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

/// A value that somebody is waited for to give, once.
pub(crate) struct Promise<T> {
    value: Mutex<Option<T>>,
    given: Condvar,
}

impl<T> Default for Promise<T> {
    fn default() -> Promise<T> {
        Promise {
            value: Mutex::new(None),
            given: Condvar::new(),
        }
    }
}

impl<T> Promise<T> {
    /// Gives what `value` returns, unless it was given before. Others who give wait meanwhile.
    pub fn give_with(&self, value: impl FnOnce() -> T) {
        lock(&self.value).get_or_insert_with(value);
        self.given.notify_all();
    }

    /// The value, if it was given.
    pub fn look(&self) -> MutexGuard<'_, Option<T>> {
        lock(&self.value)
    }

    /// Waits until it was given.
    pub fn wait(&self) -> MutexGuard<'_, Option<T>> {
        let waited = self.given.wait_while(self.look(), |value| value.is_none());
        waited.unwrap_or_else(|held| held.into_inner())
    }

    /// Waits for it, and takes it: the only one who does.
    pub fn take(&self) -> T {
        self.wait().take().expect("nobody else takes it")
    }
}
