//! The evictor: makes pages non-resident, oldest first, ahead of the fault thread. When, how many,
//! and what if it cannot; how is in [`super::batch`] and [`super::in_place`].
//!
//! The reserve of free pages is refilled in one go from its low-water mark to its high one: a
//! thread that is woken for every page costs more than the pages do.
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagetide_kernel::memory::BatchDropper;
use pagetide_kernel::sync::{now_ns, thread_cpu_ns};
use pagetide_kernel::thread::{Urgency, processors, set_urgency};
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, StoreError};

use super::adapting::{Adapting, STEP_NS};
use super::batch::Batch;
use super::cold::ColdMemory;
use super::health::{STALL_LIMIT, StoreHealth};
use super::staging::{BATCH_PAGES, RUN_PAGES};
use super::watching::AccessedBits;
use crate::address_space::throttle::KeptSince;
use crate::handles::Ownership;
use crate::measure::rounds::{Rounds, TICK_NS};
use crate::page::second_chance::SecondChance;
use crate::pager::Pager;
use crate::placement::{self, Moves, Place, Turn};
use crate::protocol::loss::Loss;

/// So many pages to be packed are worth two moves of the evictor between processors.
const ASIDE_PAGES: usize = 32;
/// Pages of a round while somebody waits for room, and of every round over a store that takes its
/// time.
const SHORT_ROUND_PAGES: u64 = 64;
/// Rounds that must have found nothing to evict before the program is ended.
const STALL_ROUNDS: u32 = 200;
/// Pause after a round that found nothing it could evict, unless somebody asks for room.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(5);

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// Pages were evicted.
    Evicted,
    /// There was nothing it could evict.
    Nothing,
    /// There was none: the store refused pages a moment ago and is given time.
    Waiting,
    /// There was no need.
    Idle,
}

/// The evictor's own state.
pub struct Evictor<'p> {
    pub(super) pager: &'p Pager,
    pub(super) candidates: Vec<PageNumber>,
    pub(super) batch: Batch<'p>,
    /// What is put of pages that are evicted in place.
    pub(super) copies: Box<[Page; RUN_PAGES]>,
    /// Clean pages to be dropped together.
    pub(super) drops: Vec<PageRange>,
    pub(super) health: StoreHealth,
    /// The reserve fell below its low-water mark and has not reached the high one since.
    refilling: bool,
    pub(super) place: Box<dyn Place>,
    /// Since when rounds have found nothing to evict, and how many have.
    pub(super) stuck_since: Option<(u64, u32)>,
    kept_since: KeptSince,
    pub(super) rounds: Rounds,
    pub(super) adapting: Option<Adapting>,
    pub(super) cold: ColdMemory,
    pub(super) processors: u64,
}

