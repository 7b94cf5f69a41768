//! An errand: something that every thread of a pager is to do for itself once, because the kernel
//! lets no other thread do it for it.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::Pager;

/// What the threads of a pager are asked to do, and how often that was.
#[derive(Debug, Default)]
pub struct Errand {
    asked: AtomicU64,
    what: OnceLock<fn()>,
}

impl Errand {
    /// Does what was asked for since `done`, which counts what the calling thread has done.
    pub(super) fn run(&self, done: &mut u64) {
        let asked = self.asked.load(SeqCst);
        if asked != *done {
            *done = asked;
            if let Some(what) = self.what.get() {
                what();
            }
        }
    }
}

impl Pager {
    /// Has the fault thread and the evictor call `what`, the same function each time, once more:
    /// each before it next serves a fault or evicts.
    pub fn send(&self, what: fn()) {
        self.errand.what.get_or_init(|| what);
        self.errand.asked.fetch_add(1, SeqCst);
        self.work.ring();
        self.ring_fault_thread();
    }
}
