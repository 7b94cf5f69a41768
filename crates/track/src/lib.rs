//! Track: knowing what is written, and saving memory while it is.
//!
//! - [`DirtyTracker`] tells which pages were written since it was last asked.
//! - [`Snapshotter`] takes consistent snapshots of memory while the program goes on writing, full
//!   or incremental, into checksummed files.
//! - [`restore`] brings a snapshot back as new memory that can be used at once, and
//!   [`read_region`] all of it into memory there is.
//!
//! Tracked is [`Memory`] with a name: a [`Mapping`], which is the simplest, a
//! [`Region`](pagetide_pager::region::Region), or any mapping of the program's own. Writes are
//! noticed by write protection with userfaultfd. A mapping belongs to one userfaultfd at a time, so
//! it can have a tracker or a snapshotter, not both.
//!
//! ```
//! use pagetide::track::{Image, LazyPlan, restore};
//! use pagetide::track::{Mapping, Memory, ParkThreads, Plan, Snapshotter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("track-{}", std::process::id()));
//! let mut table = Mapping::new(64 << 20)?;
//! table.as_mut_slice()[0] = 7;
//! let memory = Memory::mapping("table", &table)?;
//! let Ok(snapshotter) = Snapshotter::builder().memory(memory).build() else {
//!     return Ok(()); // no right to open a userfaultfd
//! };
//! // All other threads hold still for about a millisecond, then write on.
//! let snapshot = snapshotter.snapshot(&path, Plan::full(), ParkThreads::default())?;
//! snapshot.wait()?;
//!
//! let mut restored = restore(Image::open(&path)?, LazyPlan::default())?;
//! let table = restored.take_region("table").expect("it was saved");
//! assert_eq!(table.as_slice()[0], 7); // fetched now; the rest comes meanwhile
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]
mod error;
mod faults;
mod guard;
mod handled;
mod mapping;
mod memory;
mod method;
mod presence;
pub mod snapshot;
mod spans;
mod threads;
mod tracker;

pub use error::TrackError;
pub use mapping::Mapping;
pub use memory::Memory;
pub use method::Method;
pub use pagetide_kernel::park::Exemption;
pub use snapshot::format::SnapshotId;
pub use snapshot::image::Image;
pub use snapshot::lazy::{Restored, restore};
pub use snapshot::reader::FileError;
pub use snapshot::restore::{read_region, read_region_with};
pub use snapshot::working_set::WorkingSet;
pub use snapshot::{
    Hold, LazyPlan, ParkThreads, Plan, Report, RestoreError, Snapshot, SnapshotError, Snapshotter,
    SnapshotterBuilder,
};
pub use tracker::{DirtyRange, DirtyTracker};
