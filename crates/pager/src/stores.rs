//! A pager's stores: one for each process its memory descends from by fork, the last one active;
//! and the places in them that faults have made superfluous.
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use pagetide_store::{Page, Slot, Store, StoreError};
use rustix::io::Errno;

use crate::deferred_frees::DeferredFrees;
use crate::page::word::{GENERATIONS, Place};

/// Freed places that wait for the evictor before it is woken for them alone: more than it fills a
/// reserve with. After a round it gives them back anyway.
const FREED_AT_A_TIME: u64 = 1024;

/// What became of a place that was to be given back later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deferred {
    /// It is noted.
    Noted,
    /// It is noted, and so many are that the evictor is to be woken.
    Many,
    /// There is no room to note it.
    Full,
}

/// Stores are set once and never freed while the pager lives.
pub struct Stores {
    stores: [AtomicPtr<Box<dyn Store>>; GENERATIONS],
    generation: AtomicU32,
    freed: DeferredFrees,
}

impl Stores {
    /// `store` is the first, and active.
    pub(crate) fn new(store: Box<dyn Store>) -> Result<Stores, Errno> {
        let stores = [const { AtomicPtr::new(std::ptr::null_mut()) }; GENERATIONS];
        stores[0].store(Box::into_raw(Box::new(store)), Ordering::Release);
        Ok(Stores {
            stores,
            generation: AtomicU32::new(0),
            freed: DeferredFrees::new()?,
        })
    }

    /// The store of `generation`.
    pub fn of(&self, generation: u8) -> &dyn Store {
        let store = self.stores[generation as usize].load(Ordering::Acquire);
        // SAFETY: stores are set once and never freed while the pager lives.
        unsafe { store.as_ref() }
            .expect("a place names an existing store")
            .as_ref()
    }

    /// The generation pages are put into.
    pub fn generation(&self) -> u8 {
        self.generation.load(Ordering::Acquire) as u8
    }

    /// The store pages are put into.
    pub fn active(&self) -> &dyn Store {
        self.of(self.generation())
    }

    /// In a forked child: pages are put into `store` from now on; the stores before it are only
    /// read. False when there are too many.
    pub fn push(&self, store: Box<dyn Store>) -> bool {
        let next = self.generation() as usize + 1;
        if next >= GENERATIONS {
            return false;
        }
        self.stores[next].store(Box::into_raw(Box::new(store)), Ordering::Release);
        self.generation.store(next as u32, Ordering::Release);
        true
    }

    /// Before anything is stored: `store`, which is only read, comes before the active one. Its
    /// generation.
    pub(crate) fn put_below(&self, store: Box<dyn Store>) -> u8 {
        let active = self.stores[0].swap(Box::into_raw(Box::new(store)), Ordering::AcqRel);
        self.stores[1].store(active, Ordering::Release);
        self.generation.store(1, Ordering::Release);
        0
    }

    /// Puts `pages` into the active store, as many in a call as it likes. How many it took, whose
    /// slots are the first of `slots` then, and its error if it refused the next.
    pub(crate) fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> (usize, Option<StoreError>) {
        let store = self.active();
        let at_a_time = store.capabilities().put_batch_pages;
        let mut done = 0;
        for (pages, slots) in pages.chunks(at_a_time).zip(slots.chunks_mut(at_a_time)) {
            if let Err(error) = store.put(pages, slots) {
                return (done, Some(error));
            }
            done += pages.len();
        }
        (done, None)
    }

    /// Gives back the slots of `places`; those of a forked child's ancestors are not its to give.
    pub(crate) fn release(&self, places: &[Place]) {
        let generation = self.generation();
        let mut slots = [Slot(0); 64];
        for chunk in places.chunks(slots.len()) {
            let mut count = 0;
            for place in chunk.iter().filter(|p| p.generation == generation) {
                slots[count] = place.slot;
                count += 1;
            }
            if count > 0 {
                self.of(generation).delete(&slots[..count]);
            }
        }
    }

    /// Notes that the slot of `place` is to be given back. Takes no lock for long and allocates
    /// nothing.
    pub(crate) fn release_later(&self, place: Place) -> Deferred {
        if place.generation != self.generation() {
            return Deferred::Noted;
        }
        match self.freed.push(place) {
            false => Deferred::Full,
            true if self.freed.len().is_multiple_of(FREED_AT_A_TIME) => Deferred::Many,
            true => Deferred::Noted,
        }
    }

    /// Gives back the slots noted.
    pub(crate) fn release_noted(&self) {
        let none = Place {
            generation: 0,
            slot: Slot(0),
        };
        let mut places = [none; 16];
        loop {
            let count = self.freed.take(&mut places);
            if count == 0 {
                return;
            }
            self.release(&places[..count]);
        }
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        for store in &self.stores {
            let store = store.load(Ordering::Acquire);
            if !store.is_null() {
                // SAFETY: made from a box, and nobody uses it any more: the pager is dropped.
                drop(unsafe { Box::from_raw(store) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_put_as_many_at_a_time_as_the_store_likes_and_up_to_the_first_it_refuses() {
        let store = pagetide_store::open("fault:put-fail-after=40,fail-kind=io:ram:").unwrap();
        let at_a_time = store.capabilities().put_batch_pages;
        assert!(at_a_time > 1 && at_a_time < 40);
        let stores = Stores::new(store).unwrap();
        let mut page = Page::ZERO;
        page.fill(7);
        let (pages, mut slots) = ([&page; 64], [Slot(0); 64]);
        let (done, error) = stores.put(&pages, &mut slots);
        assert!(error.is_some());
        assert_eq!(done, 40 / at_a_time * at_a_time);
        for slot in &slots[..done] {
            let mut found = Page::ZERO;
            stores.active().get(*slot, &mut found).unwrap();
            assert_eq!(found.same_filled(), Some(7));
        }
        assert_eq!(stores.active().usage().pages, done as u64);
        assert!(matches!(stores.put(&[], &mut []), (0, None)));
    }
}
