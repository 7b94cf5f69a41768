//! Pages on their way out, in four steps (the first, choosing, is the policy's):
//!
//! 2. [`Batch::stage`]: for each run of neighbours, holding the gate: claim its pages and move them
//!    out of the program into the staging area, atomically. From here an access to them is a fault.
//!    Where that is of use ([`Pager::held_pages`]) they are held there for a while: a page that is
//!    wanted again is moved or copied back, and has shown that it is used.
//! 3. Put into the store what it does not have, the oldest first, no lock held.
//! 4. Settle, holding the gate: each page whose word still says Staged becomes Stored; the others
//!    were taken back or emptied. If the store refused them, they go back to where they were.
//! 5. Drop the frames. Steps 3 to 5 are [`Batch::finish`].
//!
//! A page's frame is dropped only when its word no longer says Staged: it is stored, was clean, was
//! taken back, or was given up by the program. Until then its bytes are in the staging area, and a
//! fault takes them back from there.
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::own::discard;
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, Slot, StoreError};

use super::staging::{BATCH_PAGES, PLACES};
use crate::handles::Ownership;
use crate::page::word::{Place, State, Word};
use crate::pager::Pager;

/// What a staged page's bytes say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They are zeros, which need no store.
    Zeros,
    /// The store has them: they are as they were fetched.
    Backed,
    /// They go to the store.
    Put,
}

/// What is in the staging area, and what would not go there.
pub(super) struct Batch<'p> {
    pager: &'p Pager,
    /// The place in the staging area of the oldest page.
    first: usize,
    /// The pages in the places from there on: whether the word says Staged, and the bytes may have
    /// to go to the store (else the store has them).
    staged: VecDeque<bool>,
    /// Of those that are being finished, pages before this one are put, or needed no put.
    put_up_to: usize,
    unused: Vec<Place>,
    /// Pages that may not be moved: their mapping does not allow it.
    pub(super) refused: Vec<PageNumber>,
    /// Pages that do not move because they are shared with a forked process.
    pub(super) shared: Vec<PageNumber>,
    /// Pages stayed where they are because an event was under way or not acted on yet.
    pub(super) kept_by_events: bool,
}

