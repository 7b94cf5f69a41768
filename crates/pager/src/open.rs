//! The first write to a page that somebody watches.
use pagetide_kernel::PageNumber;

use super::page::word::{State, Word};
use super::serve::{Outcome, Server};
use super::watch::{Inside, Opened};

impl Server<'_> {
    /// Has the watcher told and the page made writable. It is pinned meanwhile, so that it stays.
    pub(super) fn open_closed(
        &mut self,
        page: PageNumber,
        word: Word,
        inside: &Inside<'_>,
    ) -> Outcome {
        let pager = self.pager;
        let Some(watcher) = inside.watcher_of(page) else {
            return Outcome::Busy;
        };
        // An eviction in place that finds the page taken gives it up.
        let taken = word.recalled().pinned();
        if !taken.is_some_and(|taken| pager.table.change(page, word, taken)) {
            return Outcome::Busy;
        }
        let mut superfluous = None;
        let opened = watcher.open(page, &mut || {
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
        match opened {
            Opened::Yes => Outcome::Installed,
            Opened::Busy => Outcome::Busy,
            Opened::NoRoom => Outcome::NoRoomForOldBytes,
        }
    }
}
