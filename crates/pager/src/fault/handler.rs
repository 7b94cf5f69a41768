//! Serving one fault: match what the page word says, claim the page, read its bytes, install them,
//! publish that.
//!
//! Any number of threads may serve faults of one pager, each with a [`Handler`] of its own: a page
//! is claimed by changing its word to Loading, so it is fetched once. A handler waits for the
//! evictor at the gate, for the length of one move, and only where it may block (not in a signal
//! handler); for room, or anything else that takes longer, it does not wait: the fault is given
//! back with the reason.
use std::time::Duration;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::uffd::{Progress, Stop};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_store::{ErrorKind, Page, Slot, StoreError};

use super::claim::{Claim, Purpose};
use super::predict::WritePredictor;
use super::recent::Recent;
use super::scattered::Scattered;
use super::walks::Walks;
use crate::budget::Reservation;
use crate::handles::{StartError, system};
use crate::page::word::{State, Word};
use crate::pager::Pager;
use crate::write_notification::ReadSection;

/// Most pages installed at once, of a scan: a huge page.
pub(super) const RUN_PAGES: usize = 512;
/// Tries of a failing read before the page is given up; the store's own retries come on top.
const FETCH_TRIES: u32 = 3;

/// A fault to serve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// Where.
    pub(crate) page: PageNumber,
    /// The access was a write.
    pub(crate) write: bool,
    /// The page is there and write-protected.
    pub(crate) write_protect: bool,
    /// When it was read from the userfaultfd.
    pub(crate) read_at_ns: u64,
    /// It was tried, and found no room.
    pub(crate) waited: bool,
}

/// What became of a fault. The closed set of outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The page was installed, or made writable.
    Installed,
    /// Nothing to do any more; the thread was woken to try again.
    Woken,
    /// An event must be read first.
    EventPending,
    /// The evictor must make room first.
    NoRoom,
    /// A snapshot has no room for the page's old bytes at the moment.
    NoRoomForOldBytes,
    /// Another thread is busy with the page: try again.
    Busy,
}

/// What one thread needs to serve faults, and what it has seen of late.
pub(crate) struct Handler<'p> {
    pub(super) pager: &'p Pager,
    /// Where pages are read to.
    pub(super) buffer: Mapping,
    pub(super) zeros: Mapping,
    pub(super) walks: Walks,
    pub(super) scattered: Scattered,
    pub(super) recent: Recent,
    pub(super) predictor: WritePredictor,
    /// May wait for a lock that the evictor holds (a signal handler may not).
    pub(super) may_block: bool,
    /// Pages are fetched to leave the pager, whatever the budget.
    pub(crate) detaching: bool,
}

