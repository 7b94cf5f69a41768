//! What every store does with pages put, read and deleted.

use crate::common::*;
use pagetide_store::{ErrorKind, PAGE_SIZE, Page, Slot, Store, StoreError};
use std::collections::HashSet;

pub fn round_trips(f: &Fixture) {
    let pages: Vec<Page> = (0..600).map(page).collect();
    let slots = put_all(&*f.store, &pages);
    for (slot, page) in slots.iter().zip(&pages).rev() {
        assert_holds(&*f.store, *slot, page);
    }
    for (slot, page) in slots.iter().zip(&pages) {
        // A single bit tells.
        let mut other = page.clone();
        other.0[slot.0 as usize % PAGE_SIZE] ^= 1 << (slot.0 % 8);
        assert!(
            !f.store.holds(*slot, &other),
            "slot {} holds what it does not",
            slot.0
        );
    }
    let mut found = vec![Page::ZERO; pages.len()];
    f.store.get_many(&slots, &mut found).unwrap();
    assert!(
        found
            .iter()
            .zip(&pages)
            .all(|(found, page)| found.0 == page.0)
    );
    // In an order that allows no joining of neighbours.
    let mixed: Vec<usize> = (0..600).map(|index| index * 7 % 600).collect();
    let mixed_slots: Vec<Slot> = mixed.iter().map(|index| slots[*index]).collect();
    f.store.get_many(&mixed_slots, &mut found).unwrap();
    assert!(
        mixed
            .iter()
            .zip(&found)
            .all(|(index, found)| found.0 == pages[*index].0)
    );
}

pub fn batches_of_any_size(f: &Fixture) {
    f.store.put(&[], &mut []).unwrap();
    f.store.get_many(&[], &mut []).unwrap();
    f.store.delete(&[]);
    for size in [1usize, 2, 63, 64, 65, 130, 400] {
        let pages: Vec<Page> = (0..size as u64).map(random_page).collect();
        let mut slots = vec![Slot(0); size];
        f.store
            .put(&pages.iter().collect::<Vec<_>>(), &mut slots)
            .unwrap();
        slots
            .iter()
            .zip(&pages)
            .for_each(|(slot, page)| assert_holds(&*f.store, *slot, page));
        f.store.delete(&slots);
    }
}

pub fn slots_are_dense_and_reused(f: &Fixture) {
    let pages: Vec<Page> = (0..300).map(page).collect();
    let slots = put_all(&*f.store, &pages);
    let distinct: HashSet<u32> = slots.iter().map(|slot| slot.0).collect();
    assert_eq!(distinct.len(), 300);
    assert!(slots.iter().all(|slot| slot.0 < 300));
    f.store.delete(&slots[100..200]);
    let again = put_all(&*f.store, &pages[..100]);
    assert!(
        again.iter().all(|slot| slot.0 < 300),
        "deleted slots are used before new ones"
    );
    for (slot, page) in again
        .iter()
        .zip(&pages)
        .chain(slots[200..].iter().zip(&pages[200..]))
    {
        assert_holds(&*f.store, *slot, page);
    }
}

pub fn overwriting_in_circles_keeps_the_bytes_and_the_room(f: &Fixture) {
    let mut pages: Vec<Page> = (0..256).map(page).collect();
    let mut slots = put_all(&*f.store, &pages);
    let mut bytes_after_first = 0;
    for round in 0..20u64 {
        for index in 0..256usize {
            if (index as u64 + round).is_multiple_of(3) {
                f.store.delete(&[slots[index]]);
                pages[index] = page(index as u64 * 31 + round);
                slots[index] = put_all(&*f.store, &pages[index..=index])[0];
            }
        }
        slots
            .iter()
            .zip(&pages)
            .for_each(|(slot, page)| assert_holds(&*f.store, *slot, page));
        if round == 0 {
            bytes_after_first = f.store.usage().bytes;
        }
    }
    assert!(f.store.usage().bytes <= bytes_after_first * 3 / 2 + (4 << 20));
}

pub fn an_unused_slot_is_corrupt_never_zeros(f: &Fixture) {
    let slots = put_all(&*f.store, &[page(0), page(5)]);
    f.store.delete(&slots[1..]);
    for slot in [slots[1], Slot(2), Slot(77_777), Slot(u32::MAX)] {
        let error = f.store.get(slot, &mut Page::ZERO.clone()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.to_string().contains(&slot.0.to_string()), "{error}");
        let many = f
            .store
            .get_many(&[slots[0], slot], &mut [Page::ZERO, Page::ZERO]);
        assert_eq!(many.unwrap_err().kind, ErrorKind::Corrupt);
    }
    f.store
        .delete(&[slots[1], slots[1], Slot(77_777), Slot(u32::MAX)]);
    f.store.delete(&[slots[0], slots[0]]);
    assert_eq!(f.store.usage().pages, 0);
    let again = put_all(&*f.store, &[page(0), page(1), page(2)]);
    assert_eq!(
        again.iter().collect::<HashSet<_>>().len(),
        3,
        "a double delete gives a slot back once"
    );
}

