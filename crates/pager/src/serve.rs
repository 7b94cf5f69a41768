//! Serving one fault: what the page word says, done.
//!
//! Any number of threads may serve faults of one pager, each with a [`Server`] of its own: a page
//! is claimed by changing its word to Loading, so it is fetched once. A server waits for the
//! evictor at the gate, for the length of one move, and only where it may block (not in a signal
//! handler); for room, or anything else that takes longer, it does not wait: the fault is given
//! back with the reason.
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_store::{ErrorKind, Page};

use super::page::word::{Place, State, Word};
use super::predict::WritePredictor;
use super::prefetch::RUN_PAGES;
use super::protocol::loss::Loss;
use super::recorder::Kind;
use super::watch::Inside;
use super::zero_fill::ZERO_WINDOW_MAX;
use super::{Ownership, Pager, StartError};

/// Tries of a failing read before the page is given up; the store's own retries come on top.
const FETCH_TRIES: u32 = 3;
/// Most of the message about a lost page that is kept.
const MESSAGE_BYTES: usize = 512;
/// Recently installed pages that are watched for coming back at once.
const RECENT: usize = 64;

/// A fault to serve.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Where.
    pub page: PageNumber,
    /// The access was a write.
    pub write: bool,
    /// The page is there and write-protected.
    pub write_protect: bool,
    /// When it was read from the userfaultfd.
    pub read_at_ns: u64,
}

/// What became of a fault. The closed set of outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
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
pub struct Server<'p> {
    pub(super) pager: &'p Pager,
    buffer: Mapping,
    /// Where pages that nobody waits for are read to.
    pub(super) ahead: Mapping,
    pub(super) zeros: Mapping,
    pub(super) next_zero: PageNumber,
    pub(super) zero_window: u64,
    recent: [PageNumber; RECENT],
    recent_next: usize,
    pub(super) predictor: WritePredictor,
    /// May wait for a lock that the evictor holds (a signal handler may not).
    pub(super) may_block: bool,
    /// Pages are fetched to leave the pager, whatever the budget.
    pub(super) detaching: bool,
}

