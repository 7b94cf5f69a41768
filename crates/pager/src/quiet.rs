//! Making the pager's threads hold still.
use std::sync::atomic::Ordering;

use super::Pager;

impl Pager {
    /// Makes the evictor hold still; on return it is between rounds and nothing is staged. Must be
    /// matched by [`Pager::resume_evictor`]. `meanwhile` is called while waiting.
    pub fn pause_evictor(&self, mut meanwhile: impl FnMut()) {
        self.pause.fetch_add(1, Ordering::SeqCst);
        self.work.ring();
        while self.evicting.load(Ordering::SeqCst) != 0 {
            meanwhile();
            std::thread::yield_now();
        }
    }

    /// Makes evictor and fault thread hold still; on return nothing is staged, loading or half
    /// done. Matched by [`Pager::let_go`]. Calls must not overlap. Faults meanwhile wait in the
    /// kernel, so the caller must not cause any.
    pub fn hold_still(&self) {
        self.pause_evictor(|| {});
        self.park.store(1, Ordering::SeqCst);
        loop {
            let seen = self.progress.look();
            if self.parked.load(Ordering::SeqCst) != 0 {
                return;
            }
            self.ask_to_ring();
            self.progress
                .wait(seen, Some(std::time::Duration::from_millis(1)));
        }
    }

    /// Ends [`Pager::hold_still`].
    pub fn let_go(&self) {
        self.park.store(0, Ordering::SeqCst);
        self.resume_evictor();
        while self.parked.load(Ordering::SeqCst) != 0 {
            self.work.ring();
            std::thread::yield_now();
        }
    }

    /// Has the evictor ring the fault thread: for threads that do not share the pager's
    /// descriptors.
    pub fn ask_to_ring(&self) {
        self.ring_wanted.store(true, Ordering::SeqCst);
        self.work.ring();
    }

    /// Called in the program's own threads before anything that shows where they may run, or hands
    /// it on: forks, new threads and programs, questions about processors. A thread that is held
    /// beside the fault thread is let go for a moment. Takes a few nanoseconds when none is held.
    pub fn let_threads_go(&self) {
        self.together.let_go();
    }

    /// The same before a call that may take long, such as one that starts a thread; none is held
    /// until [`Pager::end_call`].
    pub fn begin_call(&self) {
        self.together.begin_call();
    }

    /// Ends one [`Pager::begin_call`].
    pub fn end_call(&self) {
        self.together.end_call();
    }

    /// In a forked child, whose copy was made while everything held still: nobody holds or waits
    /// any more.
    pub fn reset_after_fork(&self) {
        self.forget_recorder();
        self.together.forget();
        self.exclusion.forget();
        for word in [&self.pause, &self.evicting, &self.park, &self.parked] {
            word.store(0, Ordering::SeqCst);
        }
        self.work.forget_waiters();
        self.progress.forget_waiters();
        self.wanted.store(0, Ordering::SeqCst);
        self.loan.store(0, Ordering::SeqCst);
        self.forked.store(true, Ordering::SeqCst);
        // Of the parent's events none comes here; what it was unsure about was settled before the
        // fork.
        self.renaming.store(false, Ordering::SeqCst);
    }

    /// Ends one [`Pager::pause_evictor`].
    pub fn resume_evictor(&self) {
        self.pause.fetch_sub(1, Ordering::SeqCst);
        self.work.ring();
    }
}
