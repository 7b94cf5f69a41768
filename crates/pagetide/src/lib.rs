//! Page-level control of memory from user space.
#![warn(missing_docs)]
pub mod ledger;
pub mod lock;
pub mod pager;
pub mod region;
pub mod report;
pub mod track;
pub mod ungoverned;

pub use region::{Builder, Delivery, PinGuard, Region, RegionError};
