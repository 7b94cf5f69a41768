//! What the run's file says of one process: what it has, wants, uses and gains.
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::division::Process;
use super::file::{FLOOR_PAGES, NO_TARGET, Slot};

/// A process that has asked in vain has not got enough for so long.
const HUNGRY_NS: u64 = 200_000_000;
/// How often the budget is divided anew at most.
pub(super) const DIVIDE_NS: u64 = 50_000_000;
/// It sleeps if it has not used a processor for so long.
const SLEEPS_NS: u64 = 600_000_000;
/// The weight of new near misses against those before falls by a half in about this time.
const MEMORY_NS: f64 = 500e6;
/// What was found not to go is tried again after so long.
const HELD_NS: u64 = 2_000_000_000;

impl Slot {
    pub(super) fn is_taken(&self) -> bool {
        self.generation.load(SeqCst) != 0
    }

    /// Whether the kernel fills the process's memory unasked.
    pub(super) fn is_deferred(&self) -> bool {
        self.margin.load(SeqCst) > 0
    }

    /// What the process is to have now.
    pub(super) fn goal(&self) -> u64 {
        let goal = self.target.load(Acquire).min(self.cap.load(Acquire));
        goal.max(1)
    }

    /// Pages that it cannot give up.
    pub(super) fn held(&self, now: u64) -> u64 {
        match now.saturating_sub(self.held_ns.load(Relaxed)) < HELD_NS {
            true => self.held.load(Relaxed),
            false => 0,
        }
    }

    /// A new process's. Nobody has it yet.
    pub(super) fn begin(&self, now: u64, granted: u64, used: u64, weight: u64) {
        for (field, value) in [
            (&self.pid, u64::from(std::process::id())),
            (&self.granted, granted),
            (&self.used, used),
            (&self.target, NO_TARGET),
            (&self.cap, u64::MAX),
            (&self.held, 0),
            (&self.held_ns, 0),
            (&self.weight, weight),
            (&self.wanted, 0),
            (&self.wanted_ns, 0),
            (&self.near_misses, 0),
            (&self.busy_ns, now),
            (&self.seen_misses, 0),
            (&self.seen_ns, now),
            (&self.gain, 0f64.to_bits()),
            (&self.margin, 0),
        ] {
            field.store(value, Relaxed);
        }
    }

    pub(super) fn note_wanted(&self, pages: u64, now: u64) {
        self.wanted.store(pages, Relaxed);
        self.wanted_ns.store(now, Relaxed);
    }

    pub(super) fn is_hungry(&self, now: u64) -> bool {
        let asked_ns = self.wanted_ns.load(Relaxed);
        self.wanted.load(Relaxed) > 0 && now.saturating_sub(asked_ns) < HUNGRY_NS
    }

    /// What is known of its process. The lock is held.
    pub(super) fn known(&self, now: u64) -> Process {
        let granted = self.granted.load(SeqCst);
        let wanted = match self.is_hungry(now) {
            true => self.wanted.load(Relaxed),
            false => 0,
        };
        let busy_ns = self.busy_ns.load(Relaxed);
        Process {
            granted,
            used: self.used.load(Relaxed),
            target: self.target.load(Relaxed),
            wanted,
            cap: self.cap.load(Relaxed),
            held: self.held(now),
            weight: self.weight.load(Relaxed),
            gain: self.look_at_gain(now, granted),
            sleeps: wanted == 0 && now.saturating_sub(busy_ns) > SLEEPS_NS,
        }
    }

    /// Near misses a page and second of late.
    fn look_at_gain(&self, now: u64, granted: u64) -> f64 {
        let before = f64::from_bits(self.gain.load(Relaxed));
        let since = now.saturating_sub(self.seen_ns.load(Relaxed)) as f64;
        if since < DIVIDE_NS as f64 / 4.0 {
            return before;
        }
        let misses = self.near_misses.load(Relaxed);
        let new = misses.saturating_sub(self.seen_misses.swap(misses, Relaxed));
        self.seen_ns.store(now, Relaxed);
        let rate = new as f64 / (since / 1e9) / granted.max(FLOOR_PAGES) as f64;
        let gain = before + (rate - before) * (since / (since + MEMORY_NS));
        self.gain.store(gain.to_bits(), Relaxed);
        gain
    }
}
