//! A pager's stores: one for each process its memory descends from by fork, the last one active.
use std::sync::atomic::Ordering;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::now_ns;
use pagetide_store::{Slot, Store};

use super::Pager;
use super::page::word::{GENERATIONS, Place};

/// Freed places that wait for the evictor before it is woken for them alone: more than it fills a
/// reserve with. After a round it gives them back anyway.
const FREED_AT_A_TIME: u64 = 1024;

impl Pager {
    /// The store of `generation`.
    pub fn store(&self, generation: u8) -> &dyn Store {
        // SAFETY: stores are set once and never freed while the pager lives.
        unsafe {
            self.stores[generation as usize]
                .load(Ordering::Acquire)
                .as_ref()
        }
        .expect("a place names an existing store")
        .as_ref()
    }

    /// The generation pages are put into.
    pub fn generation(&self) -> u8 {
        self.generation.load(Ordering::Acquire) as u8
    }

    /// The store pages are put into.
    pub fn active_store(&self) -> &dyn Store {
        self.store(self.generation())
    }

    /// The processor of the server that has the pages, if that is known.
    pub fn server_cpu(&self) -> Option<usize> {
        self.active_store().server_cpu().map(|cpu| cpu as usize)
    }

    /// In a forked child: pages are put into `store` from now on; the stores before it are only
    /// read. False when there are too many.
    pub fn push_store(&self, store: Box<dyn Store>) -> bool {
        let next = self.generation() as usize + 1;
        if next >= GENERATIONS {
            return false;
        }
        self.stores[next].store(Box::into_raw(Box::new(store)), Ordering::Release);
        self.generation.store(next as u32, Ordering::Release);
        true
    }

    /// Gives back the slots of `places`; those of a forked child's ancestors are not its to give.
    pub fn release(&self, places: &[Place]) {
        let generation = self.generation();
        let mut slots = [Slot(0); 64];
        for chunk in places.chunks(slots.len()) {
            let mut count = 0;
            for place in chunk.iter().filter(|p| p.generation == generation) {
                slots[count] = place.slot;
                count += 1;
            }
            if count > 0 {
                self.store(generation).delete(&slots[..count]);
            }
        }
    }

    /// Notes that the slot of `place` is to be given back. Takes no lock for long and allocates
    /// nothing. False when so many are noted that there is no room for one more.
    pub fn release_later(&self, place: Place) -> bool {
        if place.generation != self.generation() {
            return true;
        }
        let noted = self.freed.push(place);
        if noted && self.freed.len().is_multiple_of(FREED_AT_A_TIME) {
            self.work.ring();
        }
        noted
    }

    /// Gives back some of the slots noted. False when there were none.
    pub fn release_freed(&self) -> bool {
        let none = Place {
            generation: 0,
            slot: Slot(0),
        };
        let mut places = [none; 16];
        let count = self.freed.take(&mut places);
        self.release(&places[..count]);
        count > 0
    }

    /// Brings the ledger up to date: what the store holds, and what is resident, which two threads
    /// may have noted in the wrong order.
    pub fn note_store(&self) {
        let usage = self.active_store().usage();
        let ledger = self.ledger;
        let resident = self.resident() * PAGE_SIZE as u64;
        ledger.resident_bytes.store(resident, Ordering::Relaxed);
        ledger.store_bytes.store(usage.bytes, Ordering::Relaxed);
        ledger
            .store_bytes_max
            .store(usage.bytes_max, Ordering::Relaxed);
        ledger.store_pages.store(usage.pages, Ordering::Relaxed);
        ledger.put_bytes.store(usage.put_bytes, Ordering::Relaxed);
        ledger
            .put_bytes_stored
            .store(usage.put_bytes_stored, Ordering::Relaxed);
        ledger
            .same_filled
            .store(usage.same_filled, Ordering::Relaxed);
        ledger.updated_ns.store(now_ns(), Ordering::Relaxed);
    }
}
