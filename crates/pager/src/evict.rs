//! The evictor: makes pages non-resident, oldest first, ahead of the fault thread.
//!
//! A round, for a batch of candidates:
//! 1. take candidates from the queue, in address order, as runs of neighbours;
//! 2. for each run, holding the gate: claim its pages and move them out of the program into the
//!    staging area, atomically: from here an access to them is a fault;
//! 3. put the dirty ones into the store (clean ones are there already), no lock held;
//! 4. holding the gate: each page whose word still says Staged becomes Stored; the others were
//!    taken back or emptied;
//! 5. drop the frames.
//!
//! Steps 2 to 5 are [`Outgoing`]'s. Moving is refused for pages pinned by a device (they are kept)
//! and where the mapping does not allow it ([`super::evict_in_place`]).
//!
//! The reserve of free pages is refilled in one go from its low-water mark to its high one: a
//! thread that is woken for every page costs more than the pages do.
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use pagetide_kernel::memory::{BatchDropper, make_exclusive};
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::{Urgency, set_urgency};
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, StoreError};

use super::evict_in_place::RUN_PAGES;
use super::follow::Workplace;
use super::outgoing::Outgoing;
use super::page::word::State;
use super::protocol::loss::Loss;
use super::request::Completion;
use super::store_health::{STALL_LIMIT, StoreHealth};
use super::together::{Beside, QUIET_NS};
use super::turnstile::KeptSince;
use super::{BATCH_PAGES, Ownership, Pager};

/// So many pages to be packed are worth two moves of the evictor between processors.
const ASIDE_PAGES: usize = 32;
/// Pages of a round while somebody waits for room, and of every round over a store that takes its
/// time.
const SHORT_ROUND_PAGES: u64 = 64;
/// Rounds that must have found nothing to evict in that time.
const STALL_ROUNDS: u32 = 200;
/// Looks at a page that is being loaded while its eviction was asked for.
const LOADING_TRIES: u32 = 1000;
/// Pause after a round that found nothing it could evict, unless somebody asks for room.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(5);

impl Pager {
    /// Makes the unpinned resident pages of `range` non-resident, as far as the store takes them,
    /// and waits until that is done.
    pub fn evict_range(&self, range: PageRange) {
        let done = Completion::new();
        self.evict_now
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push((range, std::sync::Arc::clone(&done)));
        self.work.ring();
        let _ = done.wait();
    }
}

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
    candidates: Vec<PageNumber>,
    pub(super) outgoing: Outgoing<'p>,
    /// What is put of pages that are evicted in place.
    pub(super) copies: Box<[Page; RUN_PAGES]>,
    drops: Vec<PageRange>,
    /// The reserve fell below its low-water mark and has not reached the high one since.
    refilling: bool,
    workplace: Workplace,
    /// Where threads serve their own faults: keeps the one that faults from being moved away while
    /// this one has its processor.
    beside: Beside,
    /// When faults were last seen to have come, and how many there were: a thread that has some is
    /// held between rounds too.
    faulting: (u64, u64),
    pub(super) health: StoreHealth,
    /// Since when rounds have found nothing to evict, and how many have.
    stuck_since: Option<(u64, u32)>,
    kept_since: KeptSince,
}

