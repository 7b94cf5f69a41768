//! Page numbers and ranges of pages: types of their own, so that a page, a byte count and an index
//! cannot be swapped.

/// Bits of an address below the page number.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in the OS page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// The number of a page of this process's address space: its address shifted right by
/// [`PAGE_SHIFT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);

impl PageNumber {
    /// The page that holds `address`.
    pub const fn containing(address: usize) -> PageNumber {
        PageNumber(address as u64 >> PAGE_SHIFT)
    }

    /// Address of the page's first byte.
    pub const fn address(self) -> usize {
        (self.0 << PAGE_SHIFT) as usize
    }

    /// The page `pages` further on.
    pub const fn add(self, pages: u64) -> PageNumber {
        PageNumber(self.0 + pages)
    }
}

/// The pages from `start` up to, not including, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// First page.
    pub start: PageNumber,
    /// One past the last page; never below `start`.
    pub end: PageNumber,
}

impl PageRange {
    /// The empty range.
    pub const EMPTY: PageRange = PageRange {
        start: PageNumber(0),
        end: PageNumber(0),
    };

    /// The pages that hold any byte of `address..address + len`.
    pub const fn covering(address: usize, len: usize) -> PageRange {
        let end = (address + len + PAGE_SIZE - 1) as u64 >> PAGE_SHIFT;
        PageRange {
            start: PageNumber::containing(address),
            end: PageNumber(end),
        }
    }

    /// One page.
    pub const fn one(page: PageNumber) -> PageRange {
        PageRange {
            start: page,
            end: page.add(1),
        }
    }

    /// `pages` pages from `start` on.
    pub const fn of(start: PageNumber, pages: u64) -> PageRange {
        PageRange {
            start,
            end: start.add(pages),
        }
    }

    /// Pages in the range.
    pub const fn pages(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Bytes in the range.
    pub const fn bytes(self) -> usize {
        (self.pages() << PAGE_SHIFT) as usize
    }

    /// Address of the first byte.
    pub const fn address(self) -> usize {
        self.start.address()
    }

    /// No pages.
    pub const fn is_empty(self) -> bool {
        self.start.0 >= self.end.0
    }

    /// Whether `page` is one of them.
    pub const fn contains(self, page: PageNumber) -> bool {
        self.start.0 <= page.0 && page.0 < self.end.0
    }

    /// What is left of the range after its first `pages` pages.
    pub fn after(self, pages: u64) -> PageRange {
        PageRange {
            start: self.start.add(pages.min(self.pages())),
            end: self.end,
        }
    }

    /// The pages in both; empty if there are none.
    pub fn intersection(self, other: PageRange) -> PageRange {
        let start = self.start.max(other.start);
        PageRange {
            start,
            end: self.end.min(other.end).max(start),
        }
    }

    /// Every page in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = PageNumber> {
        (self.start.0..self.end.0).map(PageNumber)
    }
}

/// Calls `visit` with each part of `range` that is in none of `parts`, which are in order and do
/// not overlap.
pub fn each_gap(
    range: PageRange,
    parts: impl Iterator<Item = PageRange>,
    mut visit: impl FnMut(PageRange),
) {
    let mut at = range.start;
    for part in parts {
        let part = part.intersection(range);
        if part.is_empty() {
            continue;
        }
        if at < part.start {
            visit(PageRange {
                start: at,
                end: part.start,
            });
        }
        at = at.max(part.end);
    }
    if at < range.end {
        visit(PageRange {
            start: at,
            end: range.end,
        });
    }
}
