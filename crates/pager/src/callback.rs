//! A function that every thread of a pager is to call for itself once, because the kernel lets no
//! other thread do it for it.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What the threads of a pager are asked to call, and how often that was.
#[derive(Debug, Default)]
pub(crate) struct ThreadCallback {
    asked: AtomicU64,
    what: OnceLock<fn()>,
}

impl ThreadCallback {
    /// Calls what was asked for since `done`, which counts what the calling thread has done.
    pub(crate) fn run(&self, done: &mut u64) {
        let asked = self.asked.load(SeqCst);
        if asked != *done {
            *done = asked;
            if let Some(what) = self.what.get() {
                what();
            }
        }
    }

    /// Has each thread call `what`, the same function each time, once more.
    pub(crate) fn ask(&self, what: fn()) {
        self.what.get_or_init(|| what);
        self.asked.fetch_add(1, SeqCst);
    }
}
