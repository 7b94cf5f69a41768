//! What the tests of tracked regions share.
use std::sync::atomic::AtomicU64;

use pagetide::track::{Memory, Snapshotter};
use pagetide::{Delivery, Region};

use super::{PAGE, skipped};

pub const DELIVERIES: [Delivery; 2] = [Delivery::Thread, Delivery::Signal];

pub fn region(pages: usize, resident: usize, delivery: Delivery) -> Option<Region> {
    let builder = Region::builder()
        .length(pages * PAGE)
        .resident((resident * PAGE) as u64);
    match builder.delivery(delivery).build() {
        Ok(region) => Some(region),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

pub fn snapshotter(region: &Region, incremental: bool) -> Snapshotter {
    let memory = Memory::region("memory", region).unwrap();
    let builder = Snapshotter::builder().memory(memory);
    builder.incremental(incremental).build().unwrap()
}

pub fn word(region: &Region, page: usize, index: usize) -> &AtomicU64 {
    assert!(page < region.len() / PAGE && index < PAGE / 8);
    // SAFETY: aligned, within the region, and the tests access it by atomics alone.
    unsafe { &*region.as_ptr().add(page * PAGE + index * 8).cast() }
}
