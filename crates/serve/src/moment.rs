//! Telling all threads that a moment has come: the end, say.
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A descriptor that is readable from the moment on.
#[derive(Debug)]
pub struct Moment {
    come: AtomicBool,
    bell: OwnedFd,
}

impl Moment {
    /// It has not come yet.
    ///
    /// # Errors
    /// No descriptor is to be had.
    pub fn new() -> Result<Moment, Errno> {
        Ok(Moment {
            come: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// It comes now. May be called in a signal handler.
    pub fn come(&self) {
        self.come.store(true, SeqCst);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Whether it has.
    pub fn has_come(&self) -> bool {
        self.come.load(SeqCst)
    }
}

impl AsFd for Moment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
