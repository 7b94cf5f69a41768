//! [`Mapping`]: memory that can be tracked, snapshotted and restored without unsafe code.
use std::any::Any;
use std::fmt;
use std::sync::Arc;

use pagetide_kernel::{PageRange, own};

use super::error::{TrackError, system};

/// Memory of its own: whole pages of zeros, unmapped when the last thing made over it is dropped.
///
/// The pages are private, charged as they are touched, and out of core dumps. Make a
/// [`Memory`](crate::Memory) of it to track or snapshot it.
///
/// ```
/// use pagetide::track::{DirtyTracker, Mapping, Memory};
///
/// let mut table = Mapping::new(1 << 20)?;
/// let mut tracker = DirtyTracker::new(vec![Memory::mapping("table", &table)?])?;
/// table.as_mut_slice()[5000] = 1;
/// let written = tracker.take()?;
/// assert_eq!(written[0].offsets, 4096..8192);
/// # Ok::<(), pagetide::track::TrackError>(())
/// ```
pub struct Mapping {
    shared: Arc<Shared>,
}

/// What a mapping, and the trackers and snapshotters over it, keep alive.
#[derive(Clone)]
pub(crate) struct Shared {
    memory: Arc<own::Mapping>,
    /// Serves faults in the memory.
    _service: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl Mapping {
    /// Maps `len` bytes, rounded up to whole pages (at least one), of zeros.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn new(len: usize) -> Result<Mapping, TrackError> {
        let memory = own::Mapping::new(len).map_err(system("mapping memory"))?;
        Ok(Mapping::of(Arc::new(memory), None))
    }

    /// `memory`, whose faults are served as long as `service` lives. No other mapping is made of
    /// it.
    pub(crate) fn of(
        memory: Arc<own::Mapping>,
        service: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Mapping {
        let shared = Arc::new(Shared {
            memory,
            _service: service,
        });
        Mapping { shared }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn range(&self) -> PageRange {
        self.shared.memory.range()
    }

    /// First byte, for writes from several threads. Mapped as long as this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.memory.as_ptr()
    }

    /// Bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.shared.memory.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for as long as this lives; writes need `&mut self` or raw pointers, whose
        // users answer for aliasing.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, exclusive by the borrow: there is one `Mapping` of the memory, and
        // who tracks or snapshots it reads pages only while they are write-protected.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.memory.fmt(f)
    }
}
