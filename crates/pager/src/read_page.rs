//! A page's bytes, wherever they are, without making it resident.
use std::time::Duration;

use pagetide_kernel::PageNumber;
use pagetide_store::{Page, StoreError};

use crate::page::word::{State, Word};
use crate::pager::Pager;

/// Tries of a failing read; the store's own retries come on top.
const TRIES: u32 = 3;

/// What was found.
#[derive(Debug)]
pub enum PageRead {
    /// The bytes are where they were asked for.
    Bytes,
    /// The page holds zeros.
    Zeros,
    /// One of the pager's threads is moving it: look again.
    Busy,
    /// The store cannot give it.
    Lost(Option<StoreError>),
}

impl Pager {
    /// Copies the bytes of `page` to `into`. Nobody may write to the page meanwhile. Not for the
    /// pager's own threads, nor for a signal handler.
    pub fn read_page(&self, page: PageNumber, into: &mut Page) -> PageRead {
        let word = self.table.load(page);
        match word.state() {
            State::Untouched if self.source.reveal(&self.table, page) => PageRead::Busy,
            State::Untouched => PageRead::Zeros,
            State::Resident | State::Clean => self.read_resident(page, word, into),
            State::Staged => self.read_staged(page, into),
            State::Stored => self.read_stored(page, word, into),
            State::Poisoned => PageRead::Lost(None),
            State::Evicting | State::Loading | State::Protecting | State::Dropping => {
                PageRead::Busy
            }
        }
    }

    /// Pinned, it stays while it is read.
    fn read_resident(&self, page: PageNumber, word: Word, into: &mut Page) -> PageRead {
        let pinned = word.pinned();
        if !pinned.is_some_and(|pinned| self.table.change(page, word, pinned)) {
            return PageRead::Busy;
        }
        // SAFETY: the word says present, and the pin keeps it so; nobody writes to it, by the
        // caller's word.
        unsafe { std::ptr::copy_nonoverlapping(page.address() as *const Page, into, 1) };
        self.table.update(page, Word::unpinned);
        PageRead::Bytes
    }

    fn read_staged(&self, page: PageNumber, into: &mut Page) -> PageRead {
        let _gate = self.gate.lock();
        let word = self.table.load(page);
        if word.state() != State::Staged {
            return PageRead::Busy;
        }
        // SAFETY: while the word says Staged and the gate is held, the staging area holds the
        // page's bytes.
        into.0 = unsafe { self.staging.bytes(word.staging_index()) }.0;
        PageRead::Bytes
    }

    /// Claimed as for a fetch, so that its place in the store stays its own; then it is Stored as
    /// before.
    fn read_stored(&self, page: PageNumber, word: Word, into: &mut Page) -> PageRead {
        if !self.table.change(page, word, word.claimed()) {
            return PageRead::Busy;
        }
        let place = word.place();
        let mut tries = 0;
        let result = loop {
            match self.stores.of(place.generation).get(place.slot, into) {
                Err(_) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1 << (2 * tries)));
                }
                result => break result,
            }
        };
        self.table.update(page, |now| now.unclaimed(word.state()));
        match result {
            Ok(()) => PageRead::Bytes,
            Err(error) => PageRead::Lost(Some(error)),
        }
    }
}
