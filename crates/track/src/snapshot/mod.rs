//! Snapshots, images of memory at one instant: how they are taken while the program goes on
//! writing, their files, and how they are brought back.
//!
//! A program needs little more than what [`track`](crate) names. Here are the parts for tools that
//! read and write the files themselves: [`format`](mod@format), [`reader`], [`writer`], [`sink`],
//! [`image`].
//!
//! ```
//! use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
//! use pagetide::track::snapshot::reader::{BlockBuffer, SnapshotFile};
//! use pagetide::track::snapshot::sink::FileSink;
//! use pagetide::track::snapshot::writer::Writer;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("file-{}", std::process::id()));
//! let region = RegionEntry { name: "table".into(), address: 0, pages: 100 };
//! let sink = Box::new(FileSink::create(&path)?); // there when it is complete, and not before
//! let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
//! writer.put(0, &[7], &[1; 4096])?; // page 7 of region 0; all others are zeros
//! assert_eq!(writer.finish()?.pages, 1);
//!
//! let file = SnapshotFile::open(&path)?;
//! let mut buffer = BlockBuffer::default();
//! assert_eq!(file.read_block(0, &mut buffer)?, &[1; 4096]);
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # How
//!
//! While the writers are held still ([`Hold`]), every page is write-protected (`arm`): that is the
//! whole pause. Then they go on. The first write to a page puts its old bytes aside and opens the
//! page at once (`copy_aside`); a worker takes the pages put aside and sweeps the rest
//! (`sweep`) into a file ([`writer`]). A page is claimed exactly once, under a lock bit of its
//! own (`pages`).
//!
//! A snapshotter that is *incremental* leaves pages protected after they are saved. It then knows
//! which pages were written since any earlier snapshot of its own, so that a later one can leave
//! out the rest, and has only those to protect again. *Pre-arming* protects what is open before the
//! writers are held, so that the pause has only to do what was written in the last moment.
mod arm;
mod bases;
mod begun;
mod copy_aside;
mod error;
mod fetch;
pub mod format;
mod hold;
pub mod image;
pub mod lazy;
mod pages;
mod placement;
mod plan;
mod pool;
pub mod reader;
pub mod restore;
mod restore_plan;
pub mod sink;
mod snapshotter;
mod start;
mod sweep;
mod under_way;
mod worker;
pub mod working_set;
pub mod writer;
mod writers;

pub use error::SnapshotError;
pub use hold::{Hold, ParkThreads};
pub use plan::Plan;
pub use restore_plan::{LazyPlan, RestoreError};
pub use snapshotter::{Snapshotter, SnapshotterBuilder};
pub use under_way::{Report, Snapshot};
