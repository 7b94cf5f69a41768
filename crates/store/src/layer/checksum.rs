//! Layer: a checksum per page, kept here and not in the store, so that nothing the store does can
//! make wrong bytes pass.
//!
//! XXH3 is no cryptographic hash, and what a program stores may come from people who wish it ill:
//! so it is computed under a random secret, and nobody can choose two pages that have one checksum.

use crate::device::Device;
use crate::table::Table;
use crate::{Capabilities, ErrorKind, Page, Slot, StoreError, Usage};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Bytes of a secret: as many as XXH3's own has.
const SECRET: usize = 192;

/// Verifies on every get that the bytes are those that were put.
pub(crate) struct Checked<D> {
    inner: D,
    secret: [u8; SECRET],
    sums: Table<AtomicU64>,
}

impl<D: Device> Checked<D> {
    pub(crate) fn new(inner: D) -> Result<Checked<D>, StoreError> {
        let mut secret = [0; SECRET];
        // So few bytes come all at once.
        getrandom(&mut secret, GetRandomFlags::empty()).map_err(|error| {
            StoreError::new(ErrorKind::Io, "make a key for checksums").with_cause(error)
        })?;
        Ok(Checked {
            inner,
            secret,
            sums: Table::new()?,
        })
    }

    #[inline]
    fn expected(&self, slot: Slot) -> u64 {
        self.sums.get(slot.0).map_or(0, |sum| sum.load(Relaxed))
    }

    #[inline]
    fn sum(&self, page: &Page) -> u64 {
        xxh3_64_with_secret(&page.0, &self.secret)
    }

    #[inline]
    fn verify(&self, slot: Slot, page: &Page, expected: u64) -> Result<(), StoreError> {
        let found = self.sum(page);
        if found == expected {
            Ok(())
        } else {
            Err(mismatch(slot, expected, found))
        }
    }
}

#[cold]
fn mismatch(slot: Slot, expected: u64, found: u64) -> StoreError {
    let context = format!(
        "read slot {}: the checksum is {found:#018x}, {expected:#018x} was put",
        slot.0
    );
    StoreError::new(ErrorKind::Corrupt, context)
}

impl<D: Device> Device for Checked<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        self.inner.put(pages, slots)?;
        for (page, slot) in pages.iter().zip(slots.iter()) {
            match self.sums.ensure(slot.0) {
                Ok(sum) => sum.store(self.sum(page), Relaxed),
                Err(error) => {
                    self.inner.delete(slots);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        // First, so that this and what the store looks up are on their way from memory together.
        let expected = self.expected(slot);
        self.inner.get(slot, page)?;
        self.verify(slot, page, expected)
    }

    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        self.inner.get_many(slots, pages)?;
        slots
            .iter()
            .zip(pages)
            .try_for_each(|(slot, page)| self.verify(*slot, page, self.expected(*slot)))
    }

    #[inline]
    fn holds(&self, slot: Slot, page: &Page) -> bool {
        self.sum(page) == self.expected(slot)
    }

    fn delete(&self, slots: &[Slot]) {
        self.inner.delete(slots);
    }

    fn usage(&self) -> Usage {
        let mut usage = self.inner.usage();
        usage.bytes += self.sums.bytes();
        usage.memory_bytes += self.sums.bytes();
        usage
    }

    fn hold_at_most(&self, shared_bytes: u64) {
        self.inner.hold_at_most(shared_bytes);
    }

    fn set_frozen(&self, frozen: bool) {
        self.inner.set_frozen(frozen);
    }

    fn server_cpu(&self) -> Option<u32> {
        self.inner.server_cpu()
    }

    fn descriptors(&self) -> Vec<i32> {
        self.inner.descriptors()
    }

    fn inherit(&self, fds: &[i32]) {
        self.inner.inherit(fds);
    }
}
