//! What `put` and `get` cost: `cargo run --release -p pagetide-store --example store_cost -- [URI]
//! [PAGES]`.
//!
//! Pages are half random and half zero, the usual stand-in for memory that compresses two to one.
//! Gets are in random order over all pages, so that the tables and blobs are cold, and once over a
//! few pages, where they are warm.

use pagetide_store::{PAGE_SIZE, Page, Slot, Store, StoreError, open};
use std::time::{Duration, Instant};

/// A small generator (splitmix64): the example needs numbers that do not compress, not good ones.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes
            .chunks_exact_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&self.next().to_ne_bytes()));
    }
}

fn report(what: &str, took: Duration, pages: usize) {
    println!(
        "{what:<44} {:8.3} us/page",
        took.as_secs_f64() * 1e6 / pages as f64
    );
}

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().unwrap_or_else(|| "ram:".to_owned());
    let count = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1 << 16);
    let mut random = Random(1);
    let shapes: [(&str, usize); 4] = [
        ("half random", PAGE_SIZE / 2),
        ("all random", PAGE_SIZE),
        ("64 random bytes", 64),
        ("same-filled", 0),
    ];
    for (name, random_bytes) in shapes {
        let store = open(&uri)?;
        let mut pages = vec![Page::ZERO; 1024];
        for page in &mut pages {
            random.fill(&mut page.0[..random_bytes]);
        }
        let slots = put(&*store, name, &pages, count)?;
        get_and_delete(&*store, name, &slots, &mut random)?;
    }
    Ok(())
}

/// Puts `pages` again and again, until `count` slots are in use.
fn put(
    store: &dyn Store,
    name: &str,
    pages: &[Page],
    count: usize,
) -> Result<Vec<Slot>, StoreError> {
    let mut slots = vec![Slot(0); count];
    let batch = store.capabilities().put_batch_pages;
    let start = Instant::now();
    for (index, slots) in slots.chunks_mut(batch).enumerate() {
        let first = index * batch % (pages.len() - batch + 1);
        let batch: Vec<&Page> = pages[first..first + slots.len()].iter().collect();
        store.put(&batch, slots)?;
    }
    report(&format!("put, {name}"), start.elapsed(), count);

    let usage = store.usage();
    println!(
        "    {} pages in {} MiB, {:.0} bytes/page, stored to {:.2} of their size",
        usage.pages,
        usage.bytes >> 20,
        usage.bytes as f64 / usage.pages as f64,
        usage.put_bytes_stored as f64 / usage.put_bytes as f64,
    );
    Ok(slots)
}

fn get_and_delete(
    store: &dyn Store,
    name: &str,
    slots: &[Slot],
    random: &mut Random,
) -> Result<(), StoreError> {
    let (count, batch) = (slots.len(), store.capabilities().put_batch_pages);
    let mut order = slots.to_vec();
    for index in (1..order.len()).rev() {
        order.swap(index, (random.next() % (index as u64 + 1)) as usize);
    }
    let mut page = Page::ZERO;
    let start = Instant::now();
    order
        .iter()
        .try_for_each(|slot| store.get(*slot, &mut page))?;
    report(
        &format!("get, {name}, random order"),
        start.elapsed(),
        count,
    );

    let start = Instant::now();
    (0..count).try_for_each(|index| store.get(order[index % 32], &mut page))?;
    report(
        &format!("get, {name}, same 32 pages"),
        start.elapsed(),
        count,
    );

    let mut many = vec![Page::ZERO; batch];
    let start = Instant::now();
    for slots in slots.chunks(batch) {
        store.get_many(slots, &mut many[..slots.len()])?;
    }
    report(
        &format!("get_many of {batch}, {name}, in order"),
        start.elapsed(),
        count,
    );

    let start = Instant::now();
    store.delete(&order);
    report(
        &format!("delete, {name}, random order"),
        start.elapsed(),
        count,
    );
    Ok(())
}
