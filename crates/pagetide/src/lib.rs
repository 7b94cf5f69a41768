//! Page-level control of a program's memory from user space, on stock Linux kernels.
//!
//! # Page: memory larger than RAM
//!
//! A [`Region`] is plain memory of which at most a budget is resident. The rest is compressed in a
//! store, and each page comes back when it is touched.
//!
//! ```
//! use pagetide::Region;
//!
//! let region = Region::builder()
//!     .length(1 << 30) // bytes of memory
//!     .resident(64 << 20) // at most this much of it resident; `set_budget` changes it
//!     .store_uri("ram:?max=2G") // or a file, a device, a server
//!     .build();
//! match region {
//!     Ok(mut region) => {
//!         region.as_mut_slice()[123_456_789] = 42;
//!         println!("{} bytes are resident", region.stats().resident_bytes);
//!     }
//!     Err(error) => eprintln!("{error}"), // no right to open a userfaultfd, say
//! }
//! ```
//!
//! # Lock: memory that stays
//!
//! [`lock`] keeps memory resident from the moment it is touched, and costs nothing until then: for
//! slices ([`lock::hold`]), for files of which a part is used ([`lock::LockedFile`]), for secrets
//! ([`lock::SecretBuf`]). Who holds which page is counted.
//!
//! ```
//! use pagetide::lock::{Mode, hold_mut};
//!
//! let mut table = vec![0u8; 1 << 20];
//! match hold_mut(&mut table, Mode::OnFault) {
//!     Ok(mut held) => held[5000] = 1, // in memory until `held` is dropped
//!     Err(error) => eprintln!("{error}"), // names the limit, and the line that raises it
//! }
//! ```
//!
//! # Track: what was written
//!
//! [`track`] tells which pages were written ([`track::DirtyTracker`]), saves memory while the
//! program goes on writing ([`track::Snapshotter`]), and brings it back, page by page as it is
//! touched ([`track::restore`]). It takes memory of its own, mappings of yours, and regions.
//!
//! ```
//! use pagetide::track::{DirtyTracker, Mapping, Memory};
//!
//! let mut table = Mapping::new(1 << 20)?;
//! let mut tracker = DirtyTracker::new(vec![Memory::mapping("table", &table)?])?;
//! table.as_mut_slice()[5000] = 1;
//! assert_eq!(tracker.take()?[0].offsets, 4096..8192);
//! # Ok::<(), pagetide::track::TrackError>(())
//! ```
//!
//! # Rights and errors
//!
//! A [`Region`] and a snapshotter need the right to open a userfaultfd, unless their faults come by
//! signal ([`Delivery`]); locking needs a lock limit. `pagetide doctor` says what is missing here.
//! Errors name the file or the call, and the line that mends it. Those of [`lock`] and [`track`]
//! print the same by `Debug`, so that it is seen when `fn main() -> Result<(), Box<dyn Error>>`
//! returns them.
#![warn(missing_docs)]

#[doc(inline)]
pub use pagetide_lock as lock;
#[doc(inline)]
pub use pagetide_pager::page::policy::Kind as Policy;
#[doc(inline)]
pub use pagetide_pager::region::{
    Builder as RegionBuilder, Delivery, PinGuard, Region, RegionError,
};
#[doc(inline)]
pub use pagetide_pager::report::{Latency, Statistics};
#[doc(inline)]
pub use pagetide_track as track;
