//! The evictor's part in measuring how much memory the program needs: it takes out the pages that
//! are looked at ([`crate::measure`]), whatever the need.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::PageNumber;
use pagetide_kernel::sync::{now_ns, process_cpu_ns, thread_cpu_ns};

use super::controller::Evictor;
use crate::measure::probes::Whereabouts;
use crate::measure::rounds::Memory;
use crate::page::word::State;
use crate::pager::Pager;

impl Memory for Pager {
    fn each_used(&self, each: &mut dyn FnMut(PageNumber)) {
        for range in self.space.managed.all() {
            self.table.for_each_used(range, |page, word| {
                if !matches!(word.state(), State::Untouched | State::Poisoned) {
                    each(page);
                }
            });
        }
    }

    fn whereabouts(&self, page: PageNumber) -> Option<Whereabouts> {
        let word = self.table.load(page);
        match word.state() {
            State::Resident | State::Clean if word.pins() == 0 => Some(Whereabouts::There),
            State::Stored | State::Staged => Some(Whereabouts::Out),
            State::Untouched => Some(Whereabouts::Gone),
            _ => None,
        }
    }
}

impl Pager {
    /// Has it measured from now on, until this time of `CLOCK_MONOTONIC`, how much memory the
    /// program needs. Allocates; not for the fault path.
    pub fn measure_until(&self, now_ns: u64) {
        self.probes.begin(now_ns);
        self.budget.work.ring();
    }

    /// Processor time that the program itself has used, in nanoseconds.
    pub(super) fn program_cpu_ns(&self) -> u64 {
        let own = [
            &self.ledger.fault_thread_cpu_ns,
            &self.ledger.evictor_cpu_ns,
        ];
        let own: u64 = own.iter().map(|counter| counter.load(Relaxed)).sum();
        process_cpu_ns().saturating_sub(own)
    }
}

impl Evictor<'_> {
    /// Begins the looks that are due. A page that is there is taken out, and goes all the way to
    /// the store: what its return costs is what it would cost with less memory.
    pub(super) fn measure(&mut self) {
        let pager = self.pager;
        let measured = &pager.ledger.measured;
        if !pager.probes.is_on() && !self.rounds.is_on() {
            return;
        }
        let now_ns = now_ns();
        pager.probes.end_at(now_ns);
        if !pager.probes.is_on() {
            return self.rounds.end(&pager.probes, measured, now_ns);
        }
        // A store that refuses pages is given time, as for other rounds.
        if !self.rounds.is_due(now_ns) || self.health.pause(now_ns).is_some() {
            return;
        }
        self.candidates.clear();
        let candidates = &mut self.candidates;
        let program_cpu_ns = pager.program_cpu_ns();
        (self.rounds).tick(
            &pager.probes,
            measured,
            pager,
            now_ns,
            program_cpu_ns,
            |page| candidates.push(page),
        );
        if self.candidates.is_empty() {
            return;
        }
        self.candidates.sort_unstable();
        let before_ns = thread_cpu_ns();
        self.evict_candidates(0);
        let took_ns = thread_cpu_ns() - before_ns;
        measured.take_cpu_ns.fetch_add(took_ns, Relaxed);
    }
}
