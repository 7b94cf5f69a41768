//! Fetching pages before they are asked for, of a stream or of a block: runs of neighbours with
//! one COPY.
//!
//! They are fetched while there is room, and of the evictor's reserve most may be taken: what is
//! read ahead is mostly asked for next, by a fault, which would take that room all the same. They
//! are the first to leave ([`Queue::Ahead`](crate::page::policy::Queue)).
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagetide_kernel::{PageNumber, PageRange};

use super::claim::{Claim, Purpose};
use super::handler::{Handler, RUN_PAGES};
use super::pointers::{Turn, WORDS};
use super::scans::Miss;
use super::streams::{Ask, WINDOW_MAX};
use crate::page::word::State;
use crate::pager::Pager;

/// Most pages fetched between two looks for faults, from a store that answers at once: about 20 us.
const AT_ONCE: u32 = 16;

/// Most pages fetched at once, and by whoever has served the fault; of a stream the rest is the
/// fault thread's, when no fault waits. A store that is waited for is asked once for as many as
/// possible: 64 pages come from a server in the time of eight that are asked for singly. A source
/// is a file, and may be one.
fn at_once(pager: &Pager) -> u32 {
    match pager.source.is_some() || pager.stores.active().capabilities().get_sleeps {
        true => WINDOW_MAX,
        false => AT_ONCE,
    }
}

