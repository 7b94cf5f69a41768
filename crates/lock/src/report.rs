//! What is locked: ranges with mode, length, resident and locked bytes.
use pagetide_kernel::PageRange;
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::smaps::Area;

use super::error::LockError;
use super::flags::Mode;
use super::fork::state;
use super::registry::Segment;
use super::state::everything;

/// A run of pages locked in one way. Lengths in bytes.
///
/// ```
/// use pagetide::lock::{Mode, hold, ranges};
///
/// let key = [7u8; 32];
/// if let Ok(_held) = hold(&key, Mode::Full)
///     && let Ok(ranges) = ranges()
/// {
///     let address = key.as_ptr() as usize;
///     let holds = |range: &pagetide::lock::LockedRange| {
///         (range.address..range.address + range.len).contains(&address)
///     };
///     assert!(ranges.iter().any(holds));
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedRange {
    /// First address.
    pub address: usize,
    /// Bytes.
    pub len: usize,
    /// As the kernel has it: full if anyone wants it full.
    pub mode: Mode,
    /// How many hold it: owners, and the process counted as one.
    pub holders: u32,
    /// Bytes present in this process's page table (or in swap, before they were locked).
    pub resident_bytes: u64,
    /// Of those, bytes that the kernel keeps: all of them, or none where it never locks (`hugetlb`,
    /// droppable memory).
    pub locked_bytes: u64,
}

/// Everything locked through this module, in address order, after comparing with the kernel's list.
/// Once future locking has been used, memory that the kernel locked by itself is among it.
///
/// # Errors
/// If `/proc/self/smaps` or `/proc/self/pagemap` cannot be read.
pub fn ranges() -> Result<Vec<LockedRange>, LockError> {
    let failed = |errno| LockError::plain("ranges", errno);
    let mut state = state();
    let areas = state.reconcile().map_err(failed)?;
    let pagemap = Pagemap::open();
    let segments = state.registry.now().within(everything());
    segments
        .filter_map(|segment| describe(&pagemap, segment, &areas).transpose())
        .collect::<Result<_, _>>()
        .map_err(failed)
}

fn describe(
    pagemap: &Pagemap,
    segment: Segment,
    areas: &[Area],
) -> Result<Option<LockedRange>, rustix::io::Errno> {
    let Segment { range, holders } = segment;
    let Some(mode) = holders.mode() else {
        return Ok(None);
    };
    let (mut resident, mut locked) = (0, 0);
    pagemap.populated(range, |run: PageRange, _| {
        resident += run.bytes() as u64;
        let first = areas.partition_point(|area| area.range().end <= run.start);
        let overlapping = areas[first..].iter().map(Area::range);
        locked += overlapping
            .take_while(|area| area.start < run.end)
            .map(|area| area.intersection(run).bytes() as u64)
            .sum::<u64>();
    })?;
    Ok(Some(LockedRange {
        address: range.address(),
        len: range.bytes(),
        mode,
        holders: holders.count(),
        resident_bytes: resident,
        locked_bytes: locked,
    }))
}
