//! Knowing what is written, and photographing memory while it is.
//!
//! [`DirtyTracker`] tells which pages were written since it was last asked. [`Snapshotter`] takes
//! consistent images of memory while the program goes on writing, and
//! [`restore`](snapshot::restore) brings them back, at once or page by page.
//!
//! Both write-protect memory with userfaultfd. A mapping belongs to one userfaultfd at a time, so
//! it can have a tracker or a snapshotter, not both.
pub mod faults;
pub mod guard;
pub mod handled;
pub mod memory;
pub(crate) mod presence;
pub mod snapshot;
pub(crate) mod threads;
pub mod tracker;

pub use faults::Delivery;
pub use memory::{Memory, TrackError};
pub use snapshot::{Hold, ParkThreads, Snapshot, SnapshotError, Snapshotter};
pub use tracker::{DirtyTracker, Method};