impl<'p> Evictor<'p> {
    /// Ready to run; preallocates.
    pub fn new(pager: &'p Pager) -> Evictor<'p> {
        Evictor {
            pager,
            candidates: Vec::with_capacity(BATCH_PAGES),
            outgoing: Outgoing::new(pager),
            copies: Box::new([Page::ZERO; RUN_PAGES]),
            drops: Vec::with_capacity(BatchDropper::MAX),
            refilling: false,
            workplace: Workplace::default(),
            beside: Beside::where_it_is(),
            faulting: (0, 0),
            health: StoreHealth::new(),
            stuck_since: None,
            kept_since: None,
        }
    }

    /// Evicts whenever there is need, until the pager closes.
    pub fn run(&mut self) {
        let (pager, mut errands) = (self.pager, 0);
        set_urgency(Urgency::Yielding);
        while !pager.closing.load(Relaxed) {
            let seen = pager.work.look();
            pager.errand.run(&mut errands);
            if pager.ring_wanted.swap(false, SeqCst) {
                pager.ring_fault_thread();
            }
            if pager.pause.load(SeqCst) != 0 {
                self.stuck_since = None;
                pager.work.wait(seen, Some(Duration::from_millis(10)));
                continue;
            }
            pager.evicting.store(1, SeqCst);
            let round = match pager.pause.load(SeqCst) {
                0 => self.work(),
                _ => Round::Evicted,
            };
            while pager.release_freed() {}
            pager.evicting.store(0, SeqCst);
            if pager.wanted.load(SeqCst) > 0 {
                pager.ring_fault_thread();
            }
            self.note_standstill(round);
            let kept = std::mem::take(&mut self.outgoing.kept_by_events);
            match kept && round == Round::Nothing && pager.wanted() > 0 {
                true => pager.turnstile.kept(&mut self.kept_since),
                false => self.kept_since = None,
            }
            match round {
                Round::Evicted => pager.progress.ring(),
                Round::Idle => self.rest(seen),
                Round::Nothing | Round::Waiting => {
                    let pause = self.health.pause(now_ns()).unwrap_or(FRUITLESS_PAUSE);
                    pager.work.wait(pager.work.look(), Some(pause));
                }
            }
        }
        if pager.ownership == Ownership::SignalRegion {
            self.beside.leave(&pager.together, &pager.fault_processors);
        }
    }

    /// Waits for work. The thread it holds is let go once there have been no faults for a while.
    fn rest(&mut self, seen: u32) {
        let pager = self.pager;
        let holds = pager.ownership == Ownership::SignalRegion && pager.together.is_holding();
        if holds {
            self.note_faulting();
            if now_ns() - self.faulting.0 > QUIET_NS {
                self.beside.leave(&pager.together, &pager.fault_processors);
            }
        }
        let timeout = match holds {
            true => Duration::from_nanos(QUIET_NS),
            false => Duration::from_millis(100),
        };
        pager.work.wait(seen, Some(timeout));
    }

    fn note_faulting(&mut self) {
        let faults = self.pager.ledger.faults.load(Relaxed);
        if self.faulting.1 != faults {
            self.faulting = (now_ns(), faults);
        }
    }

    /// Ends the process when faults have waited too long for room that locked, pinned or sealed
    /// pages do not give.
    fn note_standstill(&mut self, round: Round) {
        let pager = self.pager;
        if round != Round::Nothing || pager.wanted() == 0 || self.health.has_refused() {
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
                 are resident ({} pages in the eviction queues) and locked (mlock), pinned by a \
                 device, or sealed without write access (mseal); use a larger --resident, or let \
                 the program lock and seal less",
                STALL_LIMIT.as_secs(),
                pager.resident() * 4,
                pager.small.len() + pager.main.len()
            ));
        }
    }

    /// What is asked for, else what is needed.
    fn work(&mut self) -> Round {
        if self.serve_asked() {
            return Round::Evicted;
        }
        match self.need() {
            0 => {
                self.health.note_well();
                Round::Idle
            }
            // Whoever waits for room rings again and again.
            _ if self.health.pause(now_ns()).is_some() => Round::Waiting,
            need => {
                let faults = &self.pager.fault_processors;
                let by_signal = self.pager.ownership == Ownership::SignalRegion;
                // Where another thread serves the faults, that one takes the program there, and the
                // evictor follows.
                let server_cpu = self.pager.server_cpu().filter(|_| by_signal);
                let most = self.workplace.choose_for_evictor(faults, server_cpu);
                if by_signal {
                    let together = &self.pager.together;
                    self.beside.consider(together, faults, server_cpu, now_ns());
                    self.note_faulting();
                }
                self.round(need.min(most).min(self.round_pages()) as usize)
            }
        }
    }

    /// Evicts the ranges asked for by [`Pager::evict_range`]. Whether there were any.
    fn serve_asked(&mut self) -> bool {
        let pager = self.pager;
        let asked = std::mem::take(
            &mut *pager
                .evict_now
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        );
        if asked.is_empty() {
            return false;
        }
        for (range, done) in asked {
            let mut next = range.start;
            while next < range.end {
                let batch = PageRange {
                    start: next,
                    end: next.add(BATCH_PAGES as u64).min(range.end),
                };
                // A page may just have been installed whose word is about to say so.
                for _ in 0..LOADING_TRIES {
                    let mut loading = false;
                    self.candidates.clear();
                    pager
                        .table
                        .for_each_used(batch, |page, word| match word.state() {
                            State::Resident | State::Clean if word.pins() == 0 => {
                                self.candidates.push(page)
                            }
                            State::Loading => loading = true,
                            _ => {}
                        });
                    self.evict_candidates();
                    if !loading {
                        break;
                    }
                    std::thread::yield_now();
                }
                next = batch.end;
            }
            done.finish(Ok(()));
        }
        true
    }

    /// Pages to evict now so that the bound holds, waiting faults find room, and the reserve is
    /// filled.
    fn need(&mut self) -> u64 {
        let pager = self.pager;
        let wanted = pager.wanted();
        let short_by =
            |free: u64| (pager.resident() + free.max(wanted)).saturating_sub(pager.limit());
        if !self.refilling && short_by(pager.low_water()) == 0 {
            return 0;
        }
        let need = short_by(pager.high_water());
        // What comes while the last round is under way is left to the next turn: one turn that is
        // short costs the program as much as a long one.
        self.refilling = need > self.round_pages();
        need
    }

    /// The most pages of a round now.
    fn round_pages(&self) -> u64 {
        let pager = self.pager;
        match pager.wanted() > 0 || pager.active_store().capabilities().get_sleeps {
            true => SHORT_ROUND_PAGES,
            false => BATCH_PAGES as u64,
        }
    }

    pub(super) fn round(&mut self, count: usize) -> Round {
        self.pager.take_victims(&mut self.candidates, count);
        self.candidates.sort_unstable();
        let round = self.evict_candidates();
        if round == Round::Nothing && self.health.has_refused() {
            self.health.back_off(now_ns());
        }
        round
    }

    /// Evicts the pages in `candidates`, at most a batch.
    pub(super) fn evict_candidates(&mut self) -> Round {
        self.health.begin_round();
        let before = self.pager.ledger.evictions.load(Relaxed);
        self.drop_clean_in_batches();
        self.evict_by_moving();
        if !self.outgoing.shared.is_empty() {
            self.outgoing.sharing_broken = true;
            self.candidates = self.break_sharing();
            self.evict_by_moving();
            self.outgoing.sharing_broken = false;
        }
        if self.pager.ledger.evictions.load(Relaxed) > before {
            Round::Evicted
        } else {
            Round::Nothing
        }
    }

    fn evict_by_moving(&mut self) {
        let candidates = std::mem::take(&mut self.candidates);
        if self.pager.handles().can_move() {
            let (started_ns, mut moves) = (now_ns(), 0);
            for run in candidates.chunk_by(|a, b| a.0 + 1 == b.0) {
                self.outgoing.stage(run);
                moves += 1;
            }
            self.workplace
                .note_moves(&self.pager.fault_processors, now_ns() - started_ns, moves);
        } else {
            self.outgoing.refused.extend_from_slice(&candidates);
        }
        self.candidates = candidates;
        let store = self.pager.active_store().capabilities();
        let dirty = self.outgoing.dirty();
        let outgoing = &mut self.outgoing;
        let mut put_and_drop = || {
            let (put, error) = outgoing.put(store.put_batch_pages);
            if error.is_some() {
                while !outgoing.give_back() {
                    std::thread::yield_now();
                }
            }
            outgoing.drop_frames();
            (put, error)
        };
        // A store that answers from elsewhere is best asked from where the program is.
        let (put, error) = match dirty >= ASIDE_PAGES && !store.get_sleeps {
            true => self.workplace.pack(dirty, put_and_drop),
            false => put_and_drop(),
        };
        self.note_puts(put, error);
        self.evict_in_place();
    }

    /// In a region nobody else empties memory, so clean pages can be dropped where they are, many
    /// in one call: they are protected, so no write can be lost, not even a device's.
    fn drop_clean_in_batches(&mut self) {
        let pager = self.pager;
        let Some(dropper) = &pager.handles().dropper else {
            return;
        };
        self.drops.clear();
        let drops = &mut self.drops;
        self.candidates.retain(|page| {
            let word = pager.table.load(*page);
            let dropping = word.dropping();
            let claimed =
                dropping.is_some_and(|dropping| pager.table.change(*page, word, dropping));
            if claimed {
                match drops.last_mut() {
                    Some(last) if last.end == *page => last.end = page.add(1),
                    _ => drops.push(PageRange::one(*page)),
                }
            }
            !claimed
        });
        if drops.is_empty() {
            return;
        }
        // A page is Dropping, and no fault brings it back, until the last call that may empty it is
        // over.
        // SAFETY: the store holds these pages' bytes, and their words say so.
        let together = unsafe { dropper.drop_ranges(drops) }.is_ok();
        let mut dropped = 0;
        for range in drops.iter() {
            // SAFETY: as above.
            let gone = together || unsafe { pagetide_kernel::memory::drop_pages(*range) }.is_ok();
            for page in range.iter() {
                pager.table.update(page, |now| match gone {
                    true => now.dropped(),
                    false => now.not_dropped(true),
                });
                if !gone {
                    pager.enqueue(page);
                }
            }
            dropped += if gone { range.pages() } else { 0 };
        }
        pager.unreserve(dropped);
        pager.ledger.evictions.fetch_add(dropped, Relaxed);
        pager.ledger.clean_drops.fetch_add(dropped, Relaxed);
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
        let starving = pager.wanted() > 0 || pager.resident() > pager.limit();
        if self.health.note_refusal(now_ns(), starving) {
            let message = format!(
                "the {} store has taken no page for {} s while the program waited for memory, so \
                 its budget cannot be held: {error}; give the store room, or use a larger \
                 --resident",
                pager.active_store().capabilities().scheme,
                STALL_LIMIT.as_secs()
            );
            pager.end_process_for(Loss::Budget, &message);
        }
    }

    /// Pages shared with a forked process cannot be moved until they are this process's own.
    /// Returns those that are now.
    fn break_sharing(&mut self) -> Vec<PageNumber> {
        let mut shared = std::mem::take(&mut self.outgoing.shared);
        let mut kept_out = false;
        shared.retain(|page| {
            let word = self.pager.table.load(*page);
            if word.state() == State::Clean {
                kept_out = kept_out || self.drop_clean_in_place(PageRange::one(*page)).is_err();
                if self.pager.table.load(*page).is_resident() {
                    self.pager.enqueue(*page);
                }
            }
            word.state() == State::Resident
        });
        for run in shared.chunk_by(|a, b| a.0 + 1 == b.0) {
            self.make_exclusive(PageRange {
                start: run[0],
                end: run[0].add(run.len() as u64),
            });
        }
        shared
    }

    /// What the program empties meanwhile is a fault of this thread's, which has room whatever the
    /// budget: nobody else would make any.
    fn make_exclusive(&self, run: PageRange) {
        let [start, end] = &self.pager.evictors;
        start.store(run.start.0, SeqCst);
        end.store(run.end.0, SeqCst);
        let _ = make_exclusive(run);
        end.store(0, SeqCst);
    }
}
