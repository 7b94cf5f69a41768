//! The gate: a lock around the moments in which page words and memory may differ.
//!
//! When the program unmaps, moves or empties memory, the kernel sends an event and refuses to
//! install or move pages until the event is read; then the program goes on. Between reading an
//! event and having acted on it the pager's idea of the memory is stale, so that part is done
//! holding the gate, and so is the evictor's claiming and moving of a page. Hence an eviction
//! happens either before the event is read, when the kernel still refuses if it came too late, or
//! after the page words say what became of the memory.
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pagetide_kernel::sync::{Lock, LockGuard};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    lock: Lock,
    /// Events were read and not yet acted on: page words may name what is no longer there, so no
    /// eviction begins. Changes with the gate held.
    events_pending: AtomicBool,
}

/// The gate is held.
#[derive(Debug)]
pub(crate) struct GateGuard<'g> {
    gate: &'g Gate,
    _held: LockGuard<'g>,
}

impl Gate {
    /// Takes it, waiting for as long as a move or an event takes.
    pub(crate) fn lock(&self) -> GateGuard<'_> {
        GateGuard {
            gate: self,
            _held: self.lock.lock(),
        }
    }

    /// Takes it if it is open.
    pub(crate) fn try_lock(&self) -> Option<GateGuard<'_>> {
        let held = self.lock.try_lock()?;
        Some(GateGuard {
            gate: self,
            _held: held,
        })
    }

    /// In a forked child: of the parent's events none comes here; what it was unsure about was
    /// settled before the fork.
    pub(crate) fn reset_after_fork(&self) {
        self.events_pending.store(false, Relaxed);
    }
}

impl GateGuard<'_> {
    /// Whether events were read that are not acted on.
    pub(crate) fn has_events_pending(&self) -> bool {
        self.gate.events_pending.load(Relaxed)
    }

    /// Events were read that are not acted on, or no longer.
    pub(crate) fn set_events_pending(&self, pending: bool) {
        self.gate.events_pending.store(pending, Relaxed);
    }
}
