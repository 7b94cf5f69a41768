//! First use of a page: zeros, for it and for those after it when a thread walks through fresh
//! memory.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};

use super::Pager;
use super::page::word::{State, Word};
use super::recorder::Kind;
use super::serve::{Outcome, Server};
use super::watch::Inside;

/// Most pages filled with zeros at once.
pub(super) const ZERO_WINDOW_MAX: u64 = 64;

impl Server<'_> {
    /// Installs zeros at `page`, and at as many untouched pages after it as the walk so far
    /// suggests.
    pub(super) fn fill_zeros(&mut self, page: PageNumber, inside: &Inside<'_>) -> Outcome {
        let pager = self.pager;
        self.zero_window = if page == self.next_zero {
            (self.zero_window * 2).min(ZERO_WINDOW_MAX)
        } else {
            1
        };
        let room = pager.free().saturating_sub(pager.low_water());
        let most = self.zero_window.min(room).max(1);
        let window = PageRange {
            start: page,
            end: page.add(most),
        };
        if pager.table.ensure(window).is_err() {
            return self.wake(page);
        }
        let claimed = pager.claim_untouched(window);
        if claimed == 0 {
            return Outcome::Busy;
        }
        let mut range = PageRange {
            start: page,
            end: page.add(claimed),
        };
        if !pager.reserve(range.pages()) {
            pager.unclaim(range.after(1));
            range = PageRange::one(page);
            if !pager.reserve_for(page) {
                pager.unclaim(range);
                return Outcome::NoRoom;
            }
        }
        // Open pages among closed ones are protected with them: that costs a fault.
        let protect = inside.any_closed(range);
        // SAFETY: untouched pages hold zeros, and COPY never overwrites a page.
        let progress = unsafe {
            let uffd = &pager.handles().uffd;
            uffd.copy(range, self.zeros.as_ptr(), protect)
        };
        let rest = range.after(progress.pages);
        if range.pages() > 1 && progress.stop == Some(Stop::Absent) && progress.pages == 0 {
            // The kernel takes no range that crosses the end of a mapping.
            pager.unclaim(range);
            pager.unreserve(range.pages());
            self.next_zero = PageNumber(0);
            return self.fill_zeros(page, inside);
        }
        // A page that is there already, unheard of, is resident all the same.
        let present = progress.pages == 0 && progress.stop == Some(Stop::Present);
        let (installed, rest) = match present {
            true => (PageRange::one(page), range.after(1)),
            false => (
                PageRange {
                    start: page,
                    end: rest.start,
                },
                rest,
            ),
        };
        pager.unclaim(rest);
        pager.unreserve(rest.pages());
        for page in installed.iter() {
            pager.table.update(page, Word::filled);
            pager.enqueue(page);
            pager.record(page, Kind::Zero);
        }
        self.next_zero = installed.end;
        pager.ledger.zero_fills.fetch_add(progress.pages, Relaxed);
        match progress.stop {
            _ if progress.pages > 0 => {
                self.remember(page);
                Outcome::Installed
            }
            Some(Stop::EventPending) => Outcome::EventPending,
            _ => self.wake(page),
        }
    }
}

impl Pager {
    /// Claims the untouched pages at the start of `window`; how many.
    fn claim_untouched(&self, window: PageRange) -> u64 {
        window
            .iter()
            .take_while(|page| {
                let word = self.table.load(*page);
                word.state() == State::Untouched && self.table.change(*page, word, word.claimed())
            })
            .count() as u64
    }

    /// Gives up pages that were claimed untouched.
    fn unclaim(&self, range: PageRange) {
        for page in range.iter() {
            self.table
                .update(page, |now| now.unclaimed(Word::default()));
        }
    }
}
