//! The store thread: takes to the store, on another processor, what the evictor has moved out beside the program.
//!
//! Beside the thread that faults ([`super::follow`]) the evictor takes its time from the program, and most of that is the store's: compressing, checksums, a
//! server's answer. None of it needs that processor. So where the evictor works there it only moves pages out, many at once, lends what is staged to this
//! thread and sleeps. It does not move more out meanwhile: every move would interrupt the processor this thread works on.
//!
//! Only time depends on this thread. Where it does not begin soon, because other processors are busy, the evictor does the work itself.
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pagetide_kernel::sync::{Doorbell, now_ns};
use pagetide_store::StoreError;

use super::Pager;
use super::follow::{PROBE_PAGES, Workplace};
use super::outgoing::Outgoing;

/// How long the evictor waits for this thread to begin.
const PATIENCE_NS: u64 = 500_000;
/// How long the evictor does without it after it did not.
pub const RESPITE_NS: u64 = 100_000_000;
/// Dirty pages from which waking a thread on another processor pays. More than there are in a round that is done elsewhere to learn what that costs.
pub const WORTH_A_HANDOVER: usize = 2 * PROBE_PAGES as usize;

/// Nothing was lent.
const IDLE: u32 = 0;
/// Lent, and not yet begun.
const LENT: u32 = 1;
/// The store thread is at work.
const BUSY: u32 = 2;
/// It has finished: the result is there.
const DONE: u32 = 3;

/// What is on its way out, and where evictor and store thread meet.
#[derive(Debug)]
pub struct Stowage {
    outgoing: Mutex<Outgoing>,
    state: AtomicU32,
    result: Mutex<Option<StoreError>>,
    /// The processor the evictor works on.
    avoided: AtomicU32,
    bell: Doorbell,
    done: Doorbell,
}

impl Stowage {
    pub(super) fn new() -> Stowage {
        Stowage {
            outgoing: Mutex::new(Outgoing::default()),
            state: AtomicU32::new(IDLE),
            result: Mutex::new(None),
            avoided: AtomicU32::new(0),
            bell: Doorbell::new(),
            done: Doorbell::new(),
        }
    }

    /// Wakes the store thread.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// In a forked child, made while nothing was lent.
    pub(super) fn forget_waiters(&self) {
        self.bell.forget_waiters();
        self.done.forget_waiters();
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, SeqCst, SeqCst)
            .is_ok()
    }

    fn result(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.result
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Pager {
    /// What is on its way out.
    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.stowage
            .outgoing
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The evictor, on processor `cpu`: has the store thread do [`Outgoing::put_and_drop`], and waits. `None` if that thread did not begin; nothing is done then.
    pub(super) fn stow_elsewhere(&self, cpu: usize) -> Option<Result<(), StoreError>> {
        let stowage = &self.stowage;
        stowage.avoided.store(cpu as u32, Relaxed);
        stowage.state.store(LENT, SeqCst);
        stowage.ring();
        let lent_ns = now_ns();
        loop {
            let seen = stowage.done.look();
            let waited_ns = now_ns() - lent_ns;
            if stowage.change(DONE, IDLE) {
                return Some(stowage.result().take().map_or(Ok(()), Err));
            }
            if waited_ns >= PATIENCE_NS && stowage.change(LENT, IDLE) {
                return None;
            }
            let rest_ns = PATIENCE_NS.saturating_sub(waited_ns).max(PATIENCE_NS / 10);
            stowage.done.wait(seen, Some(Duration::from_nanos(rest_ns)));
        }
    }
}

/// The thread's own state.
pub struct StoreThread<'p> {
    pager: &'p Pager,
    workplace: Workplace,
}

impl<'p> StoreThread<'p> {
    /// Ready to run.
    pub fn new(pager: &'p Pager) -> StoreThread<'p> {
        StoreThread {
            pager,
            workplace: Workplace::default(),
        }
    }

    /// Stores what it is lent, until the pager closes.
    pub fn run(&mut self) {
        let (pager, mut errands) = (self.pager, 0);
        let stowage = &pager.stowage;
        while !pager.closing.load(SeqCst) {
            let seen = stowage.bell.look();
            pager.errand.run(&mut errands);
            if !stowage.change(LENT, BUSY) {
                stowage.bell.wait(seen, None);
                continue;
            }
            self.workplace.avoid(stowage.avoided.load(Relaxed) as usize);
            let result = pager.outgoing().put_and_drop(pager);
            *stowage.result() = result.err();
            stowage.state.store(DONE, SeqCst);
            stowage.done.ring();
        }
    }
}
