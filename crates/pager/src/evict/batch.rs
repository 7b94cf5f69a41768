//! A batch of pages on their way out, in four steps (the first, choosing, is the policy's):
//!
//! 2. [`Batch::stage`]: for each run of neighbours, holding the gate: claim its pages and move them
//!    out of the program into the staging area, atomically. From here an access to them is a fault.
//! 3. Put the dirty ones into the store (clean ones are there already), no lock held.
//! 4. Settle, holding the gate: each page whose word still says Staged becomes Stored; the others
//!    were taken back or emptied. If the store refused them, they go back to where they were.
//! 5. Drop the frames. Steps 3 to 5 are [`Batch::finish`].
//!
//! A page's frame is dropped only when its word no longer says Staged: it is stored, was clean, was
//! taken back, or was given up by the program. Until then its bytes are in the staging area, and a
//! fault takes them back from there.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::own::discard;
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, Slot, StoreError};

use super::staging::BATCH_PAGES;
use crate::handles::Ownership;
use crate::page::word::{Place, State, Word};
use crate::pager::Pager;

/// A page in the staging area. Whose it is, [`super::staging::Staging::owner`] tells.
#[derive(Debug, Clone, Copy)]
struct Staged {
    /// Goes to the store (else the store has it).
    dirty: bool,
    /// Still in the staging area: not moved back.
    here: bool,
}

/// What is in the staging area, and what would not go there.
pub(super) struct Batch<'p> {
    pager: &'p Pager,
    staged: Vec<Staged>,
    /// Pages before this index are put, or needed no put.
    put_up_to: usize,
    unused: Vec<Place>,
    /// Pages that may not be moved: their mapping does not allow it.
    pub(super) refused: Vec<PageNumber>,
    /// Pages that do not move because they are shared with a forked process.
    pub(super) shared: Vec<PageNumber>,
    /// Pages did not move because an event was under way or not acted on yet.
    pub(super) kept_by_events: bool,
}

