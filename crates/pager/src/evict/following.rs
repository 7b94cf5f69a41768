//! The evictor's part in a budget that follows the program: how much may go says
//! [`super::adapting`], which pages [`super::cold`].
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::{PageNumber, PageRange};

use super::adapting::Seen;
use super::cold::{Memory, Whereabouts};
use super::controller::Evictor;
use super::staging::BATCH_PAGES;
use crate::page::word::{State, Word};
use crate::pager::Pager;

/// What a fetched page costs the program beside the time in which its fault is served: its way, two
/// switches between threads, and what the processor's caches forget.
const BESIDE_NS: u64 = 15_000;
/// The same of a page that is held aside, which is served in no time.
const TAKING_BACK_NS: u64 = 15_000;
/// The most pages taken that are held aside, to come back sooner.
const HELD: u64 = 256;

fn whereabouts(word: Word) -> Whereabouts {
    match word.state() {
        State::Resident | State::Clean if word.pins() == 0 => Whereabouts::There,
        State::Stored | State::Staged => Whereabouts::Out,
        _ => Whereabouts::Elsewhere,
    }
}

impl Memory for Pager {
    fn each_in(&self, range: PageRange, each: &mut dyn FnMut(PageNumber, Whereabouts)) {
        (self.table).for_each_used(range, |page, word| each(page, whereabouts(word)));
    }

    fn whereabouts(&self, page: PageNumber) -> Whereabouts {
        whereabouts(self.table.load(page))
    }
}

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
        let taken_back = ledger.faults_taken_back.load(Relaxed);
        let waited_ns = fetches * BESIDE_NS + taken_back * TAKING_BACK_NS;
        let pager_cpu = [&ledger.fault_thread_cpu_ns, &ledger.evictor_cpu_ns];
        let seen = Seen {
            now_ns,
            waited_ns: ledger.refault_ns.load(Relaxed) + waited_ns,
            cpu_ns: pager.program_cpu_ns(),
            pager_cpu_ns: pager_cpu.iter().map(|cpu_ns| cpu_ns.load(Relaxed)).sum(),
            processors: self.processors,
            starves: pager.budget.wanted() > 0 && self.stuck_since.is_some(),
            is_short: pager.memory_is_short.swap(false, Relaxed),
        };
        let budget = &pager.budget;
        let ceiling = (pager.ceiling.load(Relaxed)).min(pager.footprint.resident_max());
        let next = adapting.step(seen, budget.get(), budget.resident_in_all(), ceiling);
        if next.budget != budget.get() {
            budget.set(next.budget);
        }
        let ranges = pager.managed_ranges();
        self.cold.step(pager, &ranges, now_ns, next.allowance);
    }

    /// Takes some of the pages that are to go. Whether there were any.
    pub(super) fn take_cold(&mut self) -> bool {
        let pager = self.pager;
        if !self.cold.has_going() || self.health.pause(now_ns()).is_some() {
            return false;
        }
        let most = self.place.begin(&pager.placement, pager.server_cpu());
        let most = most.min(BATCH_PAGES as u64) as usize;
        self.cold.take(&mut self.candidates, most);
        self.candidates.sort_unstable();
        self.evict_candidates(pager.held_pages().min(HELD) as usize);
        pager.pauses.set_holding(self.batch.len() > 0);
        self.end_turn(false);
        true
    }
}
