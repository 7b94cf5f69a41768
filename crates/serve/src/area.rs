//! A part of a client's memory, and which part of the image it is.
use pagetide_kernel::{PageNumber, PageRange};

/// Pages of a client that follow each other in its memory and in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Where they are in the client.
    pub range: PageRange,
    /// The page of the image that the first one is.
    pub first: u64,
    /// Pages (of 4 KiB) in a page of this memory: 1, or 512 for huge pages.
    pub unit: u64,
}

impl Area {
    /// The page of the image that `page` is.
    pub fn image_page(&self, page: PageNumber) -> u64 {
        self.first + (page.0 - self.range.start.0)
    }

    /// The part of it that `range` has.
    pub(crate) fn part(&self, range: PageRange) -> Option<Area> {
        let part = self.range.intersection(range);
        (!part.is_empty()).then(|| Area {
            range: part,
            first: self.image_page(part.start),
            unit: self.unit,
        })
    }

    /// The page of this memory, 4 KiB or huge, that `page` is in.
    pub(crate) fn unit_of(&self, page: PageNumber) -> Area {
        let offset = (page.0 - self.range.start.0) / self.unit * self.unit;
        Area {
            range: PageRange::of(self.range.start.add(offset), self.unit),
            first: self.first + offset,
            unit: self.unit,
        }
    }
}