impl<'p> Batch<'p> {
    /// Nothing is on its way. One thread may have this, the evictor. Preallocates.
    pub(super) fn new(pager: &'p Pager) -> Batch<'p> {
        Batch {
            pager,
            staged: Vec::with_capacity(BATCH_PAGES),
            put_up_to: 0,
            unused: Vec::with_capacity(BATCH_PAGES),
            refused: Vec::with_capacity(BATCH_PAGES),
            shared: Vec::with_capacity(BATCH_PAGES),
            kept_by_events: false,
        }
    }

    /// How many pages were staged that go to the store, or went there.
    pub(super) fn dirty(&self) -> usize {
        self.staged.iter().filter(|s| s.dirty).count()
    }

    /// Claims a run of neighbouring pages (no more than a batch with those already staged) and
    /// moves it into the staging area. Pages that will not move are left as they were; those of an
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
        let mut words = [Word::default(); BATCH_PAGES];
        let mut claimed = 0;
        for (page, word) in run.iter().zip(&mut words) {
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
        let first = self.staged.len();
        let target = PageRange::of(pager.staging.page(first), claimed as u64);
        // SAFETY: the pages are claimed and go where this thread alone looks; an access of the
        // program meanwhile is a fault that waits for the gate.
        let progress = unsafe { pager.handles().uffd.move_pages(target, run[0], false) };
        let moved = progress.pages as usize;
        for (index, (page, word)) in run.iter().zip(&words).take(moved).enumerate() {
            let dirty = word.state() == State::Resident;
            if dirty {
                pager.staging.set_owner(first + index, *page);
            }
            pager.table.update(*page, |now| match dirty {
                true => now.staged(first + index),
                false => now.moved_out(),
            });
            self.staged.push(Staged { dirty, here: true });
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

    fn is_staged_at(word: Word, index: usize) -> bool {
        word.state() == State::Staged && word.staging_index() == index
    }

    /// Steps 3 to 5. On return nothing is staged, and nothing is lost: what the store has not taken
    /// is back where it was. Returns how many pages the store took, and its error.
    pub(super) fn finish(&mut self, at_a_time: usize) -> (usize, Option<StoreError>) {
        let (put, error) = self.put(at_a_time);
        if error.is_some() {
            while !self.give_back() {
                std::thread::yield_now();
            }
        }
        self.drop_frames();
        (put, error)
    }

    /// Puts the dirty pages into the store, at most `at_a_time` in a call, and makes them stored.
    /// Zero pages need no store: they go back to being untouched. On an error what was not put
    /// stays staged. Returns how many the store took, and the error.
    fn put(&mut self, at_a_time: usize) -> (usize, Option<StoreError>) {
        let pager = self.pager;
        let mut pages: [&Page; BATCH_PAGES] = [&Page::ZERO; BATCH_PAGES];
        let mut slots = [Slot(0); BATCH_PAGES];
        let mut puts = [(0, false); BATCH_PAGES];
        let (mut count, mut full) = (0, 0);
        // A page that is being renamed (mremap) must not look as if nobody wanted it.
        let gate = pager.gate.lock();
        for next in self.put_up_to..self.staged.len() {
            let word = pager.table.load(self.pager.staging.owner(next));
            if self.staged[next].dirty && Self::is_staged_at(word, next) {
                // SAFETY: staged pages stay where they are until this thread drops or moves them.
                let bytes = unsafe { pager.staging.bytes(next) };
                let is_full = bytes.same_filled() != Some(0);
                if is_full {
                    pages[full] = bytes;
                    full += 1;
                }
                puts[count] = (next, is_full);
                count += 1;
            }
        }
        drop(gate);
        let mut done = 0;
        let error = loop {
            let end = full.min(done + at_a_time.max(1));
            if done == end {
                break None;
            }
            let store = pager.stores.active();
            match store.put(&pages[done..end], &mut slots[done..end]) {
                Ok(()) => done = end,
                Err(error) => break Some(error),
            }
        };
        // Of those that need the store, the first `done` are there.
        let mut put = 0;
        let settled = puts[..count]
            .iter()
            .take_while(|(_, is_full)| {
                put += usize::from(*is_full);
                put <= done
            })
            .count();
        self.put_up_to = match puts[..count].get(settled) {
            Some((next, _)) => *next,
            None => self.staged.len(),
        };
        self.settle(&puts[..settled], &slots[..done]);
        (done, error)
    }

    /// Makes pages that were put stored: `puts` are their indices and whether they took a slot.
    fn settle(&mut self, puts: &[(usize, bool)], slots: &[Slot]) {
        let pager = self.pager;
        let generation = pager.stores.generation();
        self.unused.clear();
        let (mut written, mut next) = (0, 0);
        let gate = pager.gate.lock();
        for (index, is_full) in puts {
            let (page, index) = (self.pager.staging.owner(*index), *index);
            let place = is_full.then(|| {
                next += 1;
                Place {
                    generation,
                    slot: slots[next - 1],
                }
            });
            // Only pins can change under us: a staged page is taken back with the gate held.
            let was = pager.table.update(page, |word| match place {
                _ if !Self::is_staged_at(word, index) => word,
                Some(place) => word.written_back(place),
                None => word.found_zero(),
            });
            match place {
                Some(_) if Self::is_staged_at(was, index) => written += 1,
                Some(place) => self.unused.push(place),
                None => {}
            }
        }
        drop(gate);
        pager.stores.release(&self.unused);
        pager.ledger.writebacks.fetch_add(written, Relaxed);
    }

    /// Tries to put the pages the store has not taken back where they were. False when some could
    /// not be for now: an event is under way, which the fault thread must read first. It also ends
    /// this when the place was unmapped.
    fn give_back(&mut self) -> bool {
        let mut all = true;
        for next in self.put_up_to..self.staged.len() {
            if self.staged[next].dirty {
                all &= self.give_back_one(next);
            }
        }
        all
    }

    fn give_back_one(&mut self, next: usize) -> bool {
        let pager = self.pager;
        // Before the gate: those in a read section may wait for it.
        let section = pager.write_notifications.enter_waiting();
        let _gate = pager.gate.lock();
        let (page, index) = (self.pager.staging.owner(next), next);
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
        self.staged[next].here = !moved;
        if copied {
            pager.budget.adopt(1);
        }
        pager.table.update(page, Word::taken_back);
        pager.enqueue(page);
        true
    }

    /// Drops the frames left in the staging area, whose pages were put or given back, and counts
    /// them.
    fn drop_frames(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let pager = self.pager;
        let silent = match pager.ownership {
            Ownership::Region | Ownership::SignalRegion => pager.staging.first(self.staged.len()),
            Ownership::Program => self.drain(),
        };
        // SAFETY: everything still staged is stored, clean or given up, and the areas are this
        // thread's own.
        let _ = unsafe { discard(silent) };
        let here = self.staged.iter().filter(|s| s.here).count() as u64;
        let clean = self.staged.iter().filter(|s| !s.dirty).count() as u64;
        pager.budget.unreserve(here);
        pager.ledger.evictions.fetch_add(here, Relaxed);
        pager.ledger.clean_drops.fetch_add(clean, Relaxed);
        self.staged.clear();
        self.put_up_to = 0;
    }

    /// Moves the frames on to the drain area. Emptying the staging area itself would raise remove
    /// events; the drain area has none.
    ///
    /// Nothing may be left behind, or no page could be moved to its place ever after. A frame may
    /// stay pinned for a moment after it was written to a disk directly: the kernel wakes the
    /// writer first. What will not move is emptied where it is.
    fn drain(&self) -> PageRange {
        const TRIES: u32 = 1000;
        let pager = self.pager;
        let count = self.staged.len();
        let (staged, drain) = (pager.staging.first(count), pager.staging.drain(count));
        let (mut moved, mut tries) = (0, 0);
        while moved < drain.pages() {
            let source = staged.after(moved).start;
            // SAFETY: the caller gives up these frames; both areas are this thread's own.
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