impl<'p> Handler<'p> {
    /// Ready to serve; preallocates. One that may not block is for signal handlers.
    pub(crate) fn new(pager: &'p Pager, may_block: bool) -> Result<Handler<'p>, StartError> {
        let map = || Mapping::new(RUN_PAGES * PAGE_SIZE).map_err(system("mmap"));
        Ok(Handler {
            pager,
            buffer: map()?,
            zeros: map()?,
            walks: Walks::default(),
            scattered: Scattered::default(),
            recent: Recent::default(),
            predictor: WritePredictor::default(),
            may_block,
            detaching: false,
        })
    }

    /// One that reads ahead of scans. What a device writes to a huge page is one piece to it.
    pub(crate) fn for_scans(pager: &'p Pager) -> Result<Handler<'p>, StartError> {
        Ok(Handler {
            buffer: Mapping::huge().map_err(system("mmap"))?,
            ..Handler::new(pager, true)?
        })
    }

    /// Serves `fault` if that can be done now.
    pub(crate) fn serve(&mut self, fault: Fault) -> Outcome {
        let Some(section) = self.pager.write_notifications.enter() else {
            return Outcome::Busy;
        };
        loop {
            let word = self.pager.table.load(fault.page);
            if let Some(outcome) = self.serve_as(word, fault, &section) {
                return outcome;
            }
        }
    }

    /// By what `word` says; none if it has changed since.
    fn serve_as(&mut self, word: Word, fault: Fault, section: &ReadSection<'_>) -> Option<Outcome> {
        let page = fault.page;
        Some(match word.state() {
            // It is stored now.
            State::Untouched if self.pager.source.reveal(&self.pager.table, page) => return None,
            State::Untouched => self.fill_zeros(page, section),
            State::Stored => self.fetch_one(page, fault.write, section),
            State::Resident | State::Clean | State::Protecting if fault.write_protect => {
                return self.first_write(page, word, section);
            }
            State::Resident | State::Clean | State::Protecting => self.refill_vanished(page, word),
            State::Staged => self.take_back(page, section),
            State::Poisoned => self.poison(page),
            // The evictor holds the gate while it moves the page; once the gate opens the word says
            // what became of it.
            State::Evicting if self.may_block => {
                drop(self.pager.gate.lock());
                return None;
            }
            State::Evicting | State::Dropping | State::Loading => Outcome::Busy,
        })
    }

    fn fetch_one(&mut self, page: PageNumber, write: bool, section: &ReadSection<'_>) -> Outcome {
        let pager = self.pager;
        let room = match self.detaching {
            true => Some(pager.budget.reserve_anyway(1)),
            false => pager.budget.reserve_for(page),
        };
        let Some(room) = room else {
            return Outcome::NoRoom;
        };
        let Some(mut claim) = Claim::stored(&pager.table, PageRange::one(page)) else {
            return Outcome::Busy;
        };
        match self.fetch(&mut claim, room, Purpose::Demand { write }, section) {
            Ok(progress) => self.outcome(page, progress),
            Err(error) => self.lose(page, claim, &error),
        }
    }

    /// The one way from a store into memory, for one page or a run of neighbours: reads the pages
    /// of `claim`, installs them with one call, and publishes what was installed.
    pub(super) fn fetch(
        &mut self,
        claim: &mut Claim<'p>,
        mut room: Reservation<'p>,
        purpose: Purpose,
        section: &ReadSection<'_>,
    ) -> Result<Progress, StoreError> {
        self.read(claim, purpose)?;
        let handles = self.pager.handles();
        let useless = handles.content_tells && !self.pager.backings.are_useful();
        let likely = claim.is_rewritten() || useless;
        let expected = match purpose {
            // What it is kept for is not worth its memory.
            _ if self.pager.footprint.is_scarce() => true,
            _ if handles.content_tells => self.predictor.expects_write(likely),
            Purpose::Demand { write: true } => true,
            Purpose::Demand { .. } => self.predictor.expects_write(likely),
            Purpose::Ahead | Purpose::Load => likely,
        };
        let observed = section.any_write_protected(claim.pages());
        let unprotected = handles.content_tells || expected || !handles.copy_protects;
        let protect = observed || !unprotected;
        // SAFETY: the buffer holds the pages' bytes (verified by the store's checksum), and COPY
        // never overwrites a page.
        let progress = unsafe { (handles.uffd).copy(claim.pages(), self.buffer.as_ptr(), protect) };
        room.keep(progress.pages);
        if progress.pages > 0 {
            let backed = protect || handles.content_tells && !expected;
            self.publish_fetched(claim, progress.pages, backed, purpose);
        }
        Ok(progress)
    }

    /// Reads the pages of `claim` into the buffer. One that a fault waits for is asked for a few
    /// times; others are left to whoever needs them, who then says what is lost.
    fn read(&mut self, claim: &Claim<'_>, purpose: Purpose) -> Result<(), StoreError> {
        // SAFETY: the buffer has RUN_PAGES pages and is this thread's alone.
        let pages = unsafe {
            std::slice::from_raw_parts_mut(self.buffer.as_ptr().cast::<Page>(), RUN_PAGES)
        };
        let first = claim.word(0).place();
        let store = self.pager.stores.of(first.generation);
        if !matches!(purpose, Purpose::Demand { .. }) {
            let count = claim.pages().pages() as usize;
            let mut slots = [Slot(0); RUN_PAGES];
            for (slot, index) in slots[..count].iter_mut().zip(0..) {
                *slot = claim.word(index).place().slot;
            }
            return store.get_many(&slots[..count], &mut pages[..count]);
        }
        let mut tries = 0;
        loop {
            match store.get(first.slot, &mut pages[0]) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.note_error();
                    tries += 1;
                    if tries >= FETCH_TRIES || error.kind == ErrorKind::Away {
                        return Err(error);
                    }
                    std::thread::sleep(Duration::from_millis(1 << (2 * tries)));
                }
            }
        }
    }

    /// What the kernel said of installing `page`.
    pub(super) fn outcome(&self, page: PageNumber, progress: Progress) -> Outcome {
        match progress.stop {
            _ if progress.pages > 0 => Outcome::Installed,
            Some(Stop::EventPending) => Outcome::EventPending,
            _ => self.wake(page),
        }
    }

    pub(super) fn wake(&self, page: PageNumber) -> Outcome {
        self.pager.handles().uffd.wake(PageRange::one(page));
        Outcome::Woken
    }
}
