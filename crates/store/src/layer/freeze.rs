//! Layer: slots that a forked child may still read outlive their deletion.
//!
//! Freezes are numbered in order; the *epoch* is how many there have been. A slot born at epoch `b`
//! and deleted at epoch `d` is needed by every active freeze `k` with `b <= k < d`. A deleted slot
//! that some freeze needs goes to *limbo*: it is kept from the device, so it is neither reused nor
//! are its bytes given back. It waits with the newest freeze that needs it; when that ends it moves
//! to the next older one that needs it, or is deleted for good. So a thaw looks at the slots that
//! waited for it and at no others.

use crate::device::Device;
use crate::sync::lock;
use crate::table::Table;
use crate::{Capabilities, ErrorKind, Freeze, Page, Slot, Store, StoreError, Usage};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// A birth of zero: the slot is not in use. Otherwise epoch of birth plus one, and [`LIMBO`] once
/// it is deleted.
const UNUSED: u32 = 0;
const LIMBO: u32 = 1 << 31;
/// Epochs stop here. All later freezes then count as one, which keeps slots longer than needed and
/// never shorter.
const EPOCH_MAX: u32 = LIMBO - 2;
/// Slots per piece of a list of waiting slots.
const PIECE: usize = 4096;

/// The outermost layer: makes a [`Store`] of a device with its other layers.
pub(crate) struct Freezing<D> {
    inner: D,
    births: Table<AtomicU32>,
    epoch: AtomicU32,
    /// Active freezes, a copy of what `limbo` says: with none, a delete needs no lock.
    active: AtomicU32,
    waiting: AtomicU64,
    limbo: Mutex<Limbo>,
    inherited: AtomicBool,
    bytes_max: AtomicU64,
}

#[derive(Default)]
struct Limbo {
    /// Active freezes, oldest first.
    freezes: Vec<Waiting>,
}

/// One active freeze and the slots whose newest reader it is.
struct Waiting {
    number: u32,
    /// How many freezes share the number.
    count: u32,
    pieces: Vec<Vec<Slot>>,
}

impl Waiting {
    /// Remembers `slot`; false if there is no memory for it.
    fn push(&mut self, slot: Slot) -> bool {
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            let mut piece = Vec::new();
            if piece.try_reserve_exact(PIECE).is_err() || self.pieces.try_reserve(1).is_err() {
                return false;
            }
            self.pieces.push(piece);
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(slot);
        }
        true
    }
}

impl<D: Device> Freezing<D> {
    pub(crate) fn new(inner: D) -> Result<Freezing<D>, StoreError> {
        Ok(Freezing {
            inner,
            births: Table::new()?,
            epoch: AtomicU32::new(0),
            active: AtomicU32::new(0),
            waiting: AtomicU64::new(0),
            limbo: Mutex::new(Limbo::default()),
            inherited: AtomicBool::new(false),
            bytes_max: AtomicU64::new(0),
        })
    }

    fn bytes(&self, inner: &Usage) -> u64 {
        inner.bytes + self.births.bytes() + self.waiting.load(Relaxed) * size_of::<Slot>() as u64
    }

    /// A slot that waits in limbo holds bytes, but not for this process.
    #[inline]
    fn refuse_limbo(&self, slot: Slot) -> Result<(), StoreError> {
        if self.waiting.load(Relaxed) != 0
            && self
                .births
                .get(slot.0)
                .is_some_and(|birth| birth.load(Relaxed) & LIMBO != 0)
        {
            return Err(crate::slots::unused(slot));
        }
        Ok(())
    }

    fn forget(&self, slots: &[Slot]) {
        for slot in slots {
            if let Some(cell) = self.births.get(slot.0) {
                cell.store(UNUSED, Relaxed);
            }
        }
    }

    /// Puts `slot` in limbo if a freeze needs it. `None`: it is not in use.
    fn keep(&self, limbo: &mut Limbo, slot: Slot) -> Option<bool> {
        let cell = self.births.get(slot.0)?;
        let birth = cell.load(Relaxed);
        if birth == UNUSED || birth & LIMBO != 0 {
            return None;
        }
        let kept = match limbo.freezes.last_mut() {
            Some(newest) if birth - 1 <= newest.number => {
                // Without memory to remember it, it stays where it is for good: lost room, but no
                // lost bytes.
                newest.push(slot);
                self.waiting.fetch_add(1, Relaxed);
                true
            }
            _ => false,
        };
        cell.store(if kept { birth | LIMBO } else { UNUSED }, Relaxed);
        Some(kept)
    }

