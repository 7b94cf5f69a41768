//! The slot table of a store: for each slot what kind of thing it holds and one word that says
//! where or what.
//!
//! Reading is lock-free, because `get` is on the path of a page fault. Taking and giving back slots
//! goes through a list of free slots threaded through the words of the free slots themselves, so it
//! costs no memory.

use crate::sync::lock;
use crate::table::{LEAF, Table};
use crate::{ErrorKind, Slot, StoreError};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Bytes per slot in the tables of the layers above a device: 8 for the checksum, 4 for the epoch
/// of birth. A device with a limit counts them, so that the limit holds for the whole store.
const LAYER_BYTES_PER_SLOT: u64 = 12;
const OWN_BYTES_PER_SLOT: u64 = 9;
const LEAF_BYTES: u64 = LEAF as u64 * (LAYER_BYTES_PER_SLOT + OWN_BYTES_PER_SLOT);
/// One block of pointers in each of the four tables: their roots, and then one for every 1024
/// leaves.
const POINTER_BYTES: u64 = 4 * 24 * 1024;

/// What a slot holds; its word says where or what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// One repeated word: the word itself.
    Filled = 1,
    /// The page as it is; the word is the device's own address for it.
    Plain = 2,
    /// The page compressed; the word is the device's own address and length.
    Packed = 3,
}

impl Kind {
    fn from_tag(tag: u8) -> Option<Kind> {
        match tag {
            1 => Some(Kind::Filled),
            2 => Some(Kind::Plain),
            3 => Some(Kind::Packed),
            _ => None,
        }
    }
}

const UNUSED: u8 = 0;
const END: u64 = u64::MAX;

struct Free {
    /// First free slot below `frontier`, or `END`; each free slot's word is the next.
    head: u64,
    /// Slots from here on were never taken.
    frontier: u32,
}

/// All slots of one device.
pub(crate) struct SlotTable {
    words: Table<AtomicU64>,
    tags: Table<AtomicU8>,
    free: Mutex<Free>,
    used: AtomicU64,
    leaves: AtomicU64,
}

impl SlotTable {
    pub(crate) fn new() -> Result<SlotTable, StoreError> {
        Ok(SlotTable {
            words: Table::new()?,
            tags: Table::new()?,
            free: Mutex::new(Free {
                head: END,
                frontier: 0,
            }),
            used: AtomicU64::new(0),
            leaves: AtomicU64::new(0),
        })
    }

