//! The pager: keeps the resident pages of attached memory within a budget, and the rest in a store.
//!
//! Two threads do the work. The *fault thread* ([`fault`]) reads the userfaultfd: it serves faults,
//! follows what the program does to its mappings ([`address_space`]) and takes requests. The
//! *evictor* ([`evict`]) makes pages non-resident ahead of it. They meet in [`page`], where the
//! life of a page is, and share what [`pager::Pager`] has.
//!
//! Inside Pagetide only: users have the crate `pagetide`.
// Inner documentation, read with the source: it names what is private.
#![allow(rustdoc::private_intra_doc_links)]
#![warn(missing_docs)]
pub mod address_space;
pub mod audit;
pub mod budget;
mod callback;
mod deferred_frees;
pub mod evict;
pub mod fault;
mod footprint;
mod gate;
mod handles;
mod hold_still;
pub mod measure;
pub mod page;
pub mod pager;
mod pause;
pub mod placement;
pub mod protocol;
pub mod read_page;
pub mod recorder;
pub mod region;
pub mod requests;
mod source;
pub mod stores;
pub mod tree;
pub mod write_notification;

pub use evict::controller::Evictor;
pub use fault::thread::FaultThread;
pub use handles::{Handles, Ownership, StartError};
pub use pager::Pager;
pub use protocol::{ledger, report, ungoverned};