impl Handler<'_> {
    /// `page` was fetched for a fault: is it one of a stream, or else of a block that is worth
    /// reading? Reads ahead, or leaves that to the fault thread.
    pub(super) fn look_ahead(&mut self, page: PageNumber) {
        let pager = self.pager;
        if self.detaching {
            return;
        }
        if self.is_of_scan(page) {
            return;
        }
        let advice = pager.streams.missed(page);
        if advice.hits > 0 {
            let hits = u64::from(advice.hits);
            pager.ledger.prefetch_hits.fetch_add(hits, Relaxed);
        }
        if advice.ask.is_some_and(|ask| self.begins_scan(page, ask)) {
            return;
        }
        let block = self.block_of(page, advice.ask.is_some());
        let begun = match advice.ask {
            Some(ask) => pager.streams.begin(ask, self.room_for(ask.count)),
            None => block,
        };
        let Some(ask) = begun else {
            return;
        };
        if self.may_block && !pager.placement.shares_processor() && !advice.late {
            // The fault thread itself: waiting faults come first, unless that has left it too late
            // before.
            pager.streams.hand_over(ask);
            return;
        }
        // Beside the one thread that faults, it runs only while that waits, and for the stream's
        // next page: left for later, this would come too late. Who else faults just now, or waits
        // for an event to be read, waits for these pages.
        let at_once = at_once(pager);
        let rest = ask.after(at_once);
        if rest.count > 0 && pager.streams.hand_over(rest) && !self.may_block {
            pager.ring_fault_thread();
        }
        self.read_ahead(ask.first(at_once));
    }

    /// Whether `page` is of a scan, ahead of which others read.
    fn is_of_scan(&self, page: PageNumber) -> bool {
        let pager = self.pager;
        if !pager.source.is_some() {
            return false;
        }
        match pager.scans.missed(page, pager.budget.get()) {
            Miss::Other => false,
            Miss::Late => true,
            Miss::Mark { used, next } => {
                pager.ledger.prefetch_hits.fetch_add(used, Relaxed);
                pager.source.will_need(&pager.stores, next);
                true
            }
        }
    }

    /// Whether the stream that asks for `ask`, behind `page`, is a scan from now on.
    fn begins_scan(&self, page: PageNumber, ask: Ask) -> bool {
        let (pager, is_whole) = (self.pager, ask.stride == 1 && ask.count == WINDOW_MAX);
        is_whole && pager.source.has(page) && pager.scans.begin(page, pager.budget.get())
    }

    /// Reads ahead of scans, beside the fault thread, until the pager closes.
    pub(crate) fn serve_scans(&mut self) {
        let pager = self.pager;
        loop {
            let (asked, evicted) = (pager.scans.asked.look(), pager.budget.progress.look());
            if pager.is_closing() {
                return;
            }
            // The evictor works meanwhile: some of what it keeps free is taken.
            let budget = &pager.budget;
            let room = budget.free().saturating_sub(budget.low_water() / 2);
            if room < (budget.high_water() / 4).clamp(1, RUN_PAGES as u64) {
                let soon = Some(Duration::from_millis(10));
                budget.progress.wait(evicted, soon);
                continue;
            }
            let Some(pages) = pager.scans.take(room.min(RUN_PAGES as u64)) else {
                pager.scans.asked.wait(asked, None);
                continue;
            };
            let (mut rest, mut read) = (pages, 0);
            while !rest.is_empty() {
                let fetched = self.fetch_first(rest, rest.pages(), Purpose::Ahead);
                rest = rest.after(fetched.max(1));
                read += fetched;
            }
            pager.scans.note_read(pages.start, read);
        }
    }

    /// The block to read with `page`, if no stream reads ahead from there and there is room for all
    /// of it.
    fn block_of(&self, page: PageNumber, is_streamed: bool) -> Option<Ask> {
        let pager = self.pager;
        let is_stored = |page| pager.table.load(page).state() == State::Stored;
        let (start, count) = pager.blocks.missed(page, is_streamed, is_stored)?;
        (pager.budget.spare() >= u64::from(count)).then(|| Ask::block(start, count))
    }

    /// Pages that may be read ahead when `wanted` are. An evictor that waits for this very
    /// processor has it first: it has to run before long all the same, and a page that is not read
    /// ahead for want of room is a fault.
    fn room_for(&self, wanted: u32) -> u64 {
        let (pager, spare) = (self.pager, self.pager.budget.spare());
        if spare >= u64::from(wanted) || !pager.placement.evictor_is_here() {
            return spare;
        }
        pager.budget.work.ring();
        std::thread::yield_now();
        pager.budget.spare()
    }

    /// Reads ahead of a stream that was left for later. Returns whether there was one.
    pub(crate) fn read_ahead_of_streams(&mut self) -> bool {
        let pager = self.pager;
        let Some(ask) = pager.streams.take() else {
            return false;
        };
        let now = ask.first(at_once(pager));
        let rest = ask.after(now.count);
        if rest.count > 0 {
            pager.streams.hand_over(rest);
        }
        self.read_ahead(now);
        true
    }

    /// `page` was fetched for a fault, and its bytes are in the buffer still: do they name what is
    /// missed next?
    pub(super) fn look_at_words(&mut self, page: PageNumber) {
        let pager = self.pager;
        if self.detaching {
            return;
        }
        // SAFETY: the buffer's first page holds initialised bytes and is this thread's alone; it is
        // aligned to a page.
        let words = unsafe { &*self.buffer.as_ptr().cast::<[u64; WORDS]>() };
        let is_stored = |page| pager.table.load(page).state() == State::Stored;
        match pager.pointers.fetched(page, words, is_stored) {
            Turn::None => {}
            Turn::Later if self.may_block => {}
            Turn::Later => pager.ring_fault_thread(),
            Turn::Now => {
                self.read_ahead_of_pointers();
            }
        }
    }

    /// Reads some of the pages that fetched pages name. Returns whether there were any.
    pub(crate) fn read_ahead_of_pointers(&mut self) -> bool {
        let pager = self.pager;
        if pager.budget.spare() == 0 {
            return false;
        }
        let (named, count) = pager.pointers.take();
        let fetched: u64 = named[..count]
            .iter()
            .map(|page| self.fetch_run(PageRange::one(*page), 1, Purpose::Ahead))
            .sum();
        pager.ledger.pointer_pages.fetch_add(fetched, Relaxed);
        count > 0
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
        match ask.is_block() {
            true => {
                let pages = u64::from(fetched.count_ones());
                self.pager.ledger.block_pages.fetch_add(pages, Relaxed);
            }
            false => self.pager.streams.fetched(ask, fetched),
        }
    }

    /// Fetches `count` pages from `start`; a bit for each that was.
    fn fetch_neighbours(&mut self, start: PageNumber, count: u32) -> u64 {
        let mut fetched = 0;
        let mut range = PageRange::of(start, u64::from(count));
        while !range.is_empty() && self.pager.budget.spare() > 0 {
            let run = self.fetch_run(range, self.pager.budget.spare(), Purpose::Ahead);
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
            if self.pager.budget.spare() == 0 {
                break;
            }
            let page = PageRange::one(ask.page(index));
            fetched |= self.fetch_run(page, 1, Purpose::Ahead) << index;
        }
        fetched
    }

    /// Fetches the stored pages at the start of `range`, as many as there is room for; how many.
    pub(crate) fn load_run(&mut self, range: PageRange) -> u64 {
        self.fetch_run(range, self.pager.budget.free(), Purpose::Load)
    }

    /// Fetches the stored pages at the start of `range`, as many as there is `room` for and a store
    /// gives at once; returns how many. Nothing is waited for: a page somebody is busy with ends
    /// the run.
    fn fetch_run(&mut self, range: PageRange, room: u64, purpose: Purpose) -> u64 {
        let most = range.pages().min(room).min(at_once(self.pager).into());
        self.fetch_first(range, most, purpose)
    }

    /// The same for the first `most` pages of `range`, or as many as are installed with one call.
    fn fetch_first(&mut self, range: PageRange, most: u64, purpose: Purpose) -> u64 {
        let (pager, most) = (self.pager, most.min(RUN_PAGES as u64));
        let Some(section) = pager.write_notifications.enter() else {
            return 0;
        };
        if most == 0 {
            return 0;
        }
        if pager.table.load(range.start).state() == State::Untouched {
            pager.source.reveal(&pager.table, range.start);
        }
        let Some(mut room) = pager.budget.reserve(most) else {
            return 0;
        };
        let Some(mut claim) = Claim::stored(&pager.table, PageRange::of(range.start, most)) else {
            return 0;
        };
        room.shrink_to(claim.pages().pages());
        match self.fetch(&mut claim, room, purpose, &section) {
            Ok(progress) => progress.pages,
            // Whoever needs one of the pages will try again, and say what is lost.
            Err(_) => {
                self.note_error();
                0
            }
        }
    }
}
