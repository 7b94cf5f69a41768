//! The first write to a page that is write-protected: it is clean, being evicted in place, or
//! somebody observes it.
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};

use super::handler::{Handler, Outcome};
use crate::page::word::{State, Word};
use crate::recorder::Kind;
use crate::write_notification::{FirstWrite, ReadSection, WriteObserver};

impl Handler<'_> {
    /// Makes a present page writable, telling who observes; none if its word is not `word` any
    /// more.
    ///
    /// The page is pinned meanwhile: an eviction that began in between would protect the page anew
    /// and take its bytes, or a fetch show it as clean, and what is written after this late end of
    /// the protection would be lost.
    pub(super) fn first_write(
        &mut self,
        page: PageNumber,
        word: Word,
        section: &ReadSection<'_>,
    ) -> Option<Outcome> {
        match section.observer_of(page) {
            Some(observer) => Some(self.notify_observer(page, word, observer)),
            None => self.make_writable(page, word),
        }
    }

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

    /// Tells the observer, which has the page made writable.
    fn notify_observer(
        &mut self,
        page: PageNumber,
        word: Word,
        observer: &dyn WriteObserver,
    ) -> Outcome {
        let pager = self.pager;
        // An eviction in place that finds the page taken gives it up.
        let taken = word.recalled().pinned();
        if !taken.is_some_and(|taken| pager.table.change(page, word, taken)) {
            return Outcome::Busy;
        }
        let mut superfluous = None;
        let first_write = observer.before_write(page, &mut || {
            let was = pager.table.update(page, Word::written);
            if was.state() == State::Clean {
                superfluous = Some(was.place());
                self.predictor.note_clean_write();
            }
            let _ = self.unprotect(page);
        });
        pager.table.update(page, Word::unpinned);
        if let Some(place) = superfluous {
            self.release(place);
        }
        match first_write {
            FirstWrite::Allowed => Outcome::Installed,
            FirstWrite::Busy => Outcome::Busy,
            FirstWrite::NoRoom => Outcome::NoRoomForOldBytes,
        }
    }

    fn unprotect(&self, page: PageNumber) -> Outcome {
        let range = PageRange::one(page);
        match self.pager.handles().uffd.write_protect(range, false) {
            Ok(()) => Outcome::Installed,
            // The page's state says writable already; only the protection is left to be taken off,
            // and the next try does.
            Err(Stop::EventPending) => Outcome::EventPending,
            Err(_) => self.wake(page),
        }
    }
}
