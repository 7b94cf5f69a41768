//! Layer: failures that pass are tried again, with a bound on how long that may take.

use crate::device::Device;
use crate::{Capabilities, ErrorKind, Page, Slot, StoreError, Usage};
use rustix::thread::{Timespec, nanosleep};
use std::time::{Duration, Instant};

/// The first wait; each further one is twice as long.
const WAIT_FIRST: Duration = Duration::from_millis(1);

/// For how long failures are tried again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    bound: Duration,
    /// The longest wait between two attempts.
    wait_max: Duration,
}

impl Patience {
    /// For what is on this machine: after about two seconds of failing it is not passing.
    pub(crate) const LOCAL: Patience = Patience {
        bound: Duration::from_secs(2),
        wait_max: Duration::from_secs(1),
    };

    /// For what is elsewhere and may be started again: `bound` in all, looking four times a second.
    #[cfg(feature = "remote")]
    pub(crate) fn remote(bound: Duration) -> Patience {
        Patience {
            bound,
            wait_max: Duration::from_millis(250),
        }
    }

    /// Makes `call`, and again while its failures pass.
    #[inline]
    pub(crate) fn patiently<T>(
        self,
        mut call: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match call() {
            Err(error) if error.kind == ErrorKind::Temporary => self.again(error, call),
            done => done,
        }
    }

    #[cold]
    fn again<T>(
        self,
        mut last: StoreError,
        mut call: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let mut wait = WAIT_FIRST;
        let mut attempts = 1;
        loop {
            let left = self.bound.saturating_sub(begun.elapsed());
            if left.is_zero() {
                last.kind = ErrorKind::Away;
                last.context = format!(
                    "{} ({attempts} attempts in {:.1} s)",
                    last.context,
                    begun.elapsed().as_secs_f64()
                );
                return Err(last);
            }
            sleep(wait.min(left));
            wait = (wait * 2).min(self.wait_max);
            attempts += 1;
            match call() {
                Err(error) if error.kind == ErrorKind::Temporary => last = error,
                done => return done,
            }
        }
    }
}

/// Tries temporary failures again.
pub(crate) struct Retry<D> {
    inner: D,
    patience: Patience,
}

impl<D: Device> Retry<D> {
    pub(crate) fn new(inner: D, patience: Patience) -> Retry<D> {
        Retry { inner, patience }
    }
}

/// Sleeps without libc. A signal may cut it short, which only makes the next attempt earlier.
pub(crate) fn sleep(wait: Duration) {
    let request = Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    let _ = nanosleep(&request);
}

impl<D: Device> Device for Retry<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        self.patience.patiently(|| self.inner.put(pages, slots))
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        self.patience.patiently(|| self.inner.get(slot, page))
    }

    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        self.patience
            .patiently(|| self.inner.get_many(slots, pages))
    }

    fn delete(&self, slots: &[Slot]) {
        self.inner.delete(slots);
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn hold_at_most(&self, shared_bytes: u64) {
        self.inner.hold_at_most(shared_bytes);
    }

    fn set_frozen(&self, frozen: bool) {
        self.inner.set_frozen(frozen);
    }

    fn server_cpu(&self) -> Option<u32> {
        self.inner.server_cpu()
    }

    fn descriptors(&self) -> Vec<i32> {
        self.inner.descriptors()
    }

    fn inherit(&self, fds: &[i32]) {
        self.inner.inherit(fds);
    }
}