impl<'p> Server<'p> {
    /// Ready to serve; preallocates.
    pub fn new(pager: &'p Pager) -> Result<Server<'p>, StartError> {
        let map = |len| Mapping::new(len).map_err(super::system("mmap"));
        Ok(Server {
            pager,
            buffer: map(PAGE_SIZE)?,
            ahead: map(RUN_PAGES * PAGE_SIZE)?,
            zeros: map(ZERO_WINDOW_MAX as usize * PAGE_SIZE)?,
            next_zero: PageNumber(0),
            zero_window: 1,
            recent: [PageNumber(0); RECENT],
            recent_next: 0,
            predictor: WritePredictor::default(),
            may_block: true,
            detaching: false,
        })
    }

    /// The same, for use in a signal handler: it waits for no lock.
    pub fn new_for_signals(pager: &'p Pager) -> Result<Server<'p>, StartError> {
        Ok(Server {
            may_block: false,
            ..Server::new(pager)?
        })
    }

    /// Whether `page` was installed a moment ago.
    pub fn is_recent(&self, page: PageNumber) -> bool {
        self.recent.contains(&page)
    }

    pub(super) fn remember(&mut self, page: PageNumber) {
        self.recent[self.recent_next % RECENT] = page;
        self.recent_next = self.recent_next.wrapping_add(1);
    }

    /// Serves `fault` if that can be done now.
    pub fn resolve(&mut self, fault: Fault) -> Outcome {
        match self.pager.watch.enter() {
            Some(inside) => self.resolve_inside(fault, &inside),
            None => Outcome::Busy,
        }
    }

    fn resolve_inside(&mut self, fault: Fault, inside: &Inside<'_>) -> Outcome {
        let Fault {
            page,
            write,
            write_protect,
            ..
        } = fault;
        let pager = self.pager;
        let word = pager.table.load(page);
        match word.state() {
            State::Untouched => self.fill_zeros(page, inside),
            State::Resident | State::Clean | State::Protecting
                if write_protect && inside.is_closed(page) =>
            {
                self.open_closed(page, word, inside)
            }
            State::Resident | State::Clean | State::Protecting if write_protect => self
                .make_writable(page, word)
                .unwrap_or_else(|| self.resolve_inside(fault, inside)),
            State::Resident | State::Clean | State::Protecting => self.refill_vanished(page, word),
            State::Stored => self.fetch(page, word, write, inside),
            State::Staged => self.take_back(page, inside),
            State::Poisoned => self.poison(page),
            // The evictor holds the gate while it moves the page; once the gate opens the word says
            // what became of it.
            State::Evicting if self.may_block => {
                drop(pager.gate.lock());
                self.resolve_inside(fault, inside)
            }
            State::Evicting | State::Dropping | State::Loading => Outcome::Busy,
        }
    }

    /// Ends the protection of a page that is written to; none if its word is not `word` any more.
    /// It is pinned meanwhile: an eviction that began in between would protect the page anew and
    /// take its bytes, or a fetch show it as clean, and what is written after this late end of the
    /// protection would be lost.
    fn make_writable(&mut self, page: PageNumber, word: Word) -> Option<Outcome> {
        let pager = self.pager;
        let Some(writable) = word.written().pinned() else {
            return Some(Outcome::Busy);
        };
        if !pager.table.change(page, word, writable) {
            return None;
        }
        if word.state() == State::Clean {
            self.release(word.place());
            pager.record(page, Kind::CleanWrite);
            self.predictor.note_clean_write();
        }
        let outcome = self.unprotect(page);
        pager.table.update(page, Word::unpinned);
        Some(outcome)
    }

    /// The slot of `place` is needed no more. Giving it back takes the store's locks and may
    /// allocate, so it is left to the evictor; in a signal handler also when so many wait that
    /// there is no room for one more.
    pub(super) fn release(&self, place: Place) {
        let pager = self.pager;
        while !pager.release_later(place) {
            if self.may_block {
                return pager.release(&[place]);
            }
            pager.work.ring();
            std::thread::yield_now();
        }
    }

    pub(super) fn unprotect(&mut self, page: PageNumber) -> Outcome {
        let range = PageRange::one(page);
        match self.pager.handles().uffd.write_protect(range, false) {
            Ok(()) => Outcome::Installed,
            // The page's state says writable already; only the protection is left to be taken off,
            // and the next try does.
            Err(Stop::EventPending) => Outcome::EventPending,
            Err(_) => self.wake(page),
        }
    }

    pub(super) fn wake(&self, page: PageNumber) -> Outcome {
        self.pager.handles().uffd.wake(PageRange::one(page));
        Outcome::Woken
    }

    /// A page believed present is missing: the program emptied it (an event already seen, or
    /// `MADV_FREE`), so it holds zeros. Or the fault is an old one and the page is there, or the
    /// evictor is taking it out just now: then zeros would be wrong bytes. So the page is claimed
    /// first, as for a fetch; a region's memory is emptied by nobody, and its faults of this kind
    /// are all old.
    fn refill_vanished(&mut self, page: PageNumber, word: Word) -> Outcome {
        let pager = self.pager;
        if pager.ownership != Ownership::Program {
            return self.wake(page);
        }
        if !pager.table.change(page, word, word.claimed()) {
            return Outcome::Busy;
        }
        // SAFETY: zeros are what emptied memory holds, and COPY never overwrites a page.
        let progress = unsafe {
            let uffd = &pager.handles().uffd;
            uffd.copy(PageRange::one(page), self.zeros.as_ptr(), false)
        };
        let filled = progress.stop.is_none();
        pager.table.update(page, |now| match word.state() {
            State::Clean if !filled => now.unclaimed(word),
            // An eviction in place that finds the page claimed gives it up. What the program has
            // removed meanwhile was the page before.
            _ => now.filled(),
        });
        // The evictor may have passed it over meanwhile.
        pager.enqueue(page);
        if filled {
            if word.state() == State::Clean {
                self.release(word.place());
            }
            pager.ledger.zero_fills.fetch_add(1, Relaxed);
            return Outcome::Installed;
        }
        match progress.stop {
            Some(Stop::EventPending) => Outcome::EventPending,
            _ => self.wake(page),
        }
    }

    fn fetch(&mut self, page: PageNumber, word: Word, write: bool, inside: &Inside<'_>) -> Outcome {
        let pager = self.pager;
        if self.detaching {
            pager.adopt(1);
        } else if !pager.reserve_for(page) {
            return Outcome::NoRoom;
        }
        if !pager.table.change(page, word, word.claimed()) {
            pager.unreserve(1);
            return Outcome::Busy;
        }
        if let Err(error) = self.read_store(word) {
            pager.unreserve(1);
            return self.lose(page, word, &error);
        }
        let unprotected =
            write || !pager.handles().copy_protects || self.predictor.expects_write(word);
        let writable = unprotected && !inside.is_closed(page);
        // SAFETY: the buffer holds the page's bytes (verified by the store's checksum), and COPY
        // never overwrites a page.
        let progress = unsafe {
            pager
                .handles()
                .uffd
                .copy(PageRange::one(page), self.buffer.as_ptr(), !writable)
        };
        match progress.stop {
            None => {
                if writable {
                    let rewritten = write || word.is_rewritten();
                    let update = |now: Word| now.fetched_writable(rewritten);
                    pager.table.update(page, update);
                    self.release(word.place());
                } else {
                    // Not expected to be written, or not any more: a write tells.
                    pager.table.update(page, Word::fetched_clean);
                    self.predictor.note_clean_install();
                }
                pager.enqueue(page);
                pager.ledger.fetches.fetch_add(1, Relaxed);
                pager.ledger.fetched_pages.fetch_add(1, Relaxed);
                pager.record(page, if write { Kind::Write } else { Kind::Read });
                self.remember(page);
                self.follow_stream(page);
                Outcome::Installed
            }
            Some(stop) => {
                pager.table.update(page, |now| now.unclaimed(word));
                pager.unreserve(1);
                if stop == Stop::EventPending {
                    Outcome::EventPending
                } else {
                    self.wake(page)
                }
            }
        }
    }

    fn read_store(&mut self, word: Word) -> Result<(), pagetide_store::StoreError> {
        let place = word.place();
        // SAFETY: the buffer is one page of our own mapping, used by this thread alone.
        let page = unsafe { &mut *self.buffer.as_ptr().cast::<Page>() };
        let mut tries = 0;
        loop {
            match self.pager.store(place.generation).get(place.slot, page) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.pager.ledger.errors.fetch_add(1, Relaxed);
                    tries += 1;
                    if tries >= FETCH_TRIES || error.kind == ErrorKind::Away {
                        return Err(error);
                    }
                    std::thread::sleep(Duration::from_millis(1 << (2 * tries)));
                }
            }
        }
    }

