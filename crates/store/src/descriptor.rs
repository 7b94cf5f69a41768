//! The descriptor of a store's file, which may be replaced by another one in a forked child.
//!
//! A store lives inside a program that knows nothing of it and may close descriptors wholesale,
//! then get the same numbers for its own files. So before anything that changes the file, the
//! descriptor is checked to still be the store's.
//!
//! # Safety
//!
//! The invariant is that `raw` is a descriptor number this struct owns in the process `owner`: it
//! came from an `OwnedFd` given up to it, or from [`Descriptor::replace`], whose caller hands over
//! the number. If the program closes it behind our back, uses of the number fail or reach another
//! file; the checks keep that from destroying anything, and nothing that Rust's memory safety rests
//! on depends on it.
#![allow(unsafe_code)] // borrowing and closing a descriptor by number

use crate::{ErrorKind, StoreError};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::fstat;
use rustix::process::getpid;
use std::sync::atomic::{
    AtomicI32,
    Ordering::{Acquire, Relaxed, Release},
};

/// An open file, by number.
pub(crate) struct Descriptor {
    raw: AtomicI32,
    /// The process whose descriptor it is: a forked child has the number in its memory, but it may
    /// mean anything there.
    owner: AtomicI32,
    device: u64,
    inode: u64,
}

impl Descriptor {
    pub(crate) fn new(file: OwnedFd) -> Result<Descriptor, StoreError> {
        let stat = fstat(&file).map_err(|error| {
            StoreError::new(ErrorKind::Config, "look at the store's file").with_cause(error)
        })?;
        Ok(Descriptor {
            raw: AtomicI32::new(file.into_raw_fd()),
            owner: AtomicI32::new(getpid().as_raw_nonzero().get()),
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    /// The number.
    pub(crate) fn raw(&self) -> i32 {
        self.raw.load(Acquire)
    }

    /// For calls that only read: what another file would give is caught by the checksum.
    #[inline]
    pub(crate) fn read_only(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is not -1 (`new` has it from an open file, `replace` refuses negative
        // ones) and is owned by `self`, which outlives the borrow (module invariant).
        unsafe { BorrowedFd::borrow_raw(self.raw()) }
    }

    /// For calls that change the file.
    pub(crate) fn writable(&self) -> Result<BorrowedFd<'_>, StoreError> {
        let fd = self.read_only();
        match fstat(fd) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == (self.device, self.inode) => Ok(fd),
            _ => Err(StoreError::new(
                ErrorKind::Io,
                format!(
                    "descriptor {} is no longer the store's file: the program closed it",
                    self.raw()
                ),
            )),
        }
    }

    /// In a forked child: goes on with `raw`, which from now on belongs to this struct. The old
    /// number is left alone.
    pub(crate) fn replace(&self, raw: i32) {
        if raw >= 0 {
            self.raw.store(raw, Release);
            self.owner.store(getpid().as_raw_nonzero().get(), Relaxed);
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.owner.load(Relaxed) == getpid().as_raw_nonzero().get() && self.writable().is_ok() {
            // SAFETY: this process owns the number, it still is the store's file, and nobody uses
            // it after this.
            drop(unsafe { OwnedFd::from_raw_fd(self.raw()) });
        }
    }
}
