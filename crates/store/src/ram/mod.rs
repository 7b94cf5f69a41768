//! The `ram:` store: pages compressed in shared memory.
//!
//! A page that repeats one word is that word in the slot table; one that LZ4 shrinks to three
//! quarters or less is kept compressed; any other as it is. Reading takes no lock and allocates
//! nothing.

mod class;
mod slab;

use crate::device::Device;
use crate::lz4::{Packer, unpack};
use crate::mapping::Mapping;
use crate::meter::{Meter, Tally};
use crate::slots::{Kind, SlotTable, unused};
use crate::sync::Pool;
use crate::{Capabilities, ErrorKind, PAGE_SIZE, Page, Slot, StoreError, Usage};
use class::{Class, PACKED_MAX};
use slab::Slabs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Packers kept for reuse.
const PACKERS_MAX: usize = 8;
/// An estimate of those that are kept: most programs put from one thread.
const PACKER_BYTES: u64 = Packer::BYTES;

/// Pages in shared memory.
pub(crate) struct RamStore {
    slots: SlotTable,
    slabs: Slabs,
    packers: Pool<Box<Packer>>,
    meter: Meter,
    max_bytes: u64,
    /// The most bytes of shared memory, beside that.
    held_max: AtomicU64,
}

impl RamStore {
    /// A store that holds at most `max_bytes`, bookkeeping included; without it, as much as the
    /// system gives.
    pub(crate) fn new(max_bytes: Option<u64>) -> Result<RamStore, StoreError> {
        let system = rustix::system::sysinfo();
        let physical = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
        // Reserving costs nothing; four times the memory there is leaves room for a machine with
        // swap.
        let reserve = max_bytes
            .unwrap_or(u64::MAX)
            .min(physical.saturating_mul(4));
        let packers = Pool::new(PACKERS_MAX);
        packers.give_back(Packer::new());
        Ok(RamStore {
            slots: SlotTable::new()?,
            slabs: Slabs::new(Mapping::reserve(
                usize::try_from(reserve).unwrap_or(usize::MAX / 2),
            )?),
            packers,
            meter: Meter::default(),
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            held_max: AtomicU64::new(u64::MAX),
        })
    }

    fn put_one(
        &self,
        page: &Page,
        slot: Slot,
        packer: &mut Packer,
        tally: &mut Tally,
    ) -> Result<(), StoreError> {
        tally.pages += 1;
        if let Some(word) = page.same_filled() {
            tally.same_filled += 1;
            tally.stored_bytes += 8;
            self.slots.set(slot, Kind::Filled, word);
            return Ok(());
        }
        let (kind, bytes) = match packer.pack(page, PACKED_MAX) {
            Some(packed) => (Kind::Packed, packed),
            None => (Kind::Plain, &page.0[..]),
        };
        let held_max = self.max_bytes.saturating_sub(self.bookkeeping_bytes());
        let held_max = held_max.min(self.held_max.load(Relaxed));
        let offset = self.slabs.alloc(Class::of(bytes.len()), held_max)?;
        self.write(offset, bytes)?;
        tally.stored_bytes += bytes.len() as u64;
        self.slots.set(slot, kind, place(offset, bytes.len()));
        Ok(())
    }