    /// Takes a slot for each place of `slots`, or none. They hold nothing until
    /// [`set`](SlotTable::set). `room` is how many bytes the store may still grow by.
    pub(crate) fn take(&self, slots: &mut [Slot], room: u64) -> Result<(), StoreError> {
        let mut free = lock(&self.free);
        for taken in 0..slots.len() {
            match self.take_one(&mut free, room) {
                Ok(slot) => slots[taken] = slot,
                Err(error) => {
                    for slot in &slots[..taken] {
                        self.push(&mut free, *slot);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn take_one(&self, free: &mut Free, room: u64) -> Result<Slot, StoreError> {
        if free.head != END {
            let slot = Slot(free.head as u32);
            let word = self.words.get(slot.0);
            free.head = word.map_or(END, |word| word.load(Relaxed));
            return Ok(slot);
        }
        let slot = free.frontier;
        if slot == u32::MAX {
            return Err(StoreError::new(
                ErrorKind::Full,
                "take a slot: all 4294967295 are in use",
            ));
        }
        if (slot as usize).is_multiple_of(LEAF) {
            if room < LEAF_BYTES {
                return Err(StoreError::new(
                    ErrorKind::Full,
                    format!(
                        "grow the table of {slot} slots: the store's max leaves {room} bytes, \
                         {LEAF_BYTES} are needed"
                    ),
                ));
            }
            self.words.ensure(slot)?;
            self.tags.ensure(slot)?;
            self.leaves.fetch_add(1, Relaxed);
        }
        free.frontier += 1;
        Ok(Slot(slot))
    }

    fn push(&self, free: &mut Free, slot: Slot) {
        if let Some(word) = self.words.get(slot.0) {
            word.store(free.head, Relaxed);
            free.head = u64::from(slot.0);
        }
    }

    /// Gives back slots that hold nothing.
    pub(crate) fn give_back(&self, slots: &[Slot]) {
        let mut free = lock(&self.free);
        for slot in slots {
            self.push(&mut free, *slot);
        }
    }

    /// Puts a taken slot in use.
    pub(crate) fn set(&self, slot: Slot, kind: Kind, word: u64) {
        if let (Some(words), Some(tags)) = (self.words.get(slot.0), self.tags.get(slot.0)) {
            words.store(word, Relaxed);
            // Whoever sees the tag sees the word, and the bytes the word leads to.
            tags.store(kind as u8, Release);
            self.used.fetch_add(1, Relaxed);
        }
    }

    /// Gives a slot in use another word.
    pub(crate) fn change(&self, slot: Slot, word: u64) {
        if let Some(cell) = self.words.get(slot.0) {
            cell.store(word, Release);
        }
    }

    /// What a slot in use holds.
    #[inline]
    pub(crate) fn load(&self, slot: Slot) -> Option<(Kind, u64)> {
        let kind = Kind::from_tag(self.tags.get(slot.0)?.load(Acquire))?;
        Some((kind, self.words.get(slot.0)?.load(Relaxed)))
    }

    /// Puts a slot out of use and says what it held, to exactly one caller. The slot is still to be
    /// given back.
    pub(crate) fn clear(&self, slot: Slot) -> Option<(Kind, u64)> {
        let word = self.words.get(slot.0)?;
        let kind = Kind::from_tag(self.tags.get(slot.0)?.swap(UNUSED, AcqRel))?;
        self.used.fetch_sub(1, Relaxed);
        Some((kind, word.load(Relaxed)))
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes of heap of this table.
    pub(crate) fn bytes(&self) -> u64 {
        self.words.bytes() + self.tags.bytes()
    }

    /// Bytes of heap of this table and of those the layers above keep for the same slots.
    pub(crate) fn bytes_with_layers(&self) -> u64 {
        let leaves = self.leaves.load(Relaxed);
        POINTER_BYTES * (1 + leaves / 1024 + 1) + leaves * LEAF_BYTES
    }
}

/// The error for a slot that holds nothing.
#[cold]
pub(crate) fn unused(slot: Slot) -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        format!("read slot {}: it is not in use", slot.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_dense_and_reused() {
        let table = SlotTable::new().unwrap();
        let mut slots = [Slot(0); 5];
        table.take(&mut slots, u64::MAX).unwrap();
        assert_eq!(slots.map(|slot| slot.0), [0, 1, 2, 3, 4]);
        for slot in slots {
            assert_eq!(table.load(slot), None);
            table.set(slot, Kind::Filled, u64::MAX);
        }
        assert_eq!(table.clear(Slot(3)), Some((Kind::Filled, u64::MAX)));
        assert_eq!(table.clear(Slot(3)), None);
        assert_eq!(table.used(), 4);
        table.give_back(&[Slot(3)]);
        let mut again = [Slot(0); 2];
        table.take(&mut again, u64::MAX).unwrap();
        assert_eq!(again.map(|slot| slot.0), [3, 5]);
    }

    #[test]
    fn a_take_that_fails_takes_nothing() {
        let table = SlotTable::new().unwrap();
        let mut all = vec![Slot(0); LEAF - 1];
        table.take(&mut all, u64::MAX).unwrap();
        let mut two = [Slot(0); 2];
        assert_eq!(table.take(&mut two, 0).unwrap_err().kind, ErrorKind::Full);
        let mut one = [Slot(0); 1];
        table.take(&mut one, 0).unwrap();
        assert_eq!(one[0].0 as usize, LEAF - 1);
        assert_eq!(table.load(Slot(u32::MAX)), None);
    }
}
