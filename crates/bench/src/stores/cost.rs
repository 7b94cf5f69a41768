//! What encryption and checksum add to a page, put and read in batches so that the round trip is
//! shared.
use std::hint::black_box;
use std::io::{Error, Result};
use std::time::Instant;

use pagetide_store::{Page, Slot};
use xxhash_rust::xxh3::xxh3_64;

use crate::content::Random;
use crate::statistics::median;

const PAGES: usize = 16_384;
const BATCH: usize = 64;
const ROUNDS: usize = 7;

/// Medians, us a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Encrypted and plain; the checksum is in all of them.
    pub(super) put_us: [f64; 2],
    /// The same, of reads.
    pub(super) get_us: [f64; 2],
    /// Of one checksum.
    pub(super) checksum_us: f64,
}

impl Cost {
    /// Encryption and checksum, to put one and to read one.
    pub(super) fn added_us(&self) -> (f64, f64) {
        let added = |[sealed, plain]: [f64; 2]| sealed - plain + self.checksum_us;
        (added(self.put_us), added(self.get_us))
    }
}

/// Measures with the store at `uri`, which has no options yet.
pub(super) fn cost(uri: &str) -> Result<Cost> {
    let mut random = Random::new(1);
    let pages: Vec<Page> = (0..BATCH)
        .map(|_| {
            let mut page = Page::ZERO;
            page.0[..2048]
                .chunks_exact_mut(8)
                .for_each(|word| word.copy_from_slice(&random.number().to_le_bytes()));
            page
        })
        .collect();
    let (mut puts, mut gets) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..ROUNDS {
        for (index, encrypt) in ["?encrypt=1", "?encrypt=0"].iter().enumerate() {
            let (put, get) = round(&format!("{uri}{encrypt}"), &pages)?;
            puts[index].push(put);
            gets[index].push(get);
        }
    }
    let sums: Vec<f64> = (0..ROUNDS).map(|_| checksum(&pages)).collect();
    Ok(Cost {
        put_us: puts.map(|times| median(&times)),
        get_us: gets.map(|times| median(&times)),
        checksum_us: median(&sums),
    })
}

fn round(uri: &str, pages: &[Page]) -> Result<(f64, f64)> {
    let store = pagetide_store::open(uri).map_err(Error::other)?;
    let pages: Vec<&Page> = pages.iter().collect();
    let mut slots = vec![Slot(0); PAGES];
    let each = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6 / PAGES as f64;
    let begun = Instant::now();
    for slots in slots.chunks_mut(BATCH) {
        store
            .put(&pages[..slots.len()], slots)
            .map_err(Error::other)?;
    }
    let put = each(begun);
    let mut found = vec![Page::ZERO; BATCH];
    let begun = Instant::now();
    for slots in slots.chunks(BATCH) {
        store
            .get_many(slots, &mut found[..slots.len()])
            .map_err(Error::other)?;
    }
    Ok((put, each(begun)))
}

fn checksum(pages: &[Page]) -> f64 {
    let begun = Instant::now();
    for index in 0..PAGES {
        black_box(xxh3_64(black_box(&pages[index % BATCH].0)));
    }
    begun.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}
