//! Fetching pages before they are asked for: runs of neighbours with one COPY.
//!
//! A page read ahead never takes what a fault might need: it is fetched only while more than the
//! evictor's low-water reserve is free.
use std::slice::from_raw_parts_mut;
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, Slot};

use super::Pager;
use super::fault::FaultThread;
use super::page::word::{State, Word};
use super::serve::Server;
use super::streams::{Ask, WINDOW_MAX};

/// Most pages fetched with one COPY: a stream's widest window.
pub const RUN_PAGES: usize = WINDOW_MAX as usize;
/// Most pages fetched between two looks for faults, from a store that answers at once: about 20 us.
const AT_ONCE: u32 = 16;

impl Pager {
    /// Most pages fetched at once, and by whoever has served the fault; of a stream the rest is the
    /// fault thread's, when no fault waits. A store that is waited for is asked once for as many as
    /// possible: 64 pages come from a server in the time of eight that are asked for singly.
    fn at_once(&self) -> u32 {
        match self.active_store().capabilities().get_sleeps {
            true => WINDOW_MAX,
            false => AT_ONCE,
        }
    }

    /// Pages that may be fetched without being asked for.
    pub(super) fn spare(&self) -> u64 {
        self.free().saturating_sub(self.low_water())
    }
}

impl Server<'_> {
    /// `page` was fetched for a fault: is it one of a stream? Reads ahead, or leaves that to the
    /// fault thread.
    pub(super) fn follow_stream(&mut self, page: PageNumber) {
        let pager = self.pager;
        if self.detaching {
            return;
        }
        let advice = pager.streams.missed(page);
        if advice.hits > 0 {
            let hits = u64::from(advice.hits);
            pager.ledger.prefetch_hits.fetch_add(hits, Relaxed);
        }
        let begun = advice.ask.and_then(|ask| {
            let room = self.room_for(ask.count);
            pager.streams.begin(ask, room)
        });
        let Some(ask) = begun else {
            return;
        };
        if self.may_block && !pager.together.is_holding() && !advice.late {
            // The fault thread itself: waiting faults come first, unless that has left it too late
            // before.
            pager.streams.hand_over(ask);
            return;
        }
        // Beside the one thread that faults, it runs only while that waits, and for the stream's
        // next page: left for later, this would come too late. Who else faults just now, or waits
        // for an event to be read, waits for these pages.
        let at_once = pager.at_once();
        let rest = ask.after(at_once);
        if rest.count > 0 && pager.streams.hand_over(rest) && !self.may_block {
            pager.ring_fault_thread();
        }
        self.read_ahead(ask.first(at_once));
    }

    /// Pages that may be read ahead when `wanted` are. An evictor that waits for this very
    /// processor has it first: it has to run before long all the same, and a page that is not read
    /// ahead for want of room is a fault.
    fn room_for(&self, wanted: u32) -> u64 {
        let (pager, spare) = (self.pager, self.pager.spare());
        if spare >= u64::from(wanted) || !pager.fault_processors.evictor_is_here() {
            return spare;
        }
        pager.work.ring();
        std::thread::yield_now();
        pager.spare()
    }

    /// Fetches the pages of `ask`, at most 64, that are stored, as far as there is room.
    fn read_ahead(&mut self, ask: Ask) {
        let fetched = match ask.stride {
            1 => self.fetch_neighbours(ask.page(0), ask.count),
            // The last comes first.
            -1 => {
                let fetched = self.fetch_neighbours(ask.page(ask.count - 1), ask.count);
                fetched.reverse_bits() >> (WINDOW_MAX - ask.count)
            }
            _ => self.fetch_each(ask),
        };
        self.pager.streams.fetched(ask, fetched);
    }

    /// Fetches `count` pages from `start`; a bit for each that was.
    fn fetch_neighbours(&mut self, start: PageNumber, count: u32) -> u64 {
        let mut fetched = 0;
        let mut range = PageRange {
            start,
            end: start.add(u64::from(count)),
        };
        while !range.is_empty() && self.pager.spare() > 0 {
            let run = self.fetch_run(range, self.pager.spare(), true);
            if run > 0 {
                fetched |= (u64::MAX >> (64 - run)) << (range.start.0 - start.0);
            }
            range = range.after(run.max(1));
        }
        fetched
    }

    /// The same for pages that are not neighbours.
    fn fetch_each(&mut self, ask: Ask) -> u64 {
        let mut fetched = 0;
        for index in 0..ask.count {
            if self.pager.spare() == 0 {
                break;
            }
            fetched |= self.fetch_run(PageRange::one(ask.page(index)), 1, true) << index;
        }
        fetched
    }

    /// Fetches the stored pages at the start of `range`, as many as there is `room` for and a store
    /// gives at once, with one COPY; returns how many. Nothing is waited for: a page somebody is
    /// busy with ends the run.
    pub(super) fn fetch_run(&mut self, range: PageRange, room: u64, ahead: bool) -> u64 {
        let pager = self.pager;
        let mut words = [Word::default(); RUN_PAGES];
        let most = range.pages().min(room).min(pager.at_once().into()) as usize;
        let Some(inside) = pager.watch.enter() else {
            return 0;
        };
        if most == 0 || !pager.reserve(most as u64) {
            return 0;
        }
        let first = pager.table.load(range.start);
        let rewritten = first.is_rewritten();
        let mut count = 0;
        for (page, word) in range.iter().zip(&mut words).take(most) {
            *word = pager.table.load(page);
            if word.state() != State::Stored
                || word.is_rewritten() != rewritten
                || word.place().generation != first.place().generation
                || !pager.table.change(page, *word, word.claimed())
            {
                break;
            }
            count += 1;
        }
        let run = PageRange {
            start: range.start,
            end: range.start.add(count as u64),
        };
        let unprotected = rewritten || !pager.handles().copy_protects;
        let writable = unprotected && !inside.any_closed(run);
        let installed = match count {
            0 => 0,
            _ if self.read_run(&words[..count]).is_err() => {
                // Whoever needs one of the pages will try again, and say what is lost.
                pager.ledger.errors.fetch_add(1, Relaxed);
                0
            }
            // SAFETY: the buffer holds the pages' bytes (verified by the store's checksum), and
            // COPY never overwrites a page.
            _ => unsafe {
                let uffd = &pager.handles().uffd;
                uffd.copy(run, self.ahead.as_ptr(), !writable).pages
            },
        };
        for (index, (page, word)) in run.iter().zip(&words).enumerate() {
            if index as u64 >= installed {
                pager.table.update(page, |now| now.unclaimed(*word));
                continue;
            }
            pager.table.update(page, |now| match writable {
                true => now.fetched_writable(false),
                false => now.fetched_clean(),
            });
            if writable {
                self.release(word.place());
            }
            pager.enqueue(page);
        }
        pager.unreserve(most as u64 - installed);
        pager.ledger.fetched_pages.fetch_add(installed, Relaxed);
        if ahead {
            pager.ledger.prefetched_pages.fetch_add(installed, Relaxed);
        }
        installed
    }

    /// Reads the pages of `words`, all of one generation and claimed by this thread, with one call
    /// to their store.
    fn read_run(&mut self, words: &[Word]) -> Result<(), pagetide_store::StoreError> {
        let mut slots = [Slot(0); RUN_PAGES];
        let slots = &mut slots[..words.len()];
        for (slot, word) in slots.iter_mut().zip(words) {
            *slot = word.place().slot;
        }
        // SAFETY: `slots` bounds the length to RUN_PAGES pages of our own mapping, which this
        // thread alone uses.
        let pages = unsafe { from_raw_parts_mut(self.ahead.as_ptr().cast::<Page>(), slots.len()) };
        let store = self.pager.store(words[0].place().generation);
        store.get_many(slots, pages)
    }
}

impl FaultThread<'_> {
    /// Reads ahead of streams while no fault waits. Returns whether there was anything to do.
    pub(super) fn serve_prefetch(&mut self) -> bool {
        let Some(ask) = self.pager.streams.take() else {
            return false;
        };
        let now = ask.first(self.pager.at_once());
        let rest = ask.after(now.count);
        if rest.count > 0 {
            self.pager.streams.hand_over(rest);
        }
        self.server.read_ahead(now);
        true
    }
}
