//! Stores to test and pages to put in them.

use pagetide_store::{PAGE_SIZE, Page, Slot, Store, open};
use std::path::Path;
use tempfile::TempDir;

/// A store and the directory its file may lie in.
pub struct Fixture {
    pub store: Box<dyn Store>,
    pub directory: TempDir,
}

impl Fixture {
    /// Opens the store whose URI `uri` makes from a fresh directory.
    pub fn new(uri: impl Fn(&Path) -> String) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&uri(directory.path())).unwrap();
        Fixture { store, directory }
    }
}

/// Bytes that do not compress, different for each seed (splitmix64).
pub fn random_bytes(seed: u64, bytes: &mut [u8]) {
    let mut state = seed;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_ne_bytes()[..chunk.len()]);
    }
}

/// Page number `seed`: by turns random, half random, text-like, a few bytes among zeros,
/// same-filled, zero.
pub fn page(seed: u64) -> Page {
    let mut page = Page::ZERO;
    match seed % 6 {
        0 => random_bytes(seed, &mut page.0),
        1 => random_bytes(seed, &mut page.0[..PAGE_SIZE / 2]),
        2 => {
            for (index, chunk) in page.0.chunks_mut(16).enumerate() {
                let text = format!("{:>10} {:>5}", seed % 1_000_000_007, index % 7);
                chunk.copy_from_slice(text.as_bytes());
            }
        }
        3 => random_bytes(seed, &mut page.0[100..132]),
        4 => page.fill(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        _ => {}
    }
    page
}

/// A page that takes its full size in every store.
pub fn random_page(seed: u64) -> Page {
    let mut page = Page::ZERO;
    random_bytes(seed ^ 0xabcd_ef01_2345_6789, &mut page.0);
    page
}

/// Puts `pages` in batches of the store's liking.
pub fn put_all(store: &dyn Store, pages: &[Page]) -> Vec<Slot> {
    let mut slots = vec![Slot(u32::MAX); pages.len()];
    let batch = store.capabilities().put_batch_pages;
    for (pages, slots) in pages.chunks(batch).zip(slots.chunks_mut(batch)) {
        store.put(&pages.iter().collect::<Vec<_>>(), slots).unwrap();
    }
    slots
}

/// The slot holds exactly `page`, and the store can tell.
#[track_caller]
pub fn assert_holds(store: &dyn Store, slot: Slot, page: &Page) {
    let mut found = Page::ZERO;
    random_bytes(7, &mut found.0);
    store.get(slot, &mut found).unwrap();
    assert!(found.0 == page.0, "slot {} holds other bytes", slot.0);
    assert!(store.holds(slot, page), "slot {} denies its bytes", slot.0);
}
