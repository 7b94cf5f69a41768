//! Layer: a checksum per page, kept here and not in the store, so that nothing the store does can
//! make wrong bytes pass.

use crate::device::Device;
use crate::table::Table;
use crate::{Capabilities, ErrorKind, Page, Slot, StoreError, Usage};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

/// Verifies on every get that the bytes are those that were put.
pub(crate) struct Checked<D> {
    inner: D,
    sums: Table<AtomicU64>,
}

impl<D: Device> Checked<D> {
    pub(crate) fn new(inner: D) -> Result<Checked<D>, StoreError> {
        Ok(Checked {
            inner,
            sums: Table::new()?,
        })
    }

    #[inline]
    fn expected(&self, slot: Slot) -> u64 {
        self.sums.get(slot.0).map_or(0, |sum| sum.load(Relaxed))
    }

    #[inline]
    fn verify(slot: Slot, page: &Page, expected: u64) -> Result<(), StoreError> {
        let found = xxh3_64(&page.0);
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
                Ok(sum) => sum.store(xxh3_64(&page.0), Relaxed),
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
        Self::verify(slot, page, expected)
    }

    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        self.inner.get_many(slots, pages)?;
        slots
            .iter()
            .zip(pages)
            .try_for_each(|(slot, page)| Self::verify(*slot, page, self.expected(*slot)))
    }

    fn delete(&self, slots: &[Slot]) {
        self.inner.delete(slots);
    }

    fn usage(&self) -> Usage {
        let mut usage = self.inner.usage();
        usage.bytes += self.sums.bytes();
        usage
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
