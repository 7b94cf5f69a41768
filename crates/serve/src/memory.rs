//! A client's memory: which part of the image is where, and what became of each page.
//!
//! A page is *absent* until its bytes were installed, and *placed* from then on. Once the client
//! has given up what it holds (a REMOVE event) it is *removed*, for good: its contents are zeros,
//! never again the image's, and the kernel may still be about to empty it. That a page is placed
//! says only that nothing needs to bring it unasked; a fault on it is answered all the same.
use pagetide_kernel::{PageNumber, PageRange};

use crate::bits::Bits;

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
    fn part(&self, range: PageRange) -> Option<Area> {
        let part = self.range.intersection(range);
        (!part.is_empty()).then(|| Area {
            range: part,
            first: self.image_page(part.start),
            unit: self.unit,
        })
    }

    /// The page of this memory, 4 KiB or huge, that `page` is in.
    fn unit_of(&self, page: PageNumber) -> Area {
        let offset = (page.0 - self.range.start.0) / self.unit * self.unit;
        Area {
            range: PageRange::of(self.range.start.add(offset), self.unit),
            first: self.first + offset,
            unit: self.unit,
        }
    }
}

/// See the module's text.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// By address, without overlaps; nor do they overlap in the image.
    areas: Vec<Area>,
    placed: Bits,
    removed: Bits,
    /// Some was unmapped: faults there may still be heard of.
    shrunk: bool,
}

impl Memory {
    /// Of `areas`, which overlap neither in memory nor in the image.
    pub fn new(mut areas: Vec<Area>) -> Memory {
        areas.sort_unstable_by_key(|area| area.range.start);
        let ends = areas.iter().map(|area| area.first + area.range.pages());
        let pages = ends.max().unwrap_or(0);
        Memory {
            areas,
            placed: Bits::new(pages),
            removed: Bits::new(pages),
            shrunk: false,
        }
    }

    /// Its parts, by address.
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// The first area that ends after `page`.
    fn index_of(&self, page: PageNumber) -> usize {
        self.areas.partition_point(|area| area.range.end <= page)
    }

    /// The page, 4 KiB or huge, that `page` is in.
    pub fn unit_of(&self, page: PageNumber) -> Option<Area> {
        let area = self.areas.get(self.index_of(page))?;
        area.range.contains(page).then(|| area.unit_of(page))
    }

    /// The page, 4 KiB or huge, that has page `image_page` of the image.
    pub fn unit_with(&self, image_page: u64) -> Option<Area> {
        let has =
            |area: &&Area| area.first <= image_page && image_page - area.first < area.range.pages();
        let area = self.areas.iter().find(has)?;
        Some(area.unit_of(area.range.start.add(image_page - area.first)))
    }

    /// The part of `range` that begins with its first page that is memory of the client's, as far
    /// as it is one area.
    pub fn first_in(&self, range: PageRange) -> Option<Area> {
        let area = self.areas.get(self.index_of(range.start))?;
        area.part(range)
    }

    /// How many of the `most` pages of the image from `first` on are removed, or are not: those
    /// that are as the first one is.
    pub fn alike(&self, first: u64, most: u64) -> (bool, u64) {
        let removed = self.removed.has(first);
        let same = (first..first + most).take_while(|page| self.removed.has(*page) == removed);
        (removed, same.count() as u64)
    }

    /// Pages from `image_page` on are there; how many were not.
    pub fn note_placed(&mut self, image_page: u64, pages: u64) -> u64 {
        self.placed.set(image_page, pages, true)
    }

    /// The client has given up what is in `range`; how many of its pages were not given up before.
    pub fn remove(&mut self, range: PageRange) -> u64 {
        let mut rest = range;
        let mut new = 0;
        while let Some(part) = self.first_in(rest) {
            let pages = part.range.pages();
            self.placed.set(part.first, pages, false);
            new += self.removed.set(part.first, pages, true);
            rest.start = part.range.end;
        }
        new
    }

    /// `range` is the client's no more.
    pub fn unmap(&mut self, range: PageRange) {
        let mut left = Vec::with_capacity(self.areas.len() + 1);
        for area in std::mem::take(&mut self.areas) {
            let before = PageRange {
                start: PageNumber(0),
                end: range.start,
            };
            let after = PageRange {
                start: range.end,
                end: PageNumber(u64::MAX),
            };
            left.extend([before, after].iter().filter_map(|side| area.part(*side)));
        }
        self.areas = left;
        self.shrunk = true;
    }

    /// Whether some was unmapped.
    pub fn has_shrunk(&self) -> bool {
        self.shrunk
    }

    /// Whether a page of the client's is absent.
    pub fn has_absent(&self) -> bool {
        let all = PageRange {
            start: PageNumber(0),
            end: PageNumber(u64::MAX),
        };
        self.absent_in(all, 1).is_some()
    }

