//! Requests to the fault thread from other threads: attach memory, load pages, hold still.
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use pagetide_kernel::PageRange;
use pagetide_kernel::sync::{futex_wait, futex_wake};
use rustix::io::Errno;

use super::Pager;

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
        self.errno.store(
            result.err().map_or(0, Errno::raw_os_error),
            Ordering::Relaxed,
        );
        self.finished.store(1, Ordering::Release);
        futex_wake(&self.finished, i32::MAX as u32);
    }

    /// Waits for the outcome.
    pub fn wait(&self) -> Result<(), Errno> {
        while self.finished.load(Ordering::Acquire) == 0 {
            futex_wait(&self.finished, 0, None);
        }
        match self.errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

impl Pager {
    /// Leaves a request for the fault thread. The caller rings it ([`Pager::ring_fault_thread`]) if
    /// it shares its descriptors.
    pub fn post(&self, request: Request) {
        self.requests
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push(request);
    }

    /// Takes the oldest waiting requests; empty when there are none.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(
            &mut *self
                .requests
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        )
    }
}