impl<'p> Batch<'p> {
    /// Nothing is on its way. One thread may have this, the evictor. Preallocates.
    pub(super) fn new(pager: &'p Pager) -> Batch<'p> {
        Batch {
            pager,
            first: 0,
            staged: VecDeque::with_capacity(PLACES),
            put_up_to: 0,
            unused: Vec::with_capacity(2 * BATCH_PAGES),
            refused: Vec::with_capacity(BATCH_PAGES),
            shared: Vec::with_capacity(BATCH_PAGES),
            kept_by_events: false,
        }
    }

    /// Pages staged.
    pub(super) fn len(&self) -> usize {
        self.staged.len()
    }

    /// How many of the `count` oldest most likely go to the store.
    pub(super) fn dirty(&self, count: usize) -> usize {
        let places = (self.first..self.first + count).map(|place| place % PLACES);
        let goes = |(place, dirty): &(usize, &bool)| {
            **dirty && self.pager.staging.backing(*place).is_none()
        };
        places.zip(&self.staged).filter(goes).count()
    }

    /// Claims a run of neighbouring pages (no more than two batches beyond what is held) and moves
    /// it into the staging area. Pages that will not move are left as they were; those of an
    /// `exclusive` run are not shared with another process.
    pub(super) fn stage(&mut self, run: &[PageNumber], exclusive: bool) {
        let mut rest = run;
        while !rest.is_empty() {
            let done = self.stage_some(rest, exclusive);
            rest = &rest[done.max(1).min(rest.len())..];
        }
    }

    /// One move, of as many pages of `run` as go at once; returns how many pages it dealt with.
    fn stage_some(&mut self, run: &[PageNumber], exclusive: bool) -> usize {
        let pager = self.pager;
        let gate = pager.gate.lock();
        if gate.has_events_pending() {
            self.kept_by_events = true;
            run.iter().for_each(|page| pager.enqueue(*page));
            return run.len();
        }
        if self.staged.is_empty() {
            self.first = 0;
        }
        let first = (self.first + self.staged.len()) % PLACES;
        let mut words = [Word::default(); BATCH_PAGES];
        let mut claimed = 0;
        for (page, word) in run.iter().zip(&mut words).take(PLACES - first) {
            *word = pager.table.load(*page);
            let evicting = word.evicting();
            if !evicting.is_some_and(|evicting| pager.table.change(*page, *word, evicting)) {
                break;
            }
            claimed += 1;
        }
        if claimed == 0 {
            // Written or pinned since it was taken from the queue: it is resident all the same, and
            // its turn comes again.
            if pager.table.load(run[0]).is_resident() {
                pager.enqueue(run[0]);
            }
            return 1;
        }
        let target = pager.staging.pages(first, claimed);
        // SAFETY: the pages are claimed and go to places that are free, where nobody looks without
        // the gate; an access of the program meanwhile is a fault that waits for it.
        let progress = unsafe { pager.handles().uffd.move_pages(target, run[0], false) };
        let moved = progress.pages as usize;
        let content_tells = pager.handles().content_tells;
        for (index, (page, word)) in run.iter().zip(&words).take(moved).enumerate() {
            let clean = word.state() == State::Clean;
            let (place, dirty) = (first + index, !clean || content_tells);
            pager.staging.set_owner(place, *page);
            let backing = (clean && content_tells).then(|| word.place());
            pager.staging.set_backing(place, backing);
            if word.is_filled_ahead() {
                pager.staging.set_filled_ahead(place);
            }
            pager.table.update(*page, |now| match dirty {
                true => now.staged(place),
                false => now.moved_out(),
            });
            self.staged.push_back(dirty);
        }
        for (page, word) in run.iter().zip(&words).take(claimed).skip(moved) {
            pager.table.update(*page, |now| now.unclaimed(word.state()));
        }
        if moved > 0 {
            return moved;
        }
        if claimed > 1 && progress.stop == Some(Stop::Refused) {
            // The run may cross the end of a mapping, which the kernel does not allow: try its
            // first half.
            drop(gate);
            return self.stage_some(&run[..claimed / 2], exclusive);
        }
        self.leave(run[0], words[0], progress.stop, exclusive);
        1
    }

    /// A page did not move: what to do with it by the reason. Its word is as it was before the
    /// claim.
    fn leave(&mut self, page: PageNumber, word: Word, stop: Option<Stop>, exclusive: bool) {
        let pager = self.pager;
        self.kept_by_events |= stop == Some(Stop::EventPending);
        match stop {
            // It vanished: the program emptied it without our hearing (MADV_FREE), so nothing is
            // lost.
            Some(Stop::Absent) => {
                pager.table.update(page, Word::vanished);
                if word.state() == State::Clean {
                    pager.stores.release(&[word.place()]);
                }
                pager.budget.unreserve(1);
            }
            Some(Stop::Refused) => self.refused.push(page),
            Some(Stop::Pinned) if !exclusive && pager.has_forked() => self.shared.push(page),
            _ => pager.enqueue(page),
        }
    }

    fn is_staged_at(word: Word, place: usize) -> bool {
        word.state() == State::Staged && word.staging_index() == place
    }

    /// Steps 3 to 5 for all but the `held` youngest. Of those, nothing is lost: what the store has
    /// not taken is back where it was. Returns how many pages the store took, and its error; if it
    /// has one and some are to be held, no more are tried.
    pub(super) fn finish(&mut self, held: usize) -> (usize, Option<StoreError>) {
        let (mut put, mut error) = (0, None);
        while self.staged.len() > held && (error.is_none() || held == 0) {
            let count = (self.staged.len() - held)
                .min(BATCH_PAGES)
                .min(PLACES - self.first);
            let done = self.put(count);
            if done.1.is_some() {
                while !self.give_back(count) {
                    std::thread::yield_now();
                }
            }
            self.drop_frames(count);
            (put, error) = (put + done.0, done.1.or(error));
        }
        (put, error)
    }

    /// Puts the dirty pages of the `count` oldest into the store, and makes them stored. On an
    /// error what was not put stays staged. Returns how many the store took, and the error.
    fn put(&mut self, count: usize) -> (usize, Option<StoreError>) {
        let pager = self.pager;
        let mut fates = [(0, Fate::Put); BATCH_PAGES];
        let fates = self.judge(count, &mut fates);
        let mut pages: [&Page; BATCH_PAGES] = [&Page::ZERO; BATCH_PAGES];
        let mut slots = [Slot(0); BATCH_PAGES];
        let mut full = 0;
        for (index, _) in fates.iter().filter(|(_, fate)| *fate == Fate::Put) {
            // SAFETY: it is being packed.
            pages[full] = unsafe { pager.staging.bytes(self.first + *index) };
            full += 1;
        }
        let (done, error) = pager.stores.put(&pages[..full], &mut slots[..full]);
        // Of those that need the store, the first `done` are there.
        let mut put = 0;
        let settled = fates
            .iter()
            .take_while(|(_, fate)| {
                put += usize::from(*fate == Fate::Put);
                put <= done
            })
            .count();
        self.put_up_to = match fates.get(settled) {
            Some((next, _)) => *next,
            None => count,
        };
        self.settle(&fates[..settled], &slots[..done]);
        (done, error)
    }

    /// What becomes of the dirty pages of the `count` oldest that are still staged, with their
    /// indices. From now on they are being packed. The others have lost what the store has of them.
    fn judge<'a>(
        &mut self,
        count: usize,
        fates: &'a mut [(usize, Fate); BATCH_PAGES],
    ) -> &'a [(usize, Fate)] {
        let (pager, staging) = (self.pager, &self.pager.staging);
        self.unused.clear();
        let mut found = 0;
        // A page that is being renamed (mremap) must not look as if nobody wanted it.
        let gate = pager.gate.lock();
        staging.set_packed(self.first, count);
        for (index, dirty) in self.staged.iter().take(count).enumerate() {
            let place = self.first + index;
            let word = pager.table.load(staging.owner(place));
            if *dirty && Self::is_staged_at(word, place) {
                fates[found].0 = index;
                found += 1;
            } else {
                self.unused.extend(staging.take_backing(place));
            }
        }
        drop(gate);
        for (index, fate) in &mut fates[..found] {
            let place = self.first + *index;
            // SAFETY: it is being packed.
            let bytes = unsafe { staging.bytes(place) };
            let holds = |place: Place| pager.stores.of(place.generation).holds(place.slot, bytes);
            *fate = match bytes.same_filled() {
                Some(0) if !pager.source.has(staging.owner(place)) => Fate::Zeros,
                _ if staging.backing(place).is_some_and(holds) => Fate::Backed,
                _ => Fate::Put,
            };
        }
        &fates[..found]
    }

    /// Makes pages stored, or untouched, by their fates; `slots` are of those that were put.
    fn settle(&mut self, fates: &[(usize, Fate)], slots: &[Slot]) {
        let (pager, staging) = (self.pager, &self.pager.staging);
        let generation = pager.stores.generation();
        let (mut written, mut kept, mut unused) = (0, 0, 0);
        let mut slots = slots.iter().peekable();
        let gate = pager.gate.lock();
        for (index, fate) in fates.iter().copied() {
            let index = self.first + index;
            let page = staging.owner(index);
            let filled_ahead = staging.is_filled_ahead(index);
            let backing = staging.take_backing(index);
            let put = slots.next_if(|_| fate == Fate::Put).map(|slot| Place {
                generation,
                slot: *slot,
            });
            let place = match fate {
                Fate::Zeros => None,
                Fate::Backed => backing,
                Fate::Put => put,
            };
            // Only pins can change under us: a staged page is taken back with the gate held.
            let was = pager.table.update(page, |word| match place {
                _ if !Self::is_staged_at(word, index) => word,
                Some(place) => {
                    let rewritten = match backing {
                        Some(_) => fate == Fate::Put,
                        None => word.is_rewritten(),
                    };
                    word.written_back(place, rewritten)
                }
                None => word.found_zero(),
            });
            let is_settled = Self::is_staged_at(was, index);
            if backing.is_some() && is_settled {
                pager.backings.note(fate == Fate::Put);
            }
            written += u64::from(is_settled && fate == Fate::Put);
            kept += u64::from(is_settled && fate == Fate::Backed);
            unused += u64::from(is_settled && fate == Fate::Zeros && filled_ahead);
            let used = place.filter(|_| is_settled);
            let unused = [backing, put].into_iter().flatten();
            self.unused
                .extend(unused.filter(|place| Some(*place) != used));
        }
        drop(gate);
        pager.stores.release(&self.unused);
        pager.ledger.writebacks.fetch_add(written, Relaxed);
        pager.ledger.clean_drops.fetch_add(kept, Relaxed);
        pager.filled_ahead.note_unused(unused);
    }

    /// Tries to put the pages of the `count` oldest that the store has not taken back where they
    /// were. False when some could not be for now: an event is under way, which the fault thread
    /// must read first. It also ends this when the place was unmapped.
    fn give_back(&mut self, count: usize) -> bool {
        let mut all = true;
        for index in self.put_up_to..count {
            if self.staged[index] {
                all &= self.give_back_one(self.first + index);
            }
        }
        all
    }

    fn give_back_one(&mut self, index: usize) -> bool {
        let pager = self.pager;
        // Before the gate: those in a read section may wait for it.
        let section = pager.write_notifications.enter_waiting();
        let _gate = pager.gate.lock();
        let page = self.pager.staging.owner(index);
        if !Self::is_staged_at(pager.table.load(page), index) {
            return true;
        }
        let (range, source) = (PageRange::one(page), pager.staging.page(index));
        // A moved page can be written to at once, so one that is write-protected is copied.
        let protected = section.is_write_protected(page);
        let progress = (!protected).then(|| {
            // SAFETY: the page goes back to the place it was taken from, which has been missing
            // since.
            unsafe { pager.handles().uffd.move_pages(range, source, false) }
        });
        let stop = progress.map_or(Some(Stop::Refused), |progress| progress.stop);
        let moved = stop.is_none();
        // A mapping made read-only meanwhile takes no moved page, but a copy; the staged frame is
        // then dropped with the others.
        let copied = stop == Some(Stop::Refused) && {
            let source = source.address() as *const u8;
            // SAFETY: the staging area holds the page's bytes, and its place is missing.
            let progress = unsafe { pager.handles().uffd.copy(range, source, protected) };
            progress.stop.is_none()
        };
        if !moved && !copied {
            return false;
        }
        if moved {
            pager.staging.set_moved_back(index);
        }
        if copied {
            pager.budget.adopt(1);
        }
        let backing = pager.staging.take_backing(index);
        pager.table.update(page, |word| word.taken_back(backing));
        pager.enqueue(page);
        true
    }

    /// Drops the frames of the `count` oldest, whose pages were put or given back, and counts them.
    fn drop_frames(&mut self, count: usize) {
        let (pager, staging) = (self.pager, &self.pager.staging);
        let places = self.first..self.first + count;
        let (mut here, mut evicted) = (0, 0);
        for place in places {
            here += u64::from(!staging.is_moved_back(place));
            evicted += u64::from(!staging.came_back(place));
        }
        let silent = match pager.ownership {
            Ownership::Region | Ownership::SignalRegion => staging.pages(self.first, count),
            Ownership::Program => self.drain(count),
        };
        // SAFETY: everything there is stored, clean or given up: no word says Staged of it any
        // more, so no handler looks there.
        let _ = unsafe { discard(silent) };
        let gate = pager.gate.lock();
        staging.set_packed(0, 0);
        drop(gate);
        let clean = self.staged.drain(..count).filter(|dirty| !dirty).count() as u64;
        self.first = (self.first + count) % PLACES;
        pager.budget.unreserve(here);
        pager.ledger.evictions.fetch_add(evicted, Relaxed);
        pager.ledger.clean_drops.fetch_add(clean, Relaxed);
    }

    /// Moves the frames on to the drain area. Emptying the staging area itself would raise remove
    /// events; the drain area has none.
    ///
    /// Nothing may be left behind, or no page could be moved to its place ever after. A frame may
    /// stay pinned for a moment after it was written to a disk directly: the kernel wakes the
    /// writer first. What will not move is emptied where it is.
    fn drain(&self, count: usize) -> PageRange {
        const TRIES: u32 = 1000;
        let pager = self.pager;
        let staged = pager.staging.pages(self.first, count);
        let drain = pager.staging.drain(count);
        let (mut moved, mut tries) = (0, 0);
        while moved < drain.pages() {
            let source = staged.after(moved).start;
            // SAFETY: the caller gives up these frames; no word leads a handler to them, and the
            // drain area is this thread's own.
            let progress = unsafe {
                let uffd = &pager.handles().drain_uffd;
                uffd.move_pages(drain.after(moved), source, true)
            };
            moved += progress.pages;
            match progress.stop {
                None | Some(Stop::EventPending) => {}
                Some(Stop::Pinned) if tries < TRIES => {
                    tries += 1;
                    std::thread::yield_now();
                }
                Some(_) => {
                    // SAFETY: as above. The remove event says nothing to the fault thread: the area
                    // is not the program's.
                    let _ = unsafe { discard(staged.after(moved)) };
                    break;
                }
            }
        }
        drain
    }
}
