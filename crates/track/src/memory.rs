//! What is tracked: spans of memory with names.
use std::sync::Arc;

use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::io::Errno;

use pagetide_pager::region::{Region, Served};

/// A span of memory of the program's own, by name.
///
/// The name identifies the span in snapshot files, across runs of the program.
#[derive(Debug, Clone)]
pub struct Memory {
    pub(crate) name: String,
    pub(crate) range: PageRange,
    pub(crate) backing: Backing,
    /// The region it is, if it is one: kept alive.
    pub(crate) served: Option<Arc<Served>>,
}

/// What is behind pages that are not present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Zeros: private anonymous memory.
    Anonymous,
    /// Possibly bytes: shared memory, a file.
    Other,
}

/// Longest name of a span, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

impl Memory {
    /// The mapping of `len` bytes at `address`, both multiples of the page size.
    ///
    /// # Errors
    /// A misaligned or empty range, a part that is not mapped writable, or a name that is empty or
    /// too long.
    ///
    /// # Safety
    /// The range stays mapped, readable and writable, for as long as a tracker or snapshotter is
    /// made over it. It is not handed to another userfaultfd meanwhile.
    pub unsafe fn mapping(name: &str, address: *mut u8, len: usize) -> Result<Memory, TrackError> {
        let address = address as usize;
        check_name(name)?;
        if len == 0 || !address.is_multiple_of(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) {
            return Err(TrackError::Alignment(address, len));
        }
        let range = PageRange::covering(address, len);
        Ok(Memory {
            name: name.to_owned(),
            range,
            backing: backing(range)?,
            served: None,
        })
    }

    /// All memory of `region`, resident or not. It lasts at least as long as what is made over it.
    ///
    /// # Errors
    /// A name that is empty or too long.
    pub fn region(name: &str, region: &Region) -> Result<Memory, TrackError> {
        check_name(name)?;
        let served = region.served();
        Ok(Memory {
            name: name.to_owned(),
            range: served.memory.range(),
            backing: Backing::Anonymous,
            served: Some(served),
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

fn check_name(name: &str) -> Result<(), TrackError> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(TrackError::Name(name.to_owned())),
    }
}

/// Looks the range up in the list of mappings: every page of it must be mapped writable.
fn backing(range: PageRange) -> Result<Backing, TrackError> {
    let system = |errno| TrackError::System("reading /proc/self/maps", errno);
    let (mut backing, mut covered) = (Backing::Anonymous, 0);
    let mut maps = pagetide_kernel::maps::Maps::open().map_err(system)?;
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
    .map_err(system)?;
    if covered == range.pages() {
        Ok(backing)
    } else {
        Err(TrackError::NotMapped(range.address(), range.bytes()))
    }
}

/// Spans laid end to end, so that each page has an index.
#[derive(Debug)]
pub(crate) struct Spans {
    spans: Vec<Memory>,
    /// Index of each span's first page, and the number of pages at the end.
    first: Vec<usize>,
}

impl Spans {
    pub fn new(spans: Vec<Memory>) -> Result<Spans, TrackError> {
        let mut first = vec![0];
        for (number, span) in spans.iter().enumerate() {
            let before = &spans[..number];
            if let Some(other) = before.iter().find(|other| {
                other.name == span.name || !other.range.intersection(span.range).is_empty()
            }) {
                return Err(TrackError::Overlap(other.name.clone(), span.name.clone()));
            }
            first.push(first[number] + span.range.pages() as usize);
        }
        if spans.is_empty() {
            return Err(TrackError::Nothing);
        }
        Ok(Spans { spans, first })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.spans.iter()
    }

    /// Spans that are regions.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.spans.iter().filter_map(|span| span.served.as_ref())
    }

    /// Spans that are not.
    pub fn mappings(&self) -> impl Iterator<Item = &Memory> {
        self.spans.iter().filter(|span| span.served.is_none())
    }

    pub fn pages(&self) -> usize {
        self.first[self.spans.len()]
    }

    /// The index of `page`. Does not allocate.
    pub fn index(&self, page: PageNumber) -> Option<usize> {
        let number = self
            .spans
            .iter()
            .position(|span| span.range.contains(page))?;
        Some(self.first[number] + (page.0 - self.spans[number].range.start.0) as usize)
    }

    /// The span that page `index` is in.
    pub fn span_of(&self, index: usize) -> usize {
        self.first.partition_point(|first| *first <= index) - 1
    }

    pub fn span(&self, number: usize) -> &Memory {
        &self.spans[number]
    }

    /// Indexes of the pages of span `number`.
    pub fn indexes(&self, number: usize) -> std::ops::Range<usize> {
        self.first[number]..self.first[number + 1]
    }

    pub fn page(&self, index: usize) -> PageNumber {
        let span = self.span_of(index);
        self.spans[span]
            .range
            .start
            .add((index - self.first[span]) as u64)
    }

    /// The pages with indexes `from..to`, which lie in one span.
    pub fn range(&self, from: usize, to: usize) -> PageRange {
        let start = self.page(from);
        PageRange {
            start,
            end: start.add((to - from) as u64),
        }
    }
}

/// Why memory cannot be tracked.
#[derive(Debug, thiserror::Error)]
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
    Method(crate::Method, Errno),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

/// Names what failed.
pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> TrackError {
    move |errno| TrackError::System(what, errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(name: &str, start: u64, pages: u64) -> Memory {
        let start = PageNumber(start);
        Memory {
            name: name.into(),
            range: PageRange {
                start,
                end: start.add(pages),
            },
            backing: Backing::Anonymous,
            served: None,
        }
    }

    #[test]
    fn indexes_and_pages_are_each_others_inverse() {
        let spans = Spans::new(vec![
            memory("a", 100, 3),
            memory("b", 50, 2),
            memory("c", 103, 4),
        ])
        .unwrap();
        assert_eq!(spans.pages(), 9);
        for index in 0..9 {
            assert_eq!(spans.index(spans.page(index)), Some(index));
        }
        assert_eq!(
            (spans.span_of(2), spans.span_of(3), spans.span_of(5)),
            (0, 1, 2)
        );
        assert_eq!(spans.index(PageNumber(52)), None);
    }

    #[test]
    fn spans_that_share_pages_or_names_are_refused() {
        assert!(Spans::new(vec![memory("a", 1, 3), memory("b", 3, 2)]).is_err());
        assert!(Spans::new(vec![memory("a", 1, 1), memory("a", 3, 2)]).is_err());
        assert!(Spans::new(vec![]).is_err());
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        // SAFETY: refused, so nothing is made over it.
        let refused = unsafe { Memory::mapping("x", 4096 as *mut u8, 4096) };
        assert!(matches!(refused, Err(TrackError::NotMapped(..))));
        // SAFETY: as above.
        let refused = unsafe { Memory::mapping("x", 4097 as *mut u8, 4096) };
        assert!(matches!(refused, Err(TrackError::Alignment(..))));
    }
}