    /// The first absent pages of `range`, as many as follow each other in one area, `most` or fewer
    /// but a whole page of this memory at least.
    pub fn absent_in(&self, range: PageRange, most: u64) -> Option<Area> {
        let mut rest = range;
        while let Some(area) = self.first_in(rest) {
            let is_absent = |page: &u64| !self.placed.has(*page) && !self.removed.has(*page);
            let end = area.first + area.range.pages();
            if let Some(first) = (area.first..end).find(is_absent) {
                let start = area.range.start.add(first - area.first);
                let unit = self.unit_of(start)?;
                let most = most.max(unit.unit);
                let count = (first..end)
                    .take(most as usize)
                    .take_while(is_absent)
                    .count() as u64;
                let whole = (count / unit.unit).max(1) * unit.unit;
                return Some(Area {
                    range: PageRange::of(unit.range.start, whole),
                    ..unit
                });
            }
            rest.start = area.range.end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange {
            start: PageNumber(start),
            end: PageNumber(end),
        }
    }

    fn area(start: u64, end: u64, first: u64) -> Area {
        let range = range(start, end);
        Area {
            range,
            first,
            unit: 1,
        }
    }

    #[test]
    fn pages_are_found_by_address_and_by_their_place_in_the_image() {
        let memory = Memory::new(vec![area(500, 520, 0), area(100, 110, 30)]);
        assert_eq!(memory.unit_of(PageNumber(103)), Some(area(103, 104, 33)));
        assert_eq!(memory.unit_of(PageNumber(519)), Some(area(519, 520, 19)));
        assert_eq!(memory.unit_of(PageNumber(110)), None);
        assert_eq!(memory.unit_with(39), Some(area(109, 110, 39)));
        assert_eq!(memory.unit_with(25), None);
    }

    #[test]
    fn what_is_removed_stays_removed() {
        let mut memory = Memory::new(vec![area(100, 110, 30), area(110, 120, 0)]);
        assert_eq!(memory.note_placed(38, 2), 2);
        assert_eq!(memory.remove(range(108, 112)), 4);
        assert_eq!(memory.alike(37, 3), (false, 1));
        assert_eq!(memory.alike(38, 2), (true, 2));
        memory.note_placed(38, 1);
        assert_eq!(memory.alike(38, 2), (true, 2));
        assert_eq!(memory.remove(range(100, 120)), 16);
        assert_eq!(memory.absent_in(range(0, 1000), 100), None);
    }

    #[test]
    fn absent_pages_are_found_in_order() {
        let mut memory = Memory::new(vec![area(100, 110, 0), area(200, 204, 10)]);
        memory.note_placed(0, 3);
        memory.remove(range(105, 106));
        assert_eq!(memory.absent_in(range(0, 900), 64), Some(area(103, 105, 3)));
        assert_eq!(memory.absent_in(range(0, 900), 1), Some(area(103, 104, 3)));
        memory.note_placed(3, 7);
        let last = area(200, 204, 10);
        assert_eq!(memory.absent_in(range(0, 900), 64), Some(last));
        assert_eq!(memory.absent_in(range(0, 200), 64), None);
        memory.unmap(range(201, 203));
        assert_eq!(
            memory.absent_in(range(0, 900), 64),
            Some(area(200, 201, 10))
        );
        let after = memory.absent_in(range(201, 900), 64);
        assert_eq!(after, Some(area(203, 204, 13)));
        assert!(memory.has_shrunk());
    }

    /// A page given up or unmapped.
    fn event() -> impl Strategy<Value = (bool, u64, u64)> {
        (any::<bool>(), 90u64..150, 1u64..20)
    }

    fn after(events: &[(bool, u64, u64)]) -> Memory {
        let mut memory = Memory::new(vec![area(100, 120, 30), area(130, 140, 0)]);
        memory.note_placed(33, 4);
        for (is_removal, start, pages) in events {
            let range = range(*start, start + pages);
            match is_removal {
                true => drop(memory.remove(range)),
                false => memory.unmap(range),
            }
        }
        memory
    }

    proptest! {
        /// Why events need not be put in the order in which things happened.
        #[test]
        fn the_order_of_events_makes_no_difference(
            (events, shuffled) in prop::collection::vec(event(), 0..12)
                .prop_flat_map(|events| (Just(events.clone()), Just(events).prop_shuffle())),
        ) {
            let (one, other) = (after(&events), after(&shuffled));
            for page in (90..170).map(PageNumber) {
                let unit = one.unit_of(page);
                prop_assert_eq!(unit, other.unit_of(page));
                if let Some(unit) = unit {
                    let seen = |memory: &Memory| {
                        let absent = memory.absent_in(unit.range, 1).is_some();
                        (memory.alike(unit.first, 1), absent)
                    };
                    prop_assert_eq!(seen(&one), seen(&other));
                }
            }
            prop_assert_eq!(one.has_absent(), other.has_absent());
        }
    }

    #[test]
    fn huge_pages_are_whole() {
        let huge = Area {
            range: range(1024, 1024 + 3 * 512),
            first: 0,
            unit: 512,
        };
        let mut memory = Memory::new(vec![huge]);
        let second = memory.unit_of(PageNumber(1024 + 700)).unwrap();
        assert_eq!((second.range, second.first), (range(1536, 2048), 512));
        memory.note_placed(second.first, 512);
        let first = memory.absent_in(huge.range, 16).unwrap();
        assert_eq!(first.range, range(1024, 1536));
        memory.note_placed(0, 512);
        let third = memory.absent_in(huge.range, 4096).unwrap();
        assert_eq!(third.range, range(2048, 2560));
    }
}
