//! Workloads for Pagetide, and the peers they are measured against.
//!
//! A benchmark is a list of [`runner::System`]s, which [`runner::in_turns`] runs on the same work;
//! [`statistics`] makes medians and ratios of what they find, [`report`] tables or JSON, [`plot`]
//! pictures. What is measured in a process of its own is started by [`launch`]. Whatever a peer
//! changes on the machine is put back by [`undo`].
//!
//! [`paging`] compares paging with kernel swap, [`stores`] compares stores, [`policy`] eviction
//! policies on traces, [`programs`] real programs, [`lock`] the ways to lock, [`track`] tracking
//! and snapshots with `fork`, [`tree`] one budget for a run with a part of it for each process;
//! [`soak`] is a long run under changing budgets.
#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod arguments;
pub mod cgroup;
pub mod content;
pub mod launch;
pub mod lock;
pub mod machine;
pub mod memory;
pub mod paging;
pub mod plot;
pub mod policy;
pub mod programs;
pub mod report;
pub mod runner;
pub mod serve;
pub mod soak;
pub mod statistics;
pub mod stores;
pub mod sysfs;
pub mod track;
pub mod tree;
pub mod undo;
pub mod zram;