impl<'p> Evictor<'p> {
    /// Ready to run; preallocates.
    pub fn new(pager: &'p Pager) -> Evictor<'p> {
        let processors = processors();
        let by_signal = pager.ownership == Ownership::SignalRegion;
        Evictor {
            pager,
            candidates: Vec::with_capacity(BATCH_PAGES),
            batch: Batch::new(pager),
            copies: Box::new([Page::ZERO; RUN_PAGES]),
            drops: Vec::with_capacity(BatchDropper::MAX),
            health: StoreHealth::new(),
            refilling: false,
            place: placement::evictor(by_signal, processors),
            stuck_since: None,
            kept_since: None,
            rounds: Rounds::default(),
            adapting: pager.automatic.map(Adapting::new),
            cold: ColdMemory::default(),
            processors: processors as u64,
        }
    }

    /// Evicts whenever there is need, until the pager closes.
    pub fn run(&mut self) {
        let (pager, mut callbacks) = (self.pager, 0);
        set_urgency(Urgency::Yielding);
        while !pager.is_closing() {
            let seen = pager.budget.work.look();
            pager.callback.run(&mut callbacks);
            if pager.pauses.take_ring() {
                pager.ring_fault_thread();
            }
            let round = pager.pauses.evict(|| {
                let round = self.work();
                pager.stores.release_noted();
                round
            });
            let Some(round) = round else {
                self.let_go_of_held();
                self.stuck_since = None;
                let soon = Some(Duration::from_millis(10));
                pager.budget.work.wait(seen, soon);
                continue;
            };
            if pager.budget.fault_thread_waits() {
                pager.ring_fault_thread();
            }
            if let (Some(member), Round::Evicted | Round::Nothing) = (&pager.member, round) {
                member.note_round(&pager.budget, round == Round::Evicted);
            }
            self.note_standstill(round);
            match round {
                Round::Evicted => pager.budget.progress.ring(),
                Round::Idle => self.rest(seen),
                Round::Nothing | Round::Waiting => {
                    let pause = self.health.pause(now_ns()).unwrap_or(FRUITLESS_PAUSE);
                    let work = &pager.budget.work;
                    work.wait(work.look(), Some(pause));
                }
            }
        }
        self.place.leave(&pager.placement);
    }

    /// Waits for work.
    fn rest(&mut self, seen: u32) {
        let pager = self.pager;
        self.end_turn(true);
        let by_signal = pager.ownership == Ownership::SignalRegion;
        let quiet = pager.placement.quiet_after().filter(|_| by_signal);
        let timeout = match pager.probes.is_on() {
            true => Duration::from_nanos(TICK_NS),
            false if self.adapting.is_some() => Duration::from_nanos(STEP_NS),
            false => quiet.unwrap_or(Duration::from_millis(100)),
        };
        pager.budget.work.wait(seen, Some(timeout));
    }

    pub(super) fn end_turn(&mut self, is_idle: bool) {
        let pager = self.pager;
        let turn = Turn {
            now_ns: now_ns(),
            is_idle,
            faults: pager.ledger.faults.load(Relaxed),
            server_cpu: &|| pager.server_cpu(),
        };
        self.place.end(&pager.placement, &turn);
        let cpu_ns = &pager.ledger.evictor_cpu_ns;
        cpu_ns.store(thread_cpu_ns(), Relaxed);
    }

    /// What is asked for, else what is needed.
    fn work(&mut self) -> Round {
        if self.serve_requests() {
            return Round::Evicted;
        }
        self.measure();
        self.adapt();
        self.pager.divide_memory();
        match self.need_in_share() {
            0 if self.take_cold() => Round::Evicted,
            0 => {
                self.health.note_well();
                Round::Idle
            }
            // Whoever waits for room rings again and again.
            _ if self.health.pause(now_ns()).is_some() => Round::Waiting,
            need => {
                let pager = self.pager;
                let most = self.place.begin(&pager.placement, pager.server_cpu());
                let round = self.round(need.min(most).min(self.round_pages()) as usize);
                self.end_turn(false);
                round
            }
        }
    }

    /// The same as [`Evictor::need`], when this process has got of its run's budget what it may.
    fn need_in_share(&mut self) -> u64 {
        let pager = self.pager;
        let Some(member) = &pager.member else {
            return self.need();
        };
        member.keep(&pager.budget, pager.ledger);
        match self.need() {
            0 => 0,
            need => {
                member.ask(&pager.budget, need);
                self.need()
            }
        }
    }

    /// Pages to evict now so that the bound holds, waiting faults find room, and the reserve is
    /// filled.
    fn need(&mut self) -> u64 {
        let budget = &self.pager.budget;
        let wanted = budget.wanted();
        let short_by =
            |free: u64| (budget.resident() + free.max(wanted)).saturating_sub(budget.limit());
        if !self.refilling && short_by(budget.low_water()) == 0 {
            return 0;
        }
        let need = short_by(budget.high_water());
        // What comes while the last round is under way is left to the next turn: one turn that is
        // short costs the program as much as a long one.
        self.refilling = need > self.round_pages();
        need
    }

    /// The most pages of a round now.
    fn round_pages(&self) -> u64 {
        let pager = self.pager;
        match pager.budget.wanted() > 0 || pager.stores.active().capabilities().get_sleeps {
            true => SHORT_ROUND_PAGES,
            false => BATCH_PAGES as u64,
        }
    }

    /// Evicts the pages that are held aside: somebody wants nothing to be staged, and waits. (To
    /// move them back, one by one, takes longer.)
    fn let_go_of_held(&mut self) {
        let (taken, error) = self.batch.finish(0);
        self.note_puts(taken, error);
        self.pager.pauses.set_holding(false);
    }

    fn round(&mut self, count: usize) -> Round {
        let pager = self.pager;
        let (victims, budget) = (&pager.victims, pager.budget.get());
        match victims.watched() {
            Some(_) => {
                let mut chance = SecondChance {
                    queues: victims,
                    table: &pager.table,
                    budget,
                    watcher: AccessedBits(pager.handles()),
                };
                chance.take(&mut self.candidates, count);
            }
            None => victims.take(&pager.table, budget, &mut self.candidates, count),
        }
        self.candidates.sort_unstable();
        let most = pager.held_pages() as usize;
        // While somebody waits for room, no more pages are held.
        let held = match pager.budget.wanted() > 0 {
            true => most.min(self.batch.len()),
            false => most,
        };
        // What there is nothing else to be evicted for is taken of them.
        let held = held.saturating_sub(count - self.candidates.len());
        let round = self.evict_candidates(held);
        pager.pauses.set_holding(self.batch.len() > 0);
        if round == Round::Nothing && self.health.has_refused() {
            self.health.back_off(now_ns());
        }
        round
    }

    /// Evicts the pages in `candidates`, at most a batch, which are in address order: drops clean
    /// ones together where that can be done, moves the others out, and evicts in place what may
    /// not be moved. What is shared with a forked process has its second turn. Of the pages moved,
    /// the `held` youngest stay staged.
    pub(super) fn evict_candidates(&mut self, held: usize) -> Round {
        self.health.begin_round();
        let before = self.pager.ledger.evictions.load(Relaxed);
        let mut candidates = std::mem::take(&mut self.candidates);
        self.drop_clean_together(&mut candidates);
        let mut has_staged = self.evict_batch(&candidates, held, false);
        candidates.clear();
        candidates.append(&mut self.batch.shared);
        if !candidates.is_empty() {
            self.break_sharing(&mut candidates);
            has_staged |= self.evict_batch(&candidates, held, true);
        }
        self.candidates = candidates;
        // Pages that came to be held are headway, though none may have left: those that were to
        // may have been taken back.
        let has_held = has_staged && !self.health.has_refused();
        match self.pager.ledger.evictions.load(Relaxed) > before || has_held {
            true => Round::Evicted,
            false => Round::Nothing,
        }
    }

    /// Evicts `pages`: those that may be moved as a batch, the others in place. Those that still do
    /// not move once sharing was broken (`exclusive`) are pinned. Whether any were staged.
    fn evict_batch(&mut self, pages: &[PageNumber], held: usize, exclusive: bool) -> bool {
        let (pager, before) = (self.pager, self.batch.len());
        let mut moves = Moves::default();
        if pager.handles().can_move() {
            let started_ns = now_ns();
            for run in pages.chunk_by(|a, b| a.0 + 1 == b.0) {
                self.batch.stage(run, exclusive);
                moves.count += 1;
            }
            moves.ns = now_ns() - started_ns;
        } else {
            self.batch.refused.extend_from_slice(pages);
        }
        let has_staged = self.batch.len() > before;
        let leaving = self.batch.len().saturating_sub(held).min(BATCH_PAGES);
        let dirty = self.batch.dirty(leaving);
        // A store that answers from elsewhere is best asked from where the program is.
        let get_sleeps = pager.stores.active().capabilities().get_sleeps;
        let aside = match dirty >= ASIDE_PAGES && !get_sleeps {
            true => dirty,
            false => 0,
        };
        let (batch, mut done) = (&mut self.batch, (0, None));
        let mut finish = || done = batch.finish(held);
        (self.place).pack(&pager.placement, moves, aside, &mut finish);
        self.note_puts(done.0, done.1);
        self.evict_in_place();
        has_staged
    }

    /// Keeps account of what the store did: took `taken` pages, and refused one more if there is an
    /// error. Ends the process when it has taken none for too long while faults wait for room.
    pub(super) fn note_puts(&mut self, taken: usize, error: Option<StoreError>) {
        let pager = self.pager;
        if taken > 0 {
            self.health.note_well();
        }
        let Some(error) = error else {
            return;
        };
        pager.ledger.errors.fetch_add(1, Relaxed);
        let budget = &pager.budget;
        let starving = budget.wanted() > 0 || budget.resident() > budget.limit();
        if self.health.note_refusal(now_ns(), starving) {
            let message = pager.refusal(&error, STALL_LIMIT.as_secs());
            pager.end_process_for(Loss::Budget, &message);
        }
    }

    /// Throttles the program's calls when their events keep pages where they are. Ends the process
    /// when faults have waited too long for room that locked, pinned or sealed pages do not give.
    fn note_standstill(&mut self, round: Round) {
        let pager = self.pager;
        let starves = round == Round::Nothing && pager.budget.wanted() > 0;
        match std::mem::take(&mut self.batch.kept_by_events) && starves {
            true => pager.space.throttle.kept(&mut self.kept_since),
            false => self.kept_since = None,
        }
        if !starves || self.health.has_refused() {
            self.stuck_since = None;
            return;
        }
        let (since, rounds) = self.stuck_since.unwrap_or((now_ns(), 0));
        self.stuck_since = Some((since, rounds.saturating_add(1)));
        // On a machine so busy that this thread seldom runs, time alone proves nothing.
        let long = now_ns() - since > STALL_LIMIT.as_nanos() as u64 && rounds > STALL_ROUNDS;
        if long {
            pager.end_process(&format!(
                "no page could be evicted for {} s while the program waited for memory: {} KiB \
                 are resident ({} pages in the eviction queues) and locked (mlock), pinned by the \
                 program or a device, or sealed without write access (mseal); use a larger budget \
                 (--resident), or let the program lock, pin and seal less",
                STALL_LIMIT.as_secs(),
                pager.budget.resident() * 4,
                pager.victims.len()
            ));
        }
    }
}
