//! Workloads for Pagetide, and the peers they are measured against.
//!
//! `first-numbers` compares kernel swap on zram with Pagetide: the [`worker`] is one executable
//! that knows nothing of either; [`peer`] puts it into a memory cgroup over a compressed swap
//! device, [`governed`] puts it under `pagetide run`.
//! [`comparison`] runs them in turns and [`report`] says what came out. Whatever the peer changes
//! on the machine is put back by [`undo`].
//!
//! [`paging`] is `bench paging`: any pattern of accesses, in a [`pagetide::Region`] or under
//! `pagetide run`, against kernel swap.
//! [`policy`] is `bench policy`: eviction policies on traces.
//! [`lock`] has the experiments on locking.
#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod cgroup;
pub mod comparison;
pub mod content;
pub mod governed;
pub mod launch;
pub mod lock;
pub mod machine;
pub mod paging;
pub mod peer;
pub mod policy;
pub mod report;
pub mod soak;
pub mod stores;
pub mod sysfs;
pub mod track;
pub mod undo;
pub mod worker;
pub mod zram;
