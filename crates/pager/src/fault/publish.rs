//! What a fault's owner does not wait for: its page is there, and the rest of the pager learns of
//! it. Page words, eviction queues, slots to be given back, counters, the trace, read-ahead.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::PageNumber;

use super::claim::{Claim, Purpose};
use super::handler::{Fault, Handler};
use crate::page::word::{Place, State, Word};
use crate::pager::Pager;
use crate::recorder::Kind;
use crate::stores::Deferred;

impl Pager {
    /// `fault` waits for room. Counted once, however often it is tried.
    pub(super) fn note_wait(&self, fault: &mut Fault) {
        if !std::mem::replace(&mut fault.waited, true) {
            self.ledger.faults_waited.fetch_add(1, Relaxed);
        }
    }
}

impl<'p> Handler<'p> {
    /// The first `count` pages of `claim` were installed. Of those that are `backed` the store's
    /// bytes are kept: most likely they are theirs when they are evicted.
    pub(super) fn publish_fetched(
        &mut self,
        claim: &mut Claim<'p>,
        count: u64,
        backed: bool,
        purpose: Purpose,
    ) {
        let (pager, first) = (self.pager, claim.pages().start);
        let rewritten = match purpose {
            Purpose::Demand { write } => write || claim.is_rewritten(),
            Purpose::Ahead | Purpose::Load => false,
        };
        let transition = |now: Word| match backed {
            true => now.fetched_clean(),
            false => now.fetched_writable(rewritten),
        };
        let demanded = matches!(purpose, Purpose::Demand { .. });
        claim.settle(count, transition, |page, was| {
            if demanded && page == first {
                pager.note_fetch(was);
            }
            if !backed {
                self.release(was.place());
            }
            pager.probes.note_use(page);
            match purpose {
                Purpose::Ahead => pager.victims.enqueue_ahead(&pager.table, page),
                Purpose::Demand { .. } | Purpose::Load => pager.enqueue(page),
            }
        });
        let ledger = pager.ledger;
        ledger.fetched_pages.fetch_add(count, Relaxed);
        match purpose {
            Purpose::Load => {}
            Purpose::Ahead => {
                ledger.prefetched_pages.fetch_add(count, Relaxed);
            }
            Purpose::Demand { write } => {
                ledger.fetches.fetch_add(1, Relaxed);
                if backed {
                    self.predictor.note_clean_install();
                }
                pager.record(first, if write { Kind::Write } else { Kind::Read });
                self.recent.note(first);
                self.look_at_words(first);
                self.look_ahead(first);
            }
        }
    }

    /// `page` is back from the staging area; what the store has of it is at `backing`.
    pub(super) fn publish_taken_back(&mut self, page: PageNumber, backing: Option<Place>) {
        let pager = self.pager;
        let taken_back = |word: Word| word.taken_back(backing);
        pager.table.update(page, taken_back);
        pager.probes.note_use(page);
        pager.victims.enqueue_taken_back(&pager.table, page);
        pager.ledger.faults_taken_back.fetch_add(1, Relaxed);
        self.recent.note(page);
    }

    /// Zeros were installed where a page of `word` had been.
    pub(super) fn publish_refilled(&mut self, word: Word) {
        if word.state() == State::Clean {
            self.release(word.place());
        }
        self.publish_zeros(1);
    }

    /// A fault was given zeros in `pages` pages.
    pub(super) fn publish_zeros(&self, pages: u64) {
        let ledger = self.pager.ledger;
        ledger.zero_faults.fetch_add(1, Relaxed);
        ledger.zero_fills.fetch_add(pages, Relaxed);
    }

    /// The store failed.
    pub(super) fn note_error(&self) {
        self.pager.ledger.errors.fetch_add(1, Relaxed);
    }

    /// The slot of `place` is needed no more. Giving it back takes the store's locks and may
    /// allocate, so it is left to the evictor; in a signal handler also when so many wait that
    /// there is no room for one more.
    pub(super) fn release(&self, place: Place) {
        let pager = self.pager;
        loop {
            match pager.stores.release_later(place) {
                Deferred::Noted => return,
                Deferred::Many => return pager.budget.work.ring(),
                Deferred::Full if self.may_block => return pager.stores.release(&[place]),
                Deferred::Full => {
                    pager.budget.work.ring();
                    std::thread::yield_now();
                }
            }
        }
    }
}
