//! Who asks the pager's threads to hold still, and who does. What that takes is in
//! [`crate::hold_still`].
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// Who is asked to hold still, and who does.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// Holders that want the evictor to hold still.
    evictor_wanted: AtomicU32,
    /// The evictor is in a round.
    evicting: AtomicU32,
    /// It holds pages aside between its rounds.
    holding: AtomicBool,
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

    /// Said by the evictor, within a round or while it is to hold still.
    pub(crate) fn set_holding(&self, holding: bool) {
        self.holding.store(holding, SeqCst);
    }

    /// Whether the evictor is between rounds and holds nothing aside.
    pub(crate) fn is_evictor_still(&self) -> bool {
        // A round that ends leaves word of what it holds before.
        !self.is_evicting() && !self.holding.load(SeqCst)
    }

    /// One more wants the evictor to hold still, or one less.
    pub(crate) fn want_evictor(&self, still: bool) {
        match still {
            true => self.evictor_wanted.fetch_add(1, SeqCst),
            false => self.evictor_wanted.fetch_sub(1, SeqCst),
        };
    }

    /// The fault thread is to hold still, or no longer.
    pub(crate) fn want_fault_thread(&self, still: bool) {
        self.fault_thread_wanted.store(u32::from(still), SeqCst);
    }

    /// Whether the fault thread does.
    pub(crate) fn fault_thread_rests(&self) -> bool {
        self.fault_thread_rests.load(SeqCst) != 0
    }

    /// Said by the fault thread itself.
    pub(crate) fn set_fault_thread_rests(&self, rests: bool) {
        self.fault_thread_rests.store(u32::from(rests), SeqCst);
    }

    /// The fault thread is to be woken on somebody's behalf.
    pub(crate) fn ask_to_ring(&self) {
        self.ring_wanted.store(true, SeqCst);
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
        self.holding.store(false, SeqCst);
    }
}