    /// The store cannot give the bytes of a page that this thread has claimed: it is never shown as
    /// zeros.
    fn lose(
        &mut self,
        page: PageNumber,
        word: Word,
        error: &pagetide_store::StoreError,
    ) -> Outcome {
        // On the stack: this may be a signal handler.
        let mut text = [0; MESSAGE_BYTES];
        let mut cursor = std::io::Cursor::new(&mut text[..]);
        let store = self.pager.store(word.place().generation);
        let _ = write!(
            cursor,
            "data were lost: page at {:#x} is lost: {error}; it was in the {} store",
            page.address(),
            store.capabilities().scheme
        );
        let len = cursor.position() as usize;
        let message = String::from_utf8_lossy(&text[..len]);
        if !self.pager.handles().can_poison() {
            self.pager.end_process_for(Loss::Page, &message);
        }
        self.pager.ledger.set_loss(Loss::Page, message.as_bytes());
        self.pager.table.update(page, Word::lost);
        self.poison(page)
    }

    fn poison(&mut self, page: PageNumber) -> Outcome {
        match self.pager.handles().uffd.poison(PageRange::one(page)).stop {
            Some(Stop::EventPending) => Outcome::EventPending,
            None => Outcome::Installed,
            _ => self.wake(page),
        }
    }

    /// The page is on its way out and wanted again: copied back from the staging area. The evictor
    /// sees by the word that it is taken.
    fn take_back(&mut self, page: PageNumber, inside: &Inside<'_>) -> Outcome {
        let pager = self.pager;
        let gate = match self.may_block {
            true => Some(pager.gate.lock()),
            false => pager.gate.try_lock(),
        };
        let Some(_gate) = gate else {
            return Outcome::Busy;
        };
        let word = pager.table.load(page);
        if word.state() != State::Staged {
            return self.wake(page);
        }
        // The staged frame still counts until the evictor has dropped it, so this one needs room of
        // its own.
        if !pager.reserve(1) {
            return Outcome::NoRoom;
        }
        let source = pager.staged_page(word.staging_index()).address() as *const u8;
        // SAFETY: while the word says Staged and the gate is held, the staging area holds the
        // program's bytes.
        let progress = unsafe {
            pager
                .handles()
                .uffd
                .copy(PageRange::one(page), source, inside.is_closed(page))
        };
        match progress.stop {
            None => {
                pager.table.update(page, Word::taken_back);
                pager.enqueue(page);
                Outcome::Installed
            }
            Some(stop) => {
                pager.unreserve(1);
                match stop {
                    Stop::EventPending => Outcome::EventPending,
                    _ => self.wake(page),
                }
            }
        }
    }
}
