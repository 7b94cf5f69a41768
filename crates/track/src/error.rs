//! Why memory cannot be tracked.
//!
//! `Debug` of the errors prints what `Display` does: an error that `main` returns is shown by
//! `Debug`, and is to say there, too, what to do.
use pagetide_kernel::PAGE_SIZE;
use rustix::io::Errno;

use super::method::Method;

/// Longest name of a span, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Why memory cannot be tracked.
///
/// ```
/// use pagetide::track::{DirtyTracker, TrackError};
///
/// let error = DirtyTracker::new(vec![]).unwrap_err();
/// assert!(matches!(error, TrackError::Nothing));
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
#[derive(thiserror::Error)]
pub enum TrackError {
    /// No span given.
    #[error("there is nothing to track: give at least one span of memory")]
    Nothing,
    /// A name that cannot be used.
    #[error("'{0}' cannot name a span of memory; expected 1 to {NAME_BYTES_MAX} bytes")]
    Name(String),
    /// An address or length that is not a multiple of the page size.
    #[error(
        "{1} bytes at {0:#x} are not whole pages; address and length must be multiples of \
         {PAGE_SIZE}, the length not 0"
    )]
    Alignment(usize, usize),
    /// A part is not mapped, or not writable.
    #[error("not all of the {1} bytes at {0:#x} is mapped writable; see /proc/self/maps")]
    NotMapped(usize, usize),
    /// Two spans share a name or pages.
    #[error("the spans '{0}' and '{1}' share a name or pages")]
    Overlap(String, String),
    /// No userfaultfd.
    #[error(
        "{0}; allow it with `sysctl -w vm.unprivileged_userfaultfd=1` or read-write access to \
         /dev/userfaultfd"
    )]
    Open(#[from] pagetide_kernel::uffd::OpenError),
    /// The kernel lacks something.
    #[error("this kernel lacks {0}; see `pagetide doctor`")]
    Feature(&'static str),
    /// The mapping has a userfaultfd already.
    #[error(
        "the {1} bytes at {0:#x} belong to another userfaultfd: a tracker, a snapshotter, a pager \
         or a restore that is not complete yet"
    )]
    Taken(usize, usize),
    /// Huge pages of the `hugetlb` kind.
    #[error(
        "the {1} bytes at {0:#x} are huge pages of hugetlbfs or MAP_HUGETLB, which cannot be \
         snapshotted, as no part of one can be written by itself; use plain memory (transparent \
         huge pages will do)"
    )]
    HugePages(usize, usize),
    /// Regions and mappings for one tracker.
    #[error("a tracker takes regions or mappings, not both: make one for each")]
    Mixed,
    /// A method asked for does not work on this memory.
    #[error("dirty tracking by {0} does not work for this memory: {1}")]
    Method(Method, Errno),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

/// Names what failed.
pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> TrackError {
    move |errno| TrackError::System(what, errno)
}

macro_rules! debug_is_display {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

debug_is_display!(TrackError);
pub(crate) use debug_is_display;
