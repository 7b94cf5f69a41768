//! Counters a device keeps about what it was given.

use crate::{PAGE_SIZE, Usage};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sums over all successful puts.
#[derive(Default)]
pub(crate) struct Meter {
    pages: AtomicU64,
    stored_bytes: AtomicU64,
    same_filled: AtomicU64,
}

/// What one put came to.
#[derive(Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) pages: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) same_filled: u64,
}

impl Meter {
    pub(crate) fn add(&self, tally: Tally) {
        self.pages.fetch_add(tally.pages, Relaxed);
        self.stored_bytes.fetch_add(tally.stored_bytes, Relaxed);
        self.same_filled.fetch_add(tally.same_filled, Relaxed);
    }

    /// The usage of a device that holds `pages` pages in `bytes` bytes, `memory_bytes` of them in
    /// this process's memory.
    pub(crate) fn usage(&self, pages: u64, bytes: u64, memory_bytes: u64) -> Usage {
        Usage {
            pages,
            bytes,
            bytes_max: 0,
            memory_bytes,
            shared_bytes: 0,
            put_bytes: self.pages.load(Relaxed) * PAGE_SIZE as u64,
            put_bytes_stored: self.stored_bytes.load(Relaxed),
            same_filled: self.same_filled.load(Relaxed),
        }
    }
}
