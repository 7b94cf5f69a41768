//! Requests to the pager's threads from others: attach memory, load pages, evict pages.
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use pagetide_kernel::PageRange;
use pagetide_kernel::sync::{LOOK_AGAIN, Mutex, futex_wait, futex_wake};
use rustix::io::Errno;

/// What the fault thread may be asked.
pub enum Request {
    /// Put the memory under the pager.
    Attach(PageRange, Arc<Completion>),
    /// Make all its pages present and take the memory out of the pager's hands.
    Detach(PageRange, Arc<Completion>),
    /// Make the pages resident: as far as the budget allows, or all of them (`must`).
    Load {
        /// The pages.
        range: PageRange,
        /// Wait for budget rather than stop.
        must: bool,
        /// Told when done.
        done: Arc<Completion>,
    },
}

/// A load request that the fault thread is at.
pub(crate) struct Load {
    /// What is not loaded yet.
    pub(crate) rest: PageRange,
    /// Waits for budget rather than stops.
    pub(crate) must: bool,
    pub(crate) done: Arc<Completion>,
}

/// What the evictor may be asked: to evict the pages of a range at once.
pub(crate) struct EvictNow {
    pub(crate) range: PageRange,
    pub(crate) done: Arc<Completion>,
}

/// The outcome of a request, waited for by its maker.
#[derive(Debug, Default)]
pub struct Completion {
    finished: AtomicU32,
    errno: AtomicI32,
}

impl Completion {
    /// Not yet finished.
    pub fn new() -> Arc<Completion> {
        Arc::default()
    }

    /// Finishes it and wakes the waiters.
    pub fn finish(&self, result: Result<(), Errno>) {
        let errno = result.err().map_or(0, Errno::raw_os_error);
        self.errno.store(errno, Ordering::Relaxed);
        self.finished.store(1, Ordering::Release);
        futex_wake(&self.finished, i32::MAX as u32);
    }

    /// Waits for the outcome.
    pub fn wait(&self) -> Result<(), Errno> {
        while self.finished.load(Ordering::Acquire) == 0 {
            futex_wait(&self.finished, 0, Some(LOOK_AGAIN));
        }
        match self.errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

/// A list that any thread adds to, and one takes from as a whole.
pub(crate) struct Inbox<T>(Mutex<Vec<T>>);

impl<T> Default for Inbox<T> {
    fn default() -> Inbox<T> {
        Inbox(Mutex::new(Vec::with_capacity(64)))
    }
}

impl<T> Inbox<T> {
    /// Adds `item`. The caller wakes who takes it.
    pub(crate) fn post(&self, item: T) {
        self.0.lock().push(item);
    }

    /// In a forked child: what was asked for is the parent's, and a thread that was just asking is
    /// not here.
    pub(crate) fn reset_after_fork(&self) {
        // SAFETY: no guard lives in the child, and what may be half changed is replaced unseen.
        unsafe { self.0.open_in_child() };
        std::mem::forget(std::mem::replace(
            &mut *self.0.lock(),
            Vec::with_capacity(64),
        ));
    }

    /// Takes everything, oldest first.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock())
    }
}
