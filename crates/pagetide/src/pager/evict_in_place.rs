//! Eviction of pages that cannot be moved: read-only, inaccessible and executable mappings, pages shared by fork, kernels before 6.8.
//!
//! The page is write-protected, copied, put into the store and then emptied where it is. A write in between takes it back. Slower than
//! moving, and blind to devices: but a device that writes to memory must first break the protection, and memory it has pinned for writing
//! before that is writable memory, which is moved. A locked page refuses to be emptied and stays.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::memory::drop_pages;
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, Slot};

use super::evict::Evictor;
use super::word::{Place, REMOVED, State, Word};
use super::{Ownership, Pager};

/// A call of the program was under way for so long that the page was left where it is: no use in trying the next one now.
pub(super) struct KeptOut;

impl Pager {
    /// Whether page words may name what is no longer there: events are unread, or not acted on. The gate is held.
    fn is_renaming(&self) -> bool {
        self.renaming.load(Relaxed)
            || self.ownership == Ownership::Program && self.has_event_pending()
    }
}

impl Evictor<'_> {
    /// Evicts the pages that would not move. Those that cannot be evicted here either go to the end of the queue.
    pub(super) fn evict_in_place(&mut self) {
        let mut kept_out = false;
        for page in std::mem::take(&mut self.outgoing.refused) {
            let word = self.pager.table.load(page);
            let done = match word.state() {
                _ if kept_out || word.pins() > 0 => Ok(()),
                State::Clean => self.drop_clean_in_place(page, word),
                // A store that has refused one page would refuse the others.
                State::Resident if !self.health.has_refused() => {
                    self.evict_one_in_place(page, word)
                }
                _ => Ok(()),
            };
            kept_out |= done.is_err();
            if self.pager.table.load(page).is_resident() {
                self.pager.enqueue(page);
            }
        }
    }

    fn evict_one_in_place(&mut self, page: PageNumber, word: Word) -> Result<(), KeptOut> {
        let pager = self.pager;
        let protecting = word.with_state(State::Protecting);
        // Memory that is being moved leaves with its words, and this page must not be among them then.
        let gate = pager.gate.lock();
        let renaming = pager.renaming.load(Relaxed);
        self.outgoing.kept_by_events |= renaming;
        if renaming || !pager.table.change(page, word, protecting) {
            return Ok(());
        }
        drop(gate);
        let mut bytes = Page::ZERO;
        let handles = pager.handles();
        let protected = handles.uffd.write_protect(PageRange::one(page), true);
        self.outgoing.kept_by_events |= protected == Err(Stop::EventPending);
        let copied = protected.is_ok() && handles.memory.read(page, &mut bytes.0).is_ok();
        let mut slot = [Slot(0)];
        if !copied {
            self.keep(page, State::Protecting);
            return Ok(());
        }
        match pager.active_store().put(&[&bytes], &mut slot) {
            Ok(()) => self.note_puts(1, None),
            Err(error) => {
                self.keep(page, State::Protecting);
                self.note_puts(0, Some(error));
                return Ok(());
            }
        }
        let place = Place {
            generation: pager.generation(),
            slot: slot[0],
        };
        let alone = pager.exclusion.enter_evictor();
        let gate = pager.gate.lock();
        let renaming = alone.is_none() || pager.is_renaming();
        let was = pager.table.update(page, |now| match now.state() {
            State::Protecting if !renaming && !now.has(REMOVED) => {
                now.with_place(place).with_state(State::Dropping)
            }
            _ => now,
        });
        drop(gate);
        // What the program has removed is not there any more, and something else may be.
        if renaming || was.has(REMOVED) {
            self.outgoing.kept_by_events |= renaming;
            pager.release(&[place]);
            self.keep(page, State::Protecting);
            return alone.map(|_| ()).ok_or(KeptOut);
        }
        if was.state() != State::Protecting {
            // Written meanwhile; the fault thread has taken the protection off.
            pager.release(&[place]);
        } else {
            self.finish_drop(page, false);
        }
        Ok(())
    }

    /// Drops a clean page where it is: it is protected and the store has its bytes.
    pub(super) fn drop_clean_in_place(
        &mut self,
        page: PageNumber,
        word: Word,
    ) -> Result<(), KeptOut> {
        let pager = self.pager;
        let Some(_alone) = pager.exclusion.enter_evictor() else {
            self.outgoing.kept_by_events = true;
            return Err(KeptOut);
        };
        let gate = pager.gate.lock();
        let renaming = pager.is_renaming();
        self.outgoing.kept_by_events |= renaming;
        let claimed = !renaming
            && pager
                .table
                .change(page, word, word.with_state(State::Dropping));
        drop(gate);
        if claimed {
            self.finish_drop(page, true);
        }
        Ok(())
    }

    /// Empties a Dropping page and makes it Stored, or puts it back if it may not be emptied.
    fn finish_drop(&mut self, page: PageNumber, was_clean: bool) {
        let pager = self.pager;
        let range = PageRange::one(page);
        let own_drops = || {
            pager
                .own_drops
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        if pager.ownership == Ownership::Program {
            own_drops().push(range);
        }
        // SAFETY: the store holds the page's bytes and its word says so; faults on it wait until this is over.
        let dropped = unsafe { drop_pages(range) }.is_ok();
        if !dropped {
            own_drops().retain(|own| *own != range);
        }
        let gate = pager.gate.lock();
        let was = pager
            .table
            .update(page, |w| match (w.has(REMOVED), dropped) {
                (true, _) => w.emptied(),
                (false, true) => w.with_state(State::Stored),
                (false, false) if was_clean => w.with_state(State::Clean),
                (false, false) => w.without_place().with_state(State::Resident),
            });
        drop(gate);
        if was.has(REMOVED) || !dropped && !was_clean {
            pager.release(&[was.place()]);
        }
        if dropped || was.has(REMOVED) {
            pager.unreserve(1);
        }
        if dropped {
            pager.ledger.evictions.fetch_add(1, Relaxed);
            if was_clean {
                pager.ledger.clean_drops.fetch_add(1, Relaxed);
            } else {
                pager.ledger.writebacks.fetch_add(1, Relaxed);
            }
        } else if !was_clean {
            self.unprotect(page);
        }
    }

    /// Ends the protection of a page that stays, unless somebody watches for writes to it.
    fn unprotect(&self, page: PageNumber) {
        let pager = self.pager;
        let inside = pager.watch.enter_waiting();
        if !inside.is_closed(page) {
            let range = PageRange::one(page);
            let _ = pager.handles().uffd.write_protect(range, false);
        }
    }

    /// Gives up evicting a Protecting page.
    fn keep(&mut self, page: PageNumber, state: State) {
        let pager = self.pager;
        let was = pager.table.update(page, |w| match w.state() {
            s if s == state && w.has(REMOVED) => w.emptied(),
            s if s == state => w.without_place().with_state(State::Resident),
            _ => w,
        });
        if was.state() == state && was.has(REMOVED) {
            pager.unreserve(1);
        }
        self.unprotect(page);
    }
}
