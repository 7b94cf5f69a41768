//! What the tests of snapshots share.
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use pagetide::Delivery;
use pagetide::track::snapshot::sink::Sink;
use pagetide::track::{Hold, Image, Memory, ParkThreads, Snapshotter, read_region};
use pagetide_kernel::park::ParkError;

use super::patience::up_to;
use super::{Plain, skipped};

pub fn memory(plain: &Plain, name: &str) -> Memory {
    // SAFETY: the tests keep the mapping until the snapshotter is gone.
    unsafe { Memory::from_raw_parts(name, plain.address, plain.len) }.unwrap()
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

/// Arms by a closure while all other threads are parked.
pub struct Parked<F>(pub F);

impl<F: FnOnce(&mut dyn FnMut())> Hold for Parked<F> {
    fn hold(self, arm: &mut dyn FnMut()) -> Result<(), ParkError> {
        let mut inner = Some(self.0);
        let patience = up_to(30);
        ParkThreads { patience }.hold(&mut || {
            if let Some(inner) = inner.take() {
                inner(arm);
            }
        })
    }
}

pub fn restored(path: &Path, pages: usize) -> Plain {
    let (image, into) = (Image::open(path).unwrap(), Plain::new(pages));
    read_region(&image, "memory", into.bytes_mut()).unwrap();
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
