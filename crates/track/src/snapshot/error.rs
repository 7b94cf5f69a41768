//! Why a snapshot could not be taken.
use std::path::PathBuf;

use pagetide_kernel::park::ParkError;

use super::format::SnapshotId;
use crate::error::{TrackError, debug_is_display};

/// Longest name of a snapshot, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The last so many snapshots can be built upon.
pub(crate) const BASES_MAX: usize = 1024;

/// Why a snapshot could not be taken. The program's memory is as it would be without it, and no
/// file is left under the snapshot's name.
///
/// ```
/// use pagetide::track::{SnapshotError, Snapshotter, TrackError};
///
/// let error = Snapshotter::builder().build().unwrap_err();
/// assert!(matches!(error, SnapshotError::Track(TrackError::Nothing)));
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
#[derive(thiserror::Error)]
pub enum SnapshotError {
    /// The memory cannot be snapshotted.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// The writers could not be held.
    #[error(transparent)]
    Park(#[from] ParkError),
    /// The hold closure did not call `arm`.
    #[error(
        "the hold closure returned without arming; it must call its argument once, while the \
         writers hold still"
    )]
    NotArmed,
    /// One at a time.
    #[error("a snapshot of this memory is being taken; wait for it or cancel it")]
    Busy,
    /// The base is not known here.
    #[error(
        "snapshot {0} cannot be built upon: it is not among the last {BASES_MAX} complete ones of \
         this snapshotter, its file or one that it builds on was replaced by a later snapshot, or \
         the snapshotter is not incremental (SnapshotterBuilder::incremental)"
    )]
    Base(SnapshotId),
    /// The name is taken, in the chain.
    #[error(
        "a snapshot that this one would build on is called '{0}' as well; every file of a chain \
         needs a name of its own"
    )]
    SameName(String),
    /// The name cannot be kept in files that would build on this one.
    #[error(
        "'{0}' cannot be a snapshot's name: it must be UTF-8 of at most {NAME_BYTES_MAX} bytes"
    )]
    Name(String),
    /// A snapshot finds the one it builds on beside it.
    #[error("a snapshot that builds on '{0}' must be in the same directory, which is '{1}'")]
    Elsewhere(String, PathBuf),
    /// Cancelled.
    #[error("the snapshot was cancelled")]
    Cancelled,
    /// The file or sink failed.
    #[error("the snapshot could not be written: {0}")]
    Sink(#[from] std::io::Error),
    /// Protecting memory failed while the snapshot was taken:
    /// [`pre_arm`](crate::Snapshotter::pre_arm) has said how.
    #[error(
        "memory could not be protected again while the snapshot was taken, and may have been \
         written unsaved; take it again"
    )]
    Spoiled,
    /// A region's store does not give a page.
    #[error("a page of the memory cannot be had from its store: {0}")]
    Lost(String),
    /// 2^31 snapshots were taken.
    #[error("this snapshotter has taken all the snapshots it can count; make a new one")]
    Epochs,
}

debug_is_display!(SnapshotError);
