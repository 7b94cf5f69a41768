//! Making the pager's threads hold still.
use std::time::Duration;

use crate::pager::Pager;

impl Pager {
    /// Makes the evictor hold still; on return it is between rounds and nothing is staged. Must be
    /// matched by [`Pager::resume_evictor`]. `meanwhile` is called while waiting.
    pub(crate) fn pause_evictor(&self, mut meanwhile: impl FnMut()) {
        self.pauses.want_evictor(true);
        self.budget.work.ring();
        while !self.pauses.is_evictor_still() {
            meanwhile();
            std::thread::yield_now();
        }
    }

    /// Ends one [`Pager::pause_evictor`].
    pub(crate) fn resume_evictor(&self) {
        self.pauses.want_evictor(false);
        self.budget.work.ring();
    }

    /// Makes evictor and fault thread hold still; on return nothing is staged, loading or half
    /// done. Matched by [`Pager::resume`]. Calls must not overlap. Faults meanwhile wait in the
    /// kernel, so the caller must not cause any.
    pub fn pause(&self) {
        self.pause_evictor(|| {});
        self.pauses.want_fault_thread(true);
        loop {
            let seen = self.budget.progress.look();
            if self.pauses.fault_thread_rests() {
                return;
            }
            self.ask_to_ring();
            let soon = Some(Duration::from_millis(1));
            self.budget.progress.wait(seen, soon);
        }
    }

    /// Ends [`Pager::pause`].
    pub fn resume(&self) {
        self.pauses.want_fault_thread(false);
        self.resume_evictor();
        while self.pauses.fault_thread_rests() {
            self.budget.work.ring();
            std::thread::yield_now();
        }
    }

    /// The fault thread rests until nobody wants it to hold still.
    pub(crate) fn rest_fault_thread(&self) {
        self.pauses.set_fault_thread_rests(true);
        self.budget.progress.ring();
        loop {
            let seen = self.budget.work.look();
            if !self.pauses.fault_thread_is_wanted() {
                break;
            }
            let soon = Some(Duration::from_millis(10));
            self.budget.work.wait(seen, soon);
        }
        self.pauses.set_fault_thread_rests(false);
    }

    /// Has the evictor ring the fault thread: for threads that do not share the pager's
    /// descriptors.
    pub fn ask_to_ring(&self) {
        self.pauses.ask_to_ring();
        self.budget.work.ring();
    }
}