    /// Bytes of heap for this store, those of the layers above included.
    fn bookkeeping_bytes(&self) -> u64 {
        self.slots.bytes_with_layers() + self.slabs.table_bytes() + PACKER_BYTES
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), StoreError> {
        let words = self.words(offset, bytes.len())?;
        let (chunks, rest) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter().zip(chunks) {
            word.store(u64::from_ne_bytes(*chunk), Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words[chunks.len()].store(u64::from_ne_bytes(last), Relaxed);
        }
        Ok(())
    }

    /// The words that cover `len` bytes at `offset`.
    #[inline]
    fn words(&self, offset: usize, len: usize) -> Result<&[AtomicU64], StoreError> {
        self.slabs
            .mapping()
            .words(offset, len.next_multiple_of(8))
            .ok_or_else(|| {
                StoreError::new(
                    ErrorKind::Corrupt,
                    format!("reach {len} bytes at {offset}: outside the ram store"),
                )
            })
    }

    fn drop_slot(&self, slot: Slot) -> bool {
        let Some((kind, word)) = self.slots.clear(slot) else {
            return false;
        };
        if kind != Kind::Filled {
            self.slabs.free(placed(word).0);
        }
        true
    }
}

impl Device for RamStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scheme: "ram",
            put_batch_pages: 16,
            get_sleeps: false,
            get_allocates: false,
            spills: false,
        }
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        let held = self.bookkeeping_bytes() + self.slabs.held_bytes();
        self.slots
            .take(slots, self.max_bytes.saturating_sub(held))?;
        let mut packer = self.packers.take().unwrap_or_else(Packer::new);
        let mut tally = Tally::default();
        let done = pages
            .iter()
            .zip(slots.iter())
            .try_for_each(|(page, slot)| self.put_one(page, *slot, &mut packer, &mut tally));
        self.packers.give_back(packer);
        match done {
            Ok(()) => self.meter.add(tally),
            Err(_) => {
                slots.iter().for_each(|slot| {
                    self.drop_slot(*slot);
                });
                self.slots.give_back(slots);
            }
        }
        done
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        let (kind, word) = self.slots.load(slot).ok_or_else(|| unused(slot))?;
        match kind {
            Kind::Filled => {
                page.fill(word);
                Ok(())
            }
            Kind::Plain => {
                let words = self.words(placed(word).0, PAGE_SIZE)?;
                touch(words);
                copy(words, &mut page.0);
                Ok(())
            }
            Kind::Packed => {
                let (offset, len) = placed(word);
                let words = self.words(offset, len)?;
                touch(words);
                let mut packed = [0; PACKED_MAX];
                copy(words, &mut packed);
                unpack(packed.get(..len).unwrap_or_default(), &mut page.0).ok_or_else(|| {
                    StoreError::new(ErrorKind::Corrupt, format!("decompress slot {}", slot.0))
                })
            }
        }
    }

    fn delete(&self, slots: &[Slot]) {
        for slot in slots {
            if self.drop_slot(*slot) {
                self.slots.give_back(&[*slot]);
            }
        }
    }

    fn usage(&self) -> Usage {
        let bytes =
            self.slots.bytes() + self.slabs.table_bytes() + self.slabs.held_bytes() + PACKER_BYTES;
        Usage {
            shared_bytes: self.slabs.held_bytes(),
            ..self.meter.usage(self.slots.used(), bytes, bytes)
        }
    }

    fn hold_at_most(&self, shared_bytes: u64) {
        self.held_max.store(shared_bytes, Relaxed);
    }

    fn descriptors(&self) -> Vec<i32> {
        Vec::new()
    }

    fn inherit(&self, _fds: &[i32]) {}
}

/// Offset and length of a blob in one word: lengths above 12 bits are whole pages, whose length the
/// slot's kind tells.
fn place(offset: usize, len: usize) -> u64 {
    ((offset as u64) << 12) | (len as u64 & 0xfff)
}

fn placed(word: u64) -> (usize, usize) {
    ((word >> 12) as usize, (word & 0xfff) as usize)
}

/// Asks for every cache line of `words` at once. They have not been used for long, and copying them
/// word by word waits for a few lines at a time.
#[inline]
fn touch(words: &[AtomicU64]) {
    const LINE_WORDS: usize = 8;
    let lines = words.iter().step_by(LINE_WORDS);
    black_box(lines.fold(0, |any, word| any | word.load(Relaxed)));
}

/// Copies shared words to bytes of this thread, so that what is decoded cannot change while it is
/// decoded.
#[inline]
fn copy(words: &[AtomicU64], bytes: &mut [u8]) {
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.load(Relaxed).to_ne_bytes();
    }
}
