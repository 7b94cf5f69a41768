//! Eviction of pages that cannot be moved: read-only, inaccessible and executable mappings, pages
//! shared by fork, kernels before 6.8.
//!
//! Runs of neighbours are write-protected, copied, put into the store and then emptied where they
//! are. A write in between takes its page back. In a program, emptying waits until the fault thread
//! has read the event of it, so it is done for as many pages at once as lie in one mapping. Slower
//! than moving, and blind to devices: but a device that writes to memory must first break the
//! protection, and memory it has pinned for writing before that is writable memory, which is moved.
//! A locked page refuses to be emptied and stays.
use std::io::IoSliceMut;
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::memory::drop_pages;
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, Slot};

use super::controller::Evictor;
use super::staging::RUN_PAGES;
use crate::address_space::mapping_lock::EvictorGuard;
use crate::gate::GateGuard;
use crate::handles::Ownership;
use crate::page::word::{Place, State, Word};
use crate::pager::Pager;

/// Of what is not stored.
const NOWHERE: Place = Place {
    generation: 0,
    slot: Slot(0),
};

/// A call of the program was under way for so long that pages were left where they are: no use in
/// trying the next ones now.
pub(super) struct KeptOut;

impl Pager {
    /// The pages of `run` that are present; none if that cannot be said.
    fn present_in(&self, run: PageRange) -> Option<Vec<PageRange>> {
        let mut present = Vec::new();
        let pagemap = &self.handles().pagemap;
        let looked = pagemap.populated(run, |part, _| present.push(part));
        looked.is_ok().then_some(present)
    }

    /// Whether page words may name what is no longer there: events are unread, or not acted on.
    fn is_stale(&self, gate: &GateGuard<'_>) -> bool {
        gate.has_events_pending()
            || self.ownership == Ownership::Program && self.has_event_pending()
    }

    /// Whether `range` is emptied with one event at most: it is in one mapping, and stays so but
    /// for a call that is under way.
    fn empties_at_once(&self, range: PageRange) -> bool {
        self.ownership != Ownership::Program || self.is_registered(range).is_ok()
    }
}

/// The pages from `first` on, `len` of them.
fn run_of(first: PageNumber, len: usize) -> PageRange {
    PageRange::of(first, len as u64)
}

