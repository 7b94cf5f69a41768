//! Locks of this crate. A poisoned lock is taken all the same: every critical section leaves its
//! data usable at each step, and a store that refused to work after a panic elsewhere would lose
//! pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, poisoned or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
