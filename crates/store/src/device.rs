//! What a store has to do itself. Everything that all stores need alike (checksums, freezes,
//! retries) is a layer above, so a device knows nothing of it: in particular a slot it is asked to
//! delete is no longer needed by anyone.

use crate::{Capabilities, Page, Slot, StoreError, Usage};

/// The part of [`Store`](crate::Store) that differs between stores. The contract of each call is
/// the one written there.
pub(crate) trait Device: Send + Sync {
    fn capabilities(&self) -> Capabilities;
    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError>;
    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError>;
    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        slots
            .iter()
            .zip(pages)
            .try_for_each(|(slot, page)| self.get(*slot, page))
    }
    /// Answered by the layer that has the checksums; nobody below it is asked.
    fn holds(&self, _slot: Slot, _page: &Page) -> bool {
        false
    }
    fn delete(&self, slots: &[Slot]);
    /// `bytes_max` is left at zero: it is kept by the outermost layer, which alone sees all bytes.
    fn usage(&self) -> Usage;
    /// As [`Store::hold_at_most`](crate::Store::hold_at_most); nothing to do for a device without
    /// shared memory.
    fn hold_at_most(&self, _shared_bytes: u64) {}
    /// While `frozen`, a forked child reads what this object has now, as this object has it now:
    /// nothing may be moved away from where its copy will look for it. Slots that are deleted
    /// meanwhile are kept from the device.
    fn set_frozen(&self, _frozen: bool) {}
    fn server_cpu(&self) -> Option<u32> {
        None
    }
    fn descriptors(&self) -> Vec<i32>;
    fn inherit(&self, fds: &[i32]);
}

impl Device for Box<dyn Device> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        (**self).put(pages, slots)
    }
    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        (**self).get(slot, page)
    }
    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        (**self).get_many(slots, pages)
    }
    fn delete(&self, slots: &[Slot]) {
        (**self).delete(slots);
    }
    fn usage(&self) -> Usage {
        (**self).usage()
    }
    fn hold_at_most(&self, shared_bytes: u64) {
        (**self).hold_at_most(shared_bytes);
    }
    fn set_frozen(&self, frozen: bool) {
        (**self).set_frozen(frozen);
    }
    fn server_cpu(&self) -> Option<u32> {
        (**self).server_cpu()
    }
    fn descriptors(&self) -> Vec<i32> {
        (**self).descriptors()
    }
    fn inherit(&self, fds: &[i32]) {
        (**self).inherit(fds);
    }
}
