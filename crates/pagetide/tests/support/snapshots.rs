//! What the tests of snapshots share.
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::restore::read_region;
use pagetide::track::snapshot::sink::Sink;
use pagetide::track::{Delivery, Memory, Snapshotter};

use super::{Plain, skipped};

pub fn memory(plain: &Plain, name: &str) -> Memory {
    // SAFETY: the tests keep the mapping until the snapshotter is gone.
    unsafe { Memory::mapping(name, plain.address, plain.len) }.unwrap()
}

pub fn snapshotter(plain: &Plain, delivery: Delivery, incremental: bool) -> Option<Snapshotter> {
    let builder = Snapshotter::builder()
        .memory(memory(plain, "memory"))
        .delivery(delivery);
    match builder.incremental(incremental).build() {
        Ok(snapshotter) => Some(snapshotter),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

/// Tells the writers to stop, also when an assertion failed.
pub struct StopsAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

pub fn no_hold(arm: &mut dyn FnMut()) {
    arm();
}

pub fn restored(path: &Path, pages: usize) -> Plain {
    let (image, into) = (Image::open(path).unwrap(), Plain::new(pages));
    read_region(&image, "memory", into.bytes_mut(), 0, &AtomicU64::new(0)).unwrap();
    into
}

/// Takes bytes slowly, until it fails.
pub struct Slow {
    pub fails_after: Option<usize>,
    pub taken: Arc<Mutex<Vec<u8>>>,
    pub nap: std::time::Duration,
    pub committed: Arc<AtomicBool>,
}

impl Sink for Slow {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        std::thread::sleep(self.nap);
        let mut taken = self.taken.lock().unwrap();
        taken.extend_from_slice(bytes);
        match self.fails_after {
            Some(limit) if taken.len() > limit => Err(io::Error::other("the sink is full")),
            _ => Ok(()),
        }
    }

    fn commit(&mut self) -> io::Result<()> {
        self.committed.store(true, SeqCst);
        Ok(())
    }
}
