//! Page-level control of memory from user space, on stock Linux kernels.
//!
//! - **Page**: a [`Region`] is plain memory in a fixed, adjustable number of resident pages; the
//!   rest is in a store.
//! - **Lock**: [`lock`] keeps memory resident once it is touched, and costs nothing until then.
//! - **Track**: [`track`] tells which pages are written, takes snapshots of memory in use, and
//!   restores them.
#![warn(missing_docs)]

#[doc(inline)]
pub use pagetide_lock as lock;
#[doc(inline)]
pub use pagetide_pager::page::policy::Kind as Policy;
#[doc(inline)]
pub use pagetide_pager::region::{Builder, Delivery, PinGuard, Region, RegionError};
#[doc(inline)]
pub use pagetide_pager::report::{Latency, Statistics};
#[doc(inline)]
pub use pagetide_track as track;
