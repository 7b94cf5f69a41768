//! How memory is to be restored, and why it could not be.
use std::sync::Arc;

use super::reader::FileError;
use super::working_set::WorkingSet;
use crate::error::{TrackError, debug_is_display};

/// Why memory could not be restored.
///
/// ```
/// use pagetide::track::{Image, LazyPlan, RestoreError, restore};
///
/// fn bring_back(path: &str) -> Result<(), RestoreError> {
///     restore(Image::open(path)?, LazyPlan::default())?.wait()
/// }
/// let error = bring_back("/no/such/snapshot").unwrap_err();
/// assert!(matches!(error, RestoreError::File(_)));
/// ```
#[derive(Clone, thiserror::Error)]
pub enum RestoreError {
    /// A file cannot be read, or a block of it is damaged. Pages that were lost raise SIGBUS when
    /// they are touched.
    #[error("{0}")]
    File(Arc<FileError>),
    /// The system. Restoring eagerly needs nothing but memory.
    #[error("{0}; restoring eagerly works without")]
    System(Arc<TrackError>),
    /// A region too large to map.
    #[error("region '{0}' has {1} pages, which cannot be mapped here")]
    Map(String, u64),
    /// A region that cannot be mapped where the plan says ([`LazyPlan::at`]).
    #[error("region '{name}' cannot be mapped at address {address:#x}: {why}")]
    Address {
        /// Of the region.
        name: String,
        /// Where it was to be.
        address: usize,
        /// What is wrong.
        why: String,
    },
    /// Pages could not be installed, as memory ran out. They are served when they are touched, as
    /// long as the memory is there.
    #[error("installing pages failed: {0}")]
    Install(String),
}

debug_is_display!(RestoreError);

impl From<FileError> for RestoreError {
    fn from(error: FileError) -> RestoreError {
        RestoreError::File(Arc::new(error))
    }
}

impl From<TrackError> for RestoreError {
    fn from(error: TrackError) -> RestoreError {
        RestoreError::System(Arc::new(error))
    }
}

/// How to restore.
///
/// ```
/// use pagetide::track::LazyPlan;
///
/// let plan = LazyPlan::default().without_background(); // nothing but what is touched
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct LazyPlan {
    pub(super) record: bool,
    pub(super) working_set: Option<WorkingSet>,
    pub(super) addresses: Vec<(String, usize)>,
    no_background: bool,
}

impl LazyPlan {
    /// Records the order of first touches, for
    /// [`Restored::working_set`](crate::Restored::working_set). Nothing is fetched before it is
    /// touched then, and each page by itself.
    pub fn record(mut self) -> LazyPlan {
        self.record = true;
        self
    }

    /// Fetches these pages first, in their order, in large batches.
    pub fn replay(mut self, set: WorkingSet) -> LazyPlan {
        self.working_set = Some(set);
        self
    }

    /// Maps region `name` at `address`, the beginning of a page, for memory that holds pointers to
    /// itself. Nothing may be mapped there. Other regions are mapped wherever there is room.
    pub fn at(mut self, name: impl Into<String>, address: usize) -> LazyPlan {
        self.addresses.push((name.into(), address));
        self
    }

    /// Fetches only what is touched (and a replayed working set).
    pub fn without_background(mut self) -> LazyPlan {
        self.no_background = true;
        self
    }

    pub(super) fn fetches_all(&self) -> bool {
        !self.record && !self.no_background
    }
}
