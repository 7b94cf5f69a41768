//! What writers tell of their first writes: where they run, and what opening a page costs them.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pagetide_pager::placement::FaultProcessors;

/// What writers tell of their first writes.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    pub processors: FaultProcessors,
    /// Whether the sweep, or whoever protects memory, shares the writer's processor.
    pub shared: AtomicBool,
    /// What opening a page takes of late, in nanoseconds, while it is not.
    pub open_ns: AtomicU64,
}

impl Writers {
    /// The calling thread serves a fault of its own.
    pub fn note(&self) {
        self.processors.note();
    }

    /// Opening a page took `ns`. While a processor is shared there is nobody to interrupt, and that
    /// tells nothing.
    pub fn note_opening(&self, ns: u64) {
        if !self.shared.load(Relaxed) {
            let before = self.open_ns.load(Relaxed);
            self.open_ns.store((7 * before + ns) / 8, Relaxed);
        }
    }
}
