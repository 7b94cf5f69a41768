//! What the pager knows of the address space as a whole.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::managed::ManagedRanges;
use super::mapping_lock::MappingLock;
use super::own_drops::OwnDrops;
use super::throttle::SyscallThrottle;

/// Which memory is managed, and who may change what is where.
pub struct AddressSpace {
    pub(crate) managed: ManagedRanges,
    /// Ranges the evictor is emptying in place: their remove events are not the program's.
    pub(crate) own_drops: OwnDrops,
    /// In the way of the program's calls when they leave the pager no moment to work.
    pub throttle: SyscallThrottle,
    /// Lets one at a time in of the program's calls that change what is where, and pages that are
    /// emptied in place.
    pub mapping_lock: MappingLock,
    /// Counts unmappings and moves heard of: the program may map anew.
    changes: AtomicU64,
}

impl AddressSpace {
    pub(crate) fn new() -> AddressSpace {
        let counts_events = pagetide_kernel::uffd::events::are_counted();
        AddressSpace {
            managed: ManagedRanges::default(),
            own_drops: OwnDrops::default(),
            throttle: SyscallThrottle::default(),
            mapping_lock: MappingLock::new(counts_events),
            changes: AtomicU64::new(0),
        }
    }

    /// How many unmappings and moves were heard of.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// One more was.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Relaxed);
    }
}
