//! A client's memory: which part of the image is where, and what became of each page.
//!
//! A page is *absent* until its bytes were installed, and *placed* from then on. Once the client
//! has given up what it holds (a REMOVE event) it is *removed*, for good: its contents are zeros,
//! never again the image's, and the kernel may still be about to empty it. That a page is placed
//! says only that nothing needs to bring it unasked; a fault on it is answered all the same.
use std::ops::Range;
use std::os::fd::OwnedFd;

use pagetide_kernel::{PageNumber, PageRange, each_gap};
use rustix::io::Errno;

pub use crate::area::Area;
use crate::bits::Bits;
use crate::kept::{Kept, Of};
use crate::words::Hearing;

/// See the module's text.
#[derive(Debug)]
pub struct Memory {
    /// By address, without overlaps; nor do they overlap in the image, but for a forked child's.
    areas: Vec<Area>,
    placed: Bits,
    removed: Bits,
    /// Some was unmapped: faults there may still be heard of.
    shrunk: bool,
    /// Of one that is kept for another process.
    hearing: Option<Hearing>,
}

impl Clone for Memory {
    /// The copy is kept nowhere.
    fn clone(&self) -> Memory {
        Memory {
            areas: self.areas.clone(),
            placed: self.placed.clone(),
            removed: self.removed.clone(),
            shrunk: self.shrunk,
            hearing: None,
        }
    }
}

impl Memory {
    /// Of `areas`, which overlap neither in memory nor in the image.
    pub fn new(areas: Vec<Area>) -> Memory {
        let (areas, bounds) = in_order(areas);
        Memory {
            areas,
            placed: Bits::new(bounds.clone()),
            removed: Bits::new(bounds),
            shrunk: false,
            hearing: None,
        }
    }

    /// The same, with all that is known in a file for who takes the client over.
    ///
    /// # Errors
    /// The kernel's: there is no such file.
    pub(crate) fn keeping(areas: Vec<Area>, of: Of) -> Result<(OwnedFd, Memory), Errno> {
        let (areas, bounds) = in_order(areas);
        let (file, kept) = Kept::create(areas, bounds, of)?;
        Ok((file, Memory::kept(kept)))
    }

    /// What was kept.
    pub(crate) fn kept(kept: Kept) -> Memory {
        Memory {
            areas: kept.areas,
            placed: Bits::kept(kept.base, kept.placed),
            removed: Bits::kept(kept.base, kept.removed),
            shrunk: false,
            hearing: Some(kept.hearing),
        }
    }

    /// Events may be read from now on that are not known here yet.
    pub(crate) fn begin_hearing(&self) {
        self.hearing.iter().for_each(Hearing::begin);
    }

    /// All events that were read are known here.
    pub(crate) fn end_hearing(&self) {
        self.hearing.iter().for_each(Hearing::end);
    }

    /// Its parts, by address.
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.areas.iter().map(|area| area.range.pages()).sum()
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

    /// Whether the client has given up page `image_page` of the image.
    pub fn is_removed(&self, image_page: u64) -> bool {
        self.removed.has(image_page)
    }