pub fn usage_adds_up(f: &Fixture) {
    let start = f.store.usage();
    assert_eq!((start.pages, start.put_bytes, start.same_filled), (0, 0, 0));
    let pages: Vec<Page> = (0..2400).map(page).collect();
    let slots = put_all(&*f.store, &pages);
    let full = f.store.usage();
    assert_eq!(full.pages, 2400);
    assert_eq!(full.put_bytes, 2400 * PAGE_SIZE as u64);
    assert_eq!(full.same_filled, 800);
    assert!(full.put_bytes_stored < full.put_bytes);
    assert!(full.bytes >= 400 * PAGE_SIZE as u64);
    assert!(full.bytes_max >= full.bytes);
    let in_memory = full.memory_bytes;
    assert!((1..=full.bytes).contains(&in_memory), "{full:?}");
    f.store.delete(&slots[..1200]);
    assert_eq!(f.store.usage().pages, 1200);
    f.store.delete(&slots[1200..]);
    let end = f.store.usage();
    assert_eq!(end.pages, 0);
    assert!(
        end.bytes < full.bytes / 2,
        "{} of {} bytes are still held",
        end.bytes,
        full.bytes
    );
    assert!(end.bytes_max >= full.bytes);
    assert_eq!(end.put_bytes, full.put_bytes);
}

/// Puts random pages until the store is full.
pub fn fill(store: &dyn Store) -> (Vec<(Slot, u64)>, StoreError) {
    let mut held = Vec::new();
    for seed in 0.. {
        let batch = [random_page(seed * 2), random_page(seed * 2 + 1)];
        let mut slots = [Slot(0); 2];
        if let Err(error) = store.put(&[&batch[0], &batch[1]], &mut slots) {
            return (held, error);
        }
        held.extend([(slots[0], seed * 2), (slots[1], seed * 2 + 1)]);
        assert!(held.len() < 100_000, "this store does not get full");
    }
    unreachable!()
}

/// For stores with a limit of `max` bytes, or on a disk of that size.
pub fn full_is_clean_and_recoverable(store: &dyn Store, max: u64) {
    let (mut held, error) = fill(store);
    assert_eq!(error.kind, ErrorKind::Full, "{error}");
    let usage = store.usage();
    assert_eq!(
        usage.pages,
        held.len() as u64,
        "a failed put leaves no slot in use"
    );
    assert!(
        usage.bytes <= max && usage.bytes_max <= max,
        "{} of {max} bytes held",
        usage.bytes_max
    );
    assert!(
        usage.bytes > max / 2,
        "full at {} of {max} bytes",
        usage.bytes
    );
    held.iter()
        .for_each(|(slot, seed)| assert_holds(store, *slot, &random_page(*seed)));
    // What is freed anywhere can be used again, scattered as it is.
    let freed: Vec<Slot> = held.iter().step_by(3).map(|(slot, _)| *slot).collect();
    store.delete(&freed);
    let gone: HashSet<Slot> = freed.iter().copied().collect();
    held.retain(|(slot, _)| !gone.contains(slot));
    let pages: Vec<Page> = (0..freed.len() as u64)
        .map(|seed| random_page(seed + 1_000_000))
        .collect();
    let slots = put_all(store, &pages);
    slots
        .iter()
        .zip(&pages)
        .for_each(|(slot, page)| assert_holds(store, *slot, page));
    held.iter()
        .for_each(|(slot, seed)| assert_holds(store, *slot, &random_page(*seed)));
    assert_eq!(fill(store).1.kind, ErrorKind::Full);
}

pub fn threads_do_not_disturb_each_other(f: &Fixture) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &f.store;
            scope.spawn(move || {
                let mut held: Vec<(Slot, u64)> = Vec::new();
                for round in 0..60u64 {
                    let seeds: Vec<u64> = (0..8)
                        .map(|index| (thread << 32) + round * 8 + index)
                        .collect();
                    let pages: Vec<Page> = seeds.iter().map(|seed| page(*seed)).collect();
                    let mut slots = [Slot(0); 8];
                    store
                        .put(&pages.iter().collect::<Vec<_>>(), &mut slots)
                        .unwrap();
                    held.extend(slots.into_iter().zip(seeds));
                    held.iter()
                        .step_by(5)
                        .for_each(|(slot, seed)| assert_holds(&**store, *slot, &page(*seed)));
                    if round % 3 == 2 {
                        let some: Vec<Slot> =
                            held.drain(..held.len() / 2).map(|(slot, _)| slot).collect();
                        store.delete(&some);
                    }
                }
                held.iter()
                    .for_each(|(slot, seed)| assert_holds(&**store, *slot, &page(*seed)));
                store.delete(&held.iter().map(|(slot, _)| *slot).collect::<Vec<_>>());
            });
        }
    });
    assert_eq!(f.store.usage().pages, 0);
}
