//! Places in the store that faults have made superfluous. Giving a slot back takes the store's
//! locks and may allocate, so a fault only notes it here; the evictor gives it back, or the fault
//! thread before it holds still.
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::Lock;
use pagetide_store::Slot;
use rustix::io::Errno;

use crate::page::word::Place;

const CAPACITY: usize = 8192;

/// A bounded heap of places. Its lock is held for a few instructions only, and never while memory
/// under a pager is touched.
pub(crate) struct DeferredFrees {
    places: Mapping,
    lock: Lock,
    count: AtomicU64,
}

impl DeferredFrees {
    /// An empty one; preallocated.
    pub(crate) fn new() -> Result<DeferredFrees, Errno> {
        Ok(DeferredFrees {
            places: Mapping::new(CAPACITY * size_of::<AtomicU64>())?,
            lock: Lock::new(),
            count: AtomicU64::new(0),
        })
    }

    fn entry(&self, index: u64) -> &AtomicU64 {
        assert!(index < CAPACITY as u64);
        // SAFETY: the mapping holds CAPACITY zero-initialised words, lives as long as `self`, and
        // is only accessed atomically.
        unsafe { &*self.places.as_ptr().cast::<AtomicU64>().add(index as usize) }
    }

    /// Places waiting.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Notes a place. False when there is no room.
    pub(crate) fn push(&self, place: Place) -> bool {
        let _held = self.lock.lock();
        let count = self.count.load(Ordering::Relaxed);
        if count == CAPACITY as u64 {
            return false;
        }
        let word = (place.generation as u64) << 32 | place.slot.0 as u64;
        self.entry(count).store(word, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
        true
    }

    /// Takes up to `places.len()` of them; returns how many.
    pub(crate) fn take(&self, places: &mut [Place]) -> usize {
        if self.len() == 0 {
            return 0;
        }
        let _held = self.lock.lock();
        let count = self.count.load(Ordering::Relaxed);
        let taken = count.min(places.len() as u64);
        for (place, index) in places.iter_mut().zip(count - taken..count) {
            let word = self.entry(index).load(Ordering::Relaxed);
            *place = Place {
                generation: (word >> 32) as u8,
                slot: Slot(word as u32),
            };
        }
        self.count.store(count - taken, Ordering::Release);
        taken as usize
    }
}