    /// How many of the `most` pages of the image from `first` on are removed, or are not: those
    /// that are as the first one is.
    pub fn alike(&self, first: u64, most: u64) -> (bool, u64) {
        let removed = self.is_removed(first);
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

    /// `range` is the client's no more; what was there.
    pub fn unmap(&mut self, range: PageRange) -> Vec<Area> {
        self.shrunk = true;
        if self.hearing.is_some() {
            // Who takes over knows of all areas that there were: what is gone is not to come back.
            self.remove(range);
        }
        self.take_out(range)
    }

    /// What was at `from` is at `to`, and what was there before is no more.
    pub fn move_pages(&mut self, from: PageRange, to: PageNumber) {
        let moved = self.take_out(from);
        self.take_out(PageRange::of(to, from.pages()));
        for area in moved {
            let start = to.add(area.range.start.0 - from.start.0);
            let range = PageRange::of(start, area.range.pages());
            self.put_in(Area { range, ..area });
        }
    }

    /// `area` is memory of the client's, as far as nothing is known to be there.
    pub fn put_back(&mut self, area: Area) {
        let there = self.areas_in(area.range);
        let mut gaps = Vec::new();
        each_gap(area.range, there.iter().map(|area| area.range), |gap| {
            gaps.push(gap)
        });
        let parts = gaps.into_iter().filter_map(|gap| area.part(gap));
        parts.for_each(|part| self.put_in(part));
    }

    /// The parts of areas in `range`.
    pub fn areas_in(&self, range: PageRange) -> Vec<Area> {
        let from = self.index_of(range.start);
        let areas = self.areas[from..].iter();
        areas.map_while(|area| area.part(range)).collect()
    }

    fn put_in(&mut self, area: Area) {
        let at = self.index_of(area.range.start);
        self.areas.insert(at, area);
    }

    /// Takes out what is in `range`, and gives it back.
    fn take_out(&mut self, range: PageRange) -> Vec<Area> {
        let from = self.index_of(range.start);
        let meets = self.areas[from..].iter();
        let to = from
            + meets
                .take_while(|area| area.range.start < range.end)
                .count();
        let taken: Vec<Area> = self.areas[from..to]
            .iter()
            .filter_map(|area| area.part(range))
            .collect();
        let before = self.areas.get(from).and_then(|area| {
            area.part(PageRange {
                start: PageNumber(0),
                end: range.start,
            })
        });
        let last = to.checked_sub(1).filter(|last| *last >= from);
        let after = last.and_then(|last| {
            self.areas[last].part(PageRange {
                start: range.end,
                end: PageNumber(u64::MAX),
            })
        });
        let left = before.filter(|_| from < to).into_iter().chain(after);
        self.areas.splice(from..to, left);
        taken
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
            let first = self.placed.first_in_neither(&self.removed, area.first..end);
            if let Some(first) = first {
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

/// `areas` by address, and between which pages of the image they are.
fn in_order(mut areas: Vec<Area>) -> (Vec<Area>, Range<u64>) {
    areas.sort_unstable_by_key(|area| area.range.start);
    let ends = areas.iter().map(|area| area.first + area.range.pages());
    let firsts = areas.iter().map(|area| area.first);
    let bounds = firsts.min().unwrap_or(0)..ends.max().unwrap_or(0);
    (areas, bounds)
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
        assert_eq!(memory.unmap(range(201, 203)), [area(201, 203, 11)]);
        assert_eq!(
            memory.absent_in(range(0, 900), 64),
            Some(area(200, 201, 10))
        );
        let after = memory.absent_in(range(201, 900), 64);
        assert_eq!(after, Some(area(203, 204, 13)));
        assert!(memory.has_shrunk());
    }

    #[test]
    fn what_is_moved_stays_what_it_is() {
        let mut memory = Memory::new(vec![area(100, 110, 50), area(200, 204, 60)]);
        memory.note_placed(52, 2);
        memory.remove(range(105, 106));
        // Over a part of what is there, which is no more.
        memory.move_pages(range(101, 108), PageNumber(202));
        let areas = [
            area(100, 101, 50),
            area(108, 110, 58),
            area(200, 202, 60),
            area(202, 209, 51),
        ];
        assert_eq!(memory.areas(), areas);
        assert_eq!(memory.unit_of(PageNumber(203)), Some(area(203, 204, 52)));
        assert_eq!(
            memory.absent_in(range(202, 300), 9),
            Some(area(202, 203, 51))
        );
        assert_eq!(
            memory.absent_in(range(203, 300), 9),
            Some(area(205, 206, 54))
        );
        assert_eq!(
            memory.absent_in(range(206, 300), 9),
            Some(area(207, 209, 56))
        );
        // And back, where something else is by now.
        let taken = memory.unmap(range(200, 206));
        assert_eq!(taken, [area(200, 202, 60), area(202, 206, 51)]);
        memory.move_pages(range(108, 110), PageNumber(201));
        taken.into_iter().for_each(|area| memory.put_back(area));
        let areas = [
            area(100, 101, 50),
            area(200, 201, 60),
            area(201, 203, 58),
            area(203, 206, 52),
            area(206, 209, 55),
        ];
        assert_eq!(memory.areas(), areas);
    }

    proptest! {
        /// Against a map of pages.
        #[test]
        fn moves_and_unmappings_are_those_of_pages(
            steps in prop::collection::vec((0u64..3, 0u64..60, 1u64..25, 0u64..60), 1..25),
        ) {
            let mut memory = Memory::new(vec![area(5, 25, 100), area(25, 40, 0)]);
            let pages = (5..25).map(|page| (page, page + 95));
            let mut model: std::collections::BTreeMap<u64, u64> =
                pages.chain((25..40).map(|page| (page, page - 25))).collect();
            for (kind, start, len, to) in steps {
                let from = range(start, start + len);
                let taken: Vec<(u64, u64)> = from.iter()
                    .filter_map(|page| Some((page.0, *model.get(&page.0)?)))
                    .collect();
                match kind {
                    0 => {
                        model.retain(|page, _| !from.contains(PageNumber(*page)));
                        memory.unmap(from);
                    }
                    1 => {
                        let target = PageRange::of(PageNumber(to), len);
                        model.retain(|page, _| {
                            let page = PageNumber(*page);
                            !from.contains(page) && !target.contains(page)
                        });
                        model.extend(taken.iter().map(|(page, image)| (page - start + to, *image)));
                        memory.move_pages(from, PageNumber(to));
                    }
                    _ => {
                        let back = Area { range: from, first: 500, unit: 1 };
                        memory.put_back(back);
                        from.iter().for_each(|page| {
                            model.entry(page.0).or_insert(500 + page.0 - start);
                        });
                    }
                }
                for page in 0..130 {
                    let known = memory.unit_of(PageNumber(page)).map(|unit| unit.first);
                    prop_assert_eq!(known, model.get(&page).copied());
                }
            }
        }
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
                false => drop(memory.unmap(range)),
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
