//! What can go wrong with a region.
use std::ops::Range;
use std::time::Duration;

use pagetide_store::StoreError;
use rustix::io::Errno;

use crate::handles::StartError;

/// What can go wrong with a region.
///
/// `Debug` shows the same as `Display`, so that `?` in `main` shows the advice.
///
/// ```
/// use pagetide::{Region, RegionError};
///
/// let region = match Region::builder().length(1 << 20).resident(64 << 10).build() {
///     Ok(region) => region,
///     Err(RegionError::Start(error)) => return eprintln!("{error}"), // what is missing here
///     Err(error) => panic!("{error}"),
/// };
/// let refused = region.pin(0..region.len()); // 256 pages; 16 may be resident
/// assert!(matches!(refused, Err(RegionError::Pinned(256, 16))));
/// ```
#[derive(thiserror::Error)]
pub enum RegionError {
    /// The length is not positive, or too large to map.
    #[error(
        "a region of {0} bytes cannot be mapped; give a length from one page up to what the \
         address space holds"
    )]
    Length(usize),
    /// The pager could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The store could not be opened.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// A range reaches beyond the region.
    #[error("bytes {0:?} reach beyond the region's {1} bytes")]
    Range(Range<usize>, usize),
    /// The pages do not fit in the budget.
    #[error("{0} pages cannot be pinned within a budget of {1} pages")]
    Pinned(u64, u64),
    /// A page of them has the most pins that can be counted.
    #[error("a page is pinned {0} times already, which is the most; release pins of it first")]
    PinCount(u64),
    /// The new bound did not hold in time.
    #[error(
        "the budget of {0} bytes does not hold yet after {1:?}: pinned pages or a failing store \
         keep memory resident"
    )]
    Budget(u64, Duration),
    /// Too many regions with signal delivery, or the signal handler could not be installed.
    #[error("signal delivery: {0}; use thread delivery, or fewer regions (at most 256 at a time)")]
    Signal(Errno),
    /// Reading from this store allocates memory, which a signal handler must not.
    #[error(
        "signal delivery does not go with the {0} store, whose reads allocate memory: use thread \
         delivery, or let a TLS proxy on this machine encrypt"
    )]
    Delivery(&'static str),
    /// A tracker or a snapshotter would miss what is given up.
    #[error("the region is tracked or snapshotted: drop the tracker or the snapshotter first")]
    Observed,
    /// A page could not be made resident: its bytes are lost.
    #[error("a page could not be loaded: {0}")]
    Load(Errno),
}

impl std::fmt::Debug for RegionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
