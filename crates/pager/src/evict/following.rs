//! The evictor's part in a budget that follows the program ([`super::adapting`]).
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::now_ns;

use super::adapting::{DELIVERY_NS, Seen};
use super::controller::Evictor;

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
        };
        let budget = &pager.budget;
        let ceiling = ledger.ceiling_bytes.load(Relaxed) / PAGE_SIZE as u64;
        let next = adapting.step(seen, budget.get(), budget.resident_in_all(), ceiling);
        if next != budget.get() {
            budget.set(next);
        }
    }
}
