//! Making the pager's threads hold still.
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::pager::Pager;

/// Who is asked to hold still, and who does.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// Holders that want the evictor to hold still.
    evictor_wanted: AtomicU32,
    /// The evictor is in a round.
    evicting: AtomicU32,
    /// Someone wants the fault thread to hold still too (a fork), and whether it does.
    fault_thread_wanted: AtomicU32,
    fault_thread_rests: AtomicU32,
    /// Someone without the pager's descriptors wants the fault thread woken.
    ring_wanted: AtomicBool,
}

impl Pauses {
    /// Runs `round` of the evictor, unless it is to hold still.
    pub(crate) fn evict<R>(&self, round: impl FnOnce() -> R) -> Option<R> {
        if self.evictor_wanted.load(SeqCst) != 0 {
            return None;
        }
        // Said first, then asked again: who wants it to hold still sees the one or is seen here.
        self.evicting.store(1, SeqCst);
        let done = (self.evictor_wanted.load(SeqCst) == 0).then(round);
        self.evicting.store(0, SeqCst);
        done
    }

    /// Whether the evictor is in a round.
    pub(crate) fn is_evicting(&self) -> bool {
        self.evicting.load(SeqCst) != 0
    }

    /// Whether the fault thread is to hold still.
    pub(crate) fn fault_thread_is_wanted(&self) -> bool {
        self.fault_thread_wanted.load(SeqCst) != 0
    }

    /// Whether the fault thread was to be woken on somebody's behalf.
    pub(crate) fn take_ring(&self) -> bool {
        self.ring_wanted.swap(false, SeqCst)
    }

    /// In a forked child, whose copy was made while everything held still.
    pub(crate) fn reset_after_fork(&self) {
        let words = [
            &self.evictor_wanted,
            &self.evicting,
            &self.fault_thread_wanted,
            &self.fault_thread_rests,
        ];
        words.iter().for_each(|word| word.store(0, SeqCst));
    }
}

impl Pager {
    /// Makes the evictor hold still; on return it is between rounds and nothing is staged. Must be
    /// matched by [`Pager::resume_evictor`]. `meanwhile` is called while waiting.
    pub(crate) fn pause_evictor(&self, mut meanwhile: impl FnMut()) {
        self.pauses.evictor_wanted.fetch_add(1, SeqCst);
        self.budget.work.ring();
        while self.pauses.is_evicting() {
            meanwhile();
            std::thread::yield_now();
        }
    }

    /// Ends one [`Pager::pause_evictor`].
    pub(crate) fn resume_evictor(&self) {
        self.pauses.evictor_wanted.fetch_sub(1, SeqCst);
        self.budget.work.ring();
    }

    /// Makes evictor and fault thread hold still; on return nothing is staged, loading or half
    /// done. Matched by [`Pager::resume`]. Calls must not overlap. Faults meanwhile wait in the
    /// kernel, so the caller must not cause any.
    pub fn pause(&self) {
        self.pause_evictor(|| {});
        self.pauses.fault_thread_wanted.store(1, SeqCst);
        loop {
            let seen = self.budget.progress.look();
            if self.pauses.fault_thread_rests.load(SeqCst) != 0 {
                return;
            }
            self.ask_to_ring();
            let soon = Some(Duration::from_millis(1));
            self.budget.progress.wait(seen, soon);
        }
    }

    /// Ends [`Pager::pause`].
    pub fn resume(&self) {
        self.pauses.fault_thread_wanted.store(0, SeqCst);
        self.resume_evictor();
        while self.pauses.fault_thread_rests.load(SeqCst) != 0 {
            self.budget.work.ring();
            std::thread::yield_now();
        }
    }

    /// The fault thread rests until nobody wants it to hold still.
    pub(crate) fn rest_fault_thread(&self) {
        self.pauses.fault_thread_rests.store(1, SeqCst);
        self.budget.progress.ring();
        loop {
            let seen = self.budget.work.look();
            if !self.pauses.fault_thread_is_wanted() {
                break;
            }
            let soon = Some(Duration::from_millis(10));
            self.budget.work.wait(seen, soon);
        }
        self.pauses.fault_thread_rests.store(0, SeqCst);
    }

    /// Has the evictor ring the fault thread: for threads that do not share the pager's
    /// descriptors.
    pub fn ask_to_ring(&self) {
        self.pauses.ring_wanted.store(true, SeqCst);
        self.budget.work.ring();
    }
}
