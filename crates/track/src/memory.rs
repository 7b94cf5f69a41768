//! [`Memory`]: what is tracked, a span of memory with a name.
use std::sync::Arc;

use pagetide_kernel::{PAGE_SIZE, PageRange};

use super::error::{NAME_BYTES_MAX, TrackError, system};
use super::mapping::{Mapping, Shared};
use pagetide_pager::region::{Region, Served};

/// A span of memory of the program's own, by name.
///
/// The name identifies the span in snapshot files, across runs of the program. What is made over a
/// [`Mapping`] or a [`Region`] keeps it alive.
///
/// ```
/// use pagetide::track::{Mapping, Memory};
///
/// let table = Mapping::new(1 << 20)?;
/// let memory = Memory::mapping("table", &table)?;
/// assert_eq!((memory.name(), memory.len()), ("table", 1 << 20));
/// # Ok::<(), pagetide::track::TrackError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Memory {
    pub(crate) name: String,
    pub(crate) range: PageRange,
    pub(crate) backing: Backing,
    /// The region it is, if it is one: kept alive.
    pub(crate) served: Option<Arc<Served>>,
    /// The mapping it is, if it is one: kept alive.
    pub(crate) _kept: Option<Arc<Shared>>,
}

/// What is behind pages that are not present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Zeros: private anonymous memory.
    Anonymous,
    /// Possibly bytes: shared memory, a file.
    Other,
}

impl Memory {
    /// All of `mapping`.
    ///
    /// # Errors
    /// A name that is empty or too long.
    pub fn mapping(name: &str, mapping: &Mapping) -> Result<Memory, TrackError> {
        Ok(Memory {
            _kept: Some(mapping.shared()),
            ..Memory::new(name, mapping.range())?
        })
    }

    /// All memory of `region`, resident or not.
    ///
    /// # Errors
    /// A name that is empty or too long.
    pub fn region(name: &str, region: &Region) -> Result<Memory, TrackError> {
        let served = region.served();
        Ok(Memory {
            served: Some(Arc::clone(&served)),
            ..Memory::new(name, served.memory.range())?
        })
    }

    /// The `len` bytes mapped at `address`, both multiples of the page size: memory that the
    /// program has mapped itself, shared memory and private file mappings too.
    ///
    /// # Errors
    /// A misaligned or empty range, a part that is not mapped writable, or a name that is empty or
    /// too long.
    ///
    /// # Safety
    /// The range stays mapped, readable and writable, for as long as a tracker or snapshotter is
    /// made over it. It is not handed to another userfaultfd meanwhile.
    pub unsafe fn from_raw_parts(
        name: &str,
        address: *mut u8,
        len: usize,
    ) -> Result<Memory, TrackError> {
        let address = address as usize;
        if len == 0 || !address.is_multiple_of(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) {
            return Err(TrackError::Alignment(address, len));
        }
        let memory = Memory::new(name, PageRange::covering(address, len))?;
        Ok(Memory {
            backing: backing(memory.range)?,
            ..memory
        })
    }

    fn new(name: &str, range: PageRange) -> Result<Memory, TrackError> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(TrackError::Name(name.to_owned()));
        }
        Ok(Memory {
            name: name.to_owned(),
            range,
            backing: Backing::Anonymous,
            served: None,
            _kept: None,
        })
    }

    /// The name given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes in the span.
    pub fn len(&self) -> usize {
        self.range.bytes()
    }

    /// Never true: a span has at least one page.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// Looks the range up in the list of mappings: every page of it must be mapped writable.
fn backing(range: PageRange) -> Result<Backing, TrackError> {
    let (mut backing, mut covered) = (Backing::Anonymous, 0);
    let mut maps =
        pagetide_kernel::maps::Maps::open().map_err(system("reading /proc/self/maps"))?;
    maps.for_each(|mapping| {
        let common = mapping.range.intersection(range);
        if common.is_empty() || !mapping.writable {
            return;
        }
        covered += common.pages();
        if mapping.backing != pagetide_kernel::maps::Backing::Anonymous {
            backing = Backing::Other;
        }
    })
    .map_err(system("reading /proc/self/maps"))?;
    if covered == range.pages() {
        Ok(backing)
    } else {
        Err(TrackError::NotMapped(range.address(), range.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_refused() {
        // SAFETY: refused, so nothing is made over it.
        let refused = unsafe { Memory::from_raw_parts("x", 4096 as *mut u8, 4096) };
        assert!(matches!(refused, Err(TrackError::NotMapped(..))));
        // SAFETY: as above.
        let refused = unsafe { Memory::from_raw_parts("x", 4097 as *mut u8, 4096) };
        assert!(matches!(refused, Err(TrackError::Alignment(..))));
    }
}