    /// Moves slots that waited for an ended freeze to the next older one that needs them, or
    /// deletes them.
    fn release(&self, limbo: &mut Limbo, older: usize, pieces: Vec<Vec<Slot>>) {
        for mut piece in pieces {
            piece.retain(|slot| {
                let Some(cell) = self.births.get(slot.0) else {
                    return false;
                };
                let birth = (cell.load(Relaxed) & !LIMBO) - 1;
                if let Some(next) = older
                    .checked_sub(1)
                    .and_then(|index| limbo.freezes.get_mut(index))
                    && birth <= next.number
                {
                    next.push(*slot);
                    return false;
                }
                cell.store(UNUSED, Relaxed);
                self.waiting.fetch_sub(1, Relaxed);
                true
            });
            self.inner.delete(&piece);
        }
    }
}

#[cold]
fn read_only() -> StoreError {
    StoreError::new(
        ErrorKind::Config,
        "put pages: this copy of the store belongs to a forked child and only reads",
    )
}

impl<D: Device> Store for Freezing<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        assert_eq!(pages.len(), slots.len(), "put: one slot for each page");
        if self.inherited.load(Acquire) {
            return Err(read_only());
        }
        // Read before the put: a freeze in between then counts the slots as its own, which at worst
        // keeps them longer.
        let birth = self.epoch.load(Acquire) + 1;
        self.inner.put(pages, slots)?;
        for slot in slots.iter() {
            match self.births.ensure(slot.0) {
                Ok(cell) => cell.store(birth, Relaxed),
                Err(error) => {
                    self.forget(slots);
                    self.inner.delete(slots);
                    return Err(error);
                }
            }
        }
        self.bytes_max
            .fetch_max(self.bytes(&self.inner.usage()), Relaxed);
        Ok(())
    }

    #[inline]
    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        self.refuse_limbo(slot)?;
        self.inner.get(slot, page)
    }

    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        assert_eq!(slots.len(), pages.len(), "get_many: one page for each slot");
        slots.iter().try_for_each(|slot| self.refuse_limbo(*slot))?;
        self.inner.get_many(slots, pages)
    }

    fn holds(&self, slot: Slot, page: &Page) -> bool {
        self.inner.holds(slot, page)
    }

    fn delete(&self, slots: &[Slot]) {
        if self.inherited.load(Acquire) {
            return;
        }
        if self.active.load(Acquire) == 0 {
            self.forget(slots);
            self.inner.delete(slots);
            return;
        }
        let mut limbo = lock(&self.limbo);
        for slot in slots {
            if self.keep(&mut limbo, *slot) == Some(false) {
                self.inner.delete(&[*slot]);
            }
        }
    }

    fn usage(&self) -> Usage {
        let mut usage = self.inner.usage();
        usage.memory_bytes += self.bytes(&usage) - usage.bytes;
        usage.bytes = self.bytes(&usage);
        usage.bytes_max = self
            .bytes_max
            .fetch_max(usage.bytes, Relaxed)
            .max(usage.bytes);
        usage.pages = usage.pages.saturating_sub(self.waiting.load(Relaxed));
        usage
    }

    fn hold_at_most(&self, shared_bytes: u64) {
        self.inner.hold_at_most(shared_bytes);
    }

    fn freeze(&self) -> Freeze {
        let mut limbo = lock(&self.limbo);
        let number = self.epoch.load(Relaxed);
        match limbo.freezes.last_mut() {
            Some(newest) if newest.number == number => newest.count += 1,
            _ => limbo.freezes.push(Waiting {
                number,
                count: 1,
                pieces: Vec::new(),
            }),
        }
        if self.active.fetch_add(1, Release) == 0 {
            self.inner.set_frozen(true);
        }
        self.epoch.store((number + 1).min(EPOCH_MAX), Release);
        Freeze(number)
    }

    fn thaw(&self, freeze: Freeze) {
        if self.inherited.load(Acquire) {
            return;
        }
        let mut limbo = lock(&self.limbo);
        let Ok(index) = limbo
            .freezes
            .binary_search_by_key(&freeze.0, |waiting| waiting.number)
        else {
            return;
        };
        limbo.freezes[index].count -= 1;
        if limbo.freezes[index].count == 0 {
            let ended = limbo.freezes.remove(index);
            self.release(&mut limbo, index, ended.pieces);
        }
        // Last: a delete that sees no freeze goes ahead without the lock, so nothing may be waiting
        // by then.
        if self.active.fetch_sub(1, Release) == 1 {
            self.inner.set_frozen(false);
        }
    }

    fn server_cpu(&self) -> Option<u32> {
        self.inner.server_cpu()
    }

    fn descriptors(&self) -> Vec<i32> {
        self.inner.descriptors()
    }

    fn inherit(&self, fds: &[i32]) {
        self.inherited.store(true, Release);
        self.inner.inherit(fds);
    }
}
