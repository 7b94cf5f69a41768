//! The evictor's part in a budget that follows the program ([`super::adapting`]).
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::sync::now_ns;

use super::adapting::Seen;
use super::controller::Evictor;
use crate::pager::Pager;
use crate::protocol::report::DELIVERY_NS;

impl Pager {
    /// Memory is short where the program runs: a budget that follows the program shrinks.
    pub fn note_short_memory(&self) {
        self.memory_is_short.store(true, Relaxed);
        self.budget.work.ring();
    }
}

impl Evictor<'_> {
    /// Has the budget follow the program, if that is wished.
    pub(super) fn adapt(&mut self) {
        let (pager, now_ns) = (self.pager, now_ns());
        let Some(adapting) = &mut self.adapting else {
            return;
        };
        if !adapting.is_due(now_ns) {
            return;
        }
        let ledger = pager.ledger;
        let fetches = ledger.fetches.load(Relaxed);
        let seen = Seen {
            now_ns,
            waited_ns: ledger.refault_ns.load(Relaxed) + fetches * DELIVERY_NS,
            cpu_ns: pager.program_cpu_ns(),
            starves: pager.budget.wanted() > 0 && self.stuck_since.is_some(),
            is_short: pager.memory_is_short.swap(false, Relaxed),
        };
        let budget = &pager.budget;
        let ceiling = (pager.ceiling.load(Relaxed)).min(pager.footprint.resident_max());
        let next = adapting.step(seen, budget.get(), budget.resident_in_all(), ceiling);
        if next != budget.get() {
            budget.set(next);
        }
    }
}
