//! What calls cost from Rust: `tests/c/cost.c` is the same in C, and `compare.py` runs both.
//!
//! `cost PINS TAKES MIB` prints the nanoseconds of a pin and its release, and of a take.
use std::error::Error;
use std::time::Instant;

use pagetide::Region;
use pagetide::track::{DirtyTracker, Memory};

const PAGE: usize = 4096;
const REGION_PAGES: usize = 1024;

/// Pins and releases pages that are resident, one after the other.
fn pin_ns(pins: usize) -> Result<f64, Box<dyn Error>> {
    let mut region = Region::builder().length(REGION_PAGES * PAGE).build()?;
    let memory = region.as_mut_slice();
    (0..REGION_PAGES).for_each(|page| memory[page * PAGE] = 1);
    let begun = Instant::now();
    for i in 0..pins {
        let from = i % REGION_PAGES * PAGE;
        drop(region.pin(from..from + PAGE)?);
    }
    Ok(begun.elapsed().as_nanos() as f64 / pins as f64)
}

/// Takes what was written to one in a hundred pages, at the same places each time; the median.
fn take_ns(takes: usize, length: usize) -> Result<f64, Box<dyn Error>> {
    // SAFETY: a new mapping at a place of the kernel's choice, which is checked and never unmapped.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err("mmap failed".into());
        }
        libc::madvise(memory, length, libc::MADV_NOHUGEPAGE);
        memory.cast::<u8>()
    };
    let pages = length / PAGE;
    // SAFETY: within the mapping, of which nothing has a reference.
    let write = |page: usize, value| unsafe { memory.add(page * PAGE).write_volatile(value) };
    (0..pages).for_each(|page| write(page, 1));
    // SAFETY: it stays mapped, readable and writable.
    let mut tracker = DirtyTracker::new(vec![unsafe {
        Memory::from_raw_parts("memory", memory, length)?
    }])?;
    let mut took = Vec::with_capacity(takes);
    for i in 0..takes {
        let mut random = 1u64;
        for _ in 0..pages / 100 {
            random = random.wrapping_mul(6364136223846793005);
            random = random.wrapping_add(1442695040888963407);
            write((random >> 33) as usize % pages, i as u8);
        }
        let (mut found, begun) = (0, Instant::now());
        tracker.take_each(|range| found += range.len())?;
        took.push(begun.elapsed().as_nanos() as f64);
        if !(pages / 200 * PAGE..=pages / 100 * PAGE).contains(&found) {
            return Err(format!("{found} bytes were found").into());
        }
    }
    took.sort_by(f64::total_cmp);
    Ok(took[takes / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let number = |at| -> Result<usize, Box<dyn Error>> {
        let text: Option<String> = std::env::args().nth(at);
        Ok(text.ok_or("usage: cost PINS TAKES MIB")?.parse()?)
    };
    let pin = pin_ns(number(1)?)?;
    println!("{pin:.1} {:.0}", take_ns(number(2)?, number(3)? << 20)?);
    Ok(())
}
