//! Locks of this crate. A poisoned lock is taken all the same: every critical section leaves its
//! data usable at each step, and a store that refused to work after a panic elsewhere would lose
//! pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, poisoned or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Things that are costly to make, kept for reuse.
pub(crate) struct Pool<T> {
    kept: Mutex<Vec<T>>,
    max: usize,
}

impl<T> Pool<T> {
    /// A pool that keeps at most `max`: more threads than this at once make their own.
    pub(crate) fn new(max: usize) -> Pool<T> {
        Pool {
            kept: Mutex::new(Vec::with_capacity(max)),
            max,
        }
    }

    pub(crate) fn take(&self) -> Option<T> {
        lock(&self.kept).pop()
    }

    pub(crate) fn give_back(&self, one: T) {
        let mut kept = lock(&self.kept);
        if kept.len() < self.max {
            kept.push(one);
        }
    }
}