impl Evictor<'_> {
    /// Evicts the pages that would not move. Those that cannot be evicted here either go to the end
    /// of the queue.
    pub(super) fn evict_in_place(&mut self) {
        let mut refused = std::mem::take(&mut self.batch.refused);
        refused.sort_unstable();
        let by_protection = !self.pager.handles().content_tells;
        let mut kept_out = false;
        let mut rest = &refused[..];
        while !rest.is_empty() {
            let (state, len) = self.run_at(rest);
            let (run, after) = rest.split_at(len);
            let run = run_of(run[0], len);
            let done = match state {
                _ if kept_out => Ok(()),
                Some(State::Clean) if by_protection => self.drop_clean_in_place(run),
                // A store that has refused one page would refuse the others.
                Some(State::Resident | State::Clean) if !self.health.has_refused() => {
                    self.evict_run(run)
                }
                _ => Ok(()),
            };
            kept_out |= done.is_err();
            for page in run.iter() {
                if self.pager.table.load(page).is_resident() {
                    self.pager.enqueue(page);
                }
            }
            rest = after;
        }
        refused.clear();
        self.batch.refused = refused;
    }

    /// How many pages at the start of `pages` are neighbours in the same state, and that state;
    /// none if the first may not be evicted.
    fn run_at(&self, pages: &[PageNumber]) -> (Option<State>, usize) {
        let state = |page: PageNumber| {
            let word = self.pager.table.load(page);
            (word.pins() == 0).then(|| word.state())
        };
        let first = state(pages[0]);
        let neighbours = pages.iter().take(RUN_PAGES).enumerate();
        let same = neighbours.take_while(|(index, page)| {
            page.0 == pages[0].0 + *index as u64 && (*index == 0 || state(**page) == first)
        });
        (first, same.count())
    }

    /// Claims the pages at the start of `run` that can be, with the gate held; how many, and what
    /// their words were.
    fn claim(
        &self,
        run: PageRange,
        claimed: impl Fn(Word) -> Option<Word>,
    ) -> (usize, [Word; RUN_PAGES]) {
        let table = &self.pager.table;
        let mut was = [Word::default(); RUN_PAGES];
        let is_claimed = |(page, was): (PageNumber, &mut Word)| {
            *was = table.load(page);
            claimed(*was).filter(|claimed| table.change(page, *was, *claimed))
        };
        let count = run.iter().zip(&mut was).map_while(is_claimed).count();
        (count, was)
    }

    /// Evicts the pages of `run` that can be: present, and not known to be as the store has them.
    pub(super) fn evict_run(&mut self, run: PageRange) -> Result<(), KeptOut> {
        let pager = self.pager;
        // Memory that is being moved leaves with its words, and these pages must not be among them
        // then.
        let gate = pager.gate.lock();
        let stale = gate.has_events_pending();
        self.batch.kept_by_events |= stale;
        let (claimed, was) = match stale {
            true => return Ok(()),
            false => self.claim(run, Word::protecting),
        };
        drop(gate);
        if claimed == 0 {
            return Ok(());
        }
        let run = run_of(run.start, claimed);
        let backing = was.map(|was| (was.state() == State::Clean).then(|| was.place()));
        let mut places = [NOWHERE; RUN_PAGES];
        let stored = self.store_run(run, &backing, &mut places);
        let is_unused =
            |(page, was): &(&Page, &Word)| was.is_filled_ahead() && page.same_filled() == Some(0);
        let unused = self.copies[..stored].iter().zip(&was).filter(is_unused);
        pager.filled_ahead.note_unused(unused.count() as u64);
        for (index, backing) in backing[..claimed].iter().enumerate() {
            if let Some(place) = backing
                && (index >= stored || places[index] != *place)
            {
                pager.stores.release(&[*place]);
            }
        }
        run.iter().skip(stored).for_each(|page| self.keep(page));
        match stored {
            0 => Ok(()),
            _ => self.empty_stored(run_of(run.start, stored), &places[..stored]),
        }
    }

    /// Protects the Protecting pages of `run` and puts what they hold, unless the store has it as
    /// their `backing`; how many pages it has now, from the start of `run`, and where.
    fn store_run(
        &mut self,
        run: PageRange,
        backing: &[Option<Place>; RUN_PAGES],
        places: &mut [Place; RUN_PAGES],
    ) -> usize {
        let copied = self.copy_protected(run);
        let (stores, copies) = (&self.pager.stores, &self.copies[..copied]);
        let (mut to_put, mut count) = ([0; RUN_PAGES], 0);
        let mut pages = [&Page::ZERO; RUN_PAGES];
        for (index, (page, backing)) in copies.iter().zip(backing).enumerate() {
            let holds = |place: &Place| stores.of(place.generation).holds(place.slot, page);
            match backing.filter(holds) {
                Some(place) => places[index] = place,
                None => {
                    (to_put[count], pages[count]) = (index, page);
                    count += 1;
                }
            }
        }
        let generation = stores.generation();
        let mut slots = [Slot(0); RUN_PAGES];
        let (done, error) = stores.put(&pages[..count], &mut slots[..count]);
        for (index, slot) in to_put[..done].iter().zip(slots) {
            places[*index] = Place { generation, slot };
        }
        self.note_puts(done, error);
        to_put[..count].get(done).copied().unwrap_or(copied)
    }

    /// Protects the pages of `run` and copies them; how many could be, from its start.
    fn copy_protected(&mut self, run: PageRange) -> usize {
        let handles = self.pager.handles();
        match handles.uffd.write_protect(run, true) {
            Ok(()) => {
                let copies = self.copies.each_mut();
                let mut rooms = copies.map(|page| IoSliceMut::new(&mut page.0));
                let rooms = &mut rooms[..run.pages() as usize];
                handles.memory.read(run.start, rooms)
            }
            Err(stop) => {
                self.batch.kept_by_events |= stop == Stop::EventPending;
                0
            }
        }
    }

    /// Empties the Protecting pages of `run`, whose bytes the store has at `places`.
    fn empty_stored(&mut self, run: PageRange, places: &[Place]) -> Result<(), KeptOut> {
        let pager = self.pager;
        let alone = pager.space.mapping_lock.enter_evictor(run.pages() > 1);
        let gate = pager.gate.lock();
        let stale = alone.is_none() || pager.is_stale(&gate);
        let holds_off = alone.as_ref().is_some_and(EvictorGuard::holds_off);
        let at_once = !stale && holds_off && pager.empties_at_once(run);
        let mut was = [Word::default(); RUN_PAGES];
        for ((page, place), was) in run.iter().zip(places).zip(&mut was) {
            *was = pager.table.update(page, |now| match stale {
                true => now,
                false => now.dropping_stored(*place).unwrap_or(now),
            });
        }
        drop(gate);
        self.batch.kept_by_events |= stale;
        let is_dropping = |was: &Word| !stale && was.dropping_stored(places[0]).is_some();
        let mut next = run.start;
        for part in was[..places.len()].chunk_by(|a, b| at_once && is_dropping(a) && is_dropping(b))
        {
            let pages = run_of(next, part.len());
            next = pages.end;
            if is_dropping(&part[0]) {
                self.finish_drop(pages, false);
                continue;
            }
            // What the program has removed is not there any more, and something else may be. Where
            // it has written meanwhile, the fault thread has taken the protection off.
            let place = places[(pages.start.0 - run.start.0) as usize];
            pager.stores.release(&[place]);
            if stale || part[0].is_removed() {
                self.keep(pages.start);
            }
        }
        alone.map(drop).ok_or(KeptOut)
    }

    /// Drops clean pages where they are, as many at the start of `run` as still are: they are
    /// protected and the store has their bytes.
    pub(super) fn drop_clean_in_place(&mut self, run: PageRange) -> Result<(), KeptOut> {
        let pager = self.pager;
        let Some(alone) = pager.space.mapping_lock.enter_evictor(run.pages() > 1) else {
            self.batch.kept_by_events = true;
            return Err(KeptOut);
        };
        let gate = pager.gate.lock();
        let stale = pager.is_stale(&gate);
        self.batch.kept_by_events |= stale;
        let (mut at_once, mut claimed) = (false, 0);
        if !stale {
            at_once = alone.holds_off() && pager.empties_at_once(run);
            claimed = self.claim(run, Word::dropping).0;
        }
        drop(gate);
        match at_once {
            true if claimed > 0 => self.finish_drop(run_of(run.start, claimed), true),
            _ => run_of(run.start, claimed)
                .iter()
                .for_each(|page| self.finish_drop(PageRange::one(page), true)),
        }
        Ok(())
    }

    /// Empties Dropping pages with one call, or as many as are not in one mapping. Returns what is
    /// still there.
    fn empty(&mut self, run: PageRange) -> Vec<PageRange> {
        let pager = self.pager;
        // SAFETY: the store holds the pages' bytes and their words say so; faults on them wait
        // until this is over.
        let empty = |range| unsafe { drop_pages(range) }.is_ok();
        if pager.ownership != Ownership::Program {
            // A part may be locked.
            let pages = run.iter().map(PageRange::one);
            return match empty(run) {
                true => Vec::new(),
                false => pages.filter(|page| !empty(*page)).collect(),
            };
        }
        let gate = pager.gate.lock();
        // What the program has given up meanwhile is not there any more, and something else may be.
        let is_removed = |page| pager.table.load(page).is_removed();
        let stale = pager.is_stale(&gate);
        self.batch.kept_by_events |= stale;
        if stale || run.iter().any(is_removed) {
            let pages = run.iter().filter(|page| !is_removed(*page));
            return pages.map(PageRange::one).collect();
        }
        pager.space.own_drops.begin_call(run);
        drop(gate);
        let dropped = empty(run);
        pager.space.own_drops.end_call();
        if dropped && run.pages() == 1 {
            return Vec::new();
        }
        // The program has locked a part just now, perhaps after the event was read. And before
        // Linux 6.16 a call that finds the mapping split ends at the split and says that all is
        // well.
        let _gate = pager.gate.lock();
        let untold = pager.space.own_drops.lock().withdraw(run);
        pager.present_in(run).unwrap_or(untold)
    }

    /// Empties Dropping pages and makes them Stored, or puts back what may not be emptied.
    fn finish_drop(&mut self, run: PageRange, was_clean: bool) {
        let pager = self.pager;
        let still_there = self.empty(run);
        let gate = pager.gate.lock();
        let stays = |page| still_there.iter().any(|part| part.contains(page));
        let mut was = [Word::default(); RUN_PAGES];
        for (page, was) in run.iter().zip(&mut was) {
            *was = pager.table.update(page, |now| match stays(page) {
                true => now.not_dropped(was_clean),
                false => now.dropped(),
            });
        }
        drop(gate);
        let (mut evicted, mut gone) = (0, 0);
        for (page, was) in run.iter().zip(was) {
            let (removed, stays) = (was.is_removed(), stays(page));
            evicted += u64::from(!stays);
            gone += u64::from(!stays || removed);
            if removed || stays && !was_clean {
                pager.stores.release(&[was.place()]);
            }
            if stays && !was_clean {
                self.unprotect(page);
            }
        }
        pager.budget.unreserve(gone);
        pager.ledger.evictions.fetch_add(evicted, Relaxed);
        match was_clean {
            true => pager.ledger.clean_drops.fetch_add(evicted, Relaxed),
            false => pager.ledger.writebacks.fetch_add(evicted, Relaxed),
        };
    }

    /// Ends the protection of a page that stays, unless somebody watches for writes to it.
    fn unprotect(&self, page: PageNumber) {
        let pager = self.pager;
        let section = pager.write_notifications.enter_waiting();
        if !section.is_write_protected(page) {
            let range = PageRange::one(page);
            let _ = pager.handles().uffd.write_protect(range, false);
        }
    }

    /// Gives up evicting a Protecting page.
    fn keep(&self, page: PageNumber) {
        let pager = self.pager;
        let was = pager.table.update(page, Word::kept);
        if was.state() == State::Protecting && was.is_removed() {
            pager.budget.unreserve(1);
        }
        self.unprotect(page);
    }
}
