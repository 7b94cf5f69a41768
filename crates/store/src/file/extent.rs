//! Which pages of the file are in use: pure bookkeeping, told from outside what the disk gives and
//! takes.
//!
//! The file is divided into segments of 256 pages (1 MiB) with a bit per page. Pages are handed out
//! as runs of neighbours from one current segment, so that a batch becomes few writes; then from
//! empty segments, then from the gaps of others. Segments are the unit in which disk space is asked
//! for and given back.

use crate::{ErrorKind, StoreError};

/// Pages in a segment.
pub(crate) const SEGMENT: u64 = 256;
/// Segments per piece of their table.
const PIECE: usize = 1024;
/// A segment is worth making current for its gaps when this many pages are free: smaller ones make
/// short writes.
const GAP_PAGES: u16 = 64;
/// Segments looked at for gaps before the file is rather grown.
const LOOK: usize = 1024;

#[derive(Clone, Copy, Default)]
struct Segment {
    bits: [u64; 4],
    used: u16,
}

/// The state of all segments.
#[derive(Default)]
pub(crate) struct Extents {
    pieces: Vec<Box<[Segment]>>,
    count: usize,
    current: Option<usize>,
    /// Where the last search for gaps ended.
    looked: usize,
    /// Segments with room on disk and no page in use, the current one excepted.
    empty: Vec<u32>,
    /// Segments without room on disk.
    bare: Vec<u32>,
    free_pages: u64,
}

impl Extents {
    /// Takes up to `want` neighbouring pages and returns the first and how many. `None`: the file
    /// has to grow.
    pub(crate) fn take(&mut self, want: u64) -> Option<(u64, u64)> {
        if want == 0 || self.free_pages == 0 {
            return None;
        }
        let with_room = self
            .current
            .filter(|index| u64::from(self.segment(*index).used) < SEGMENT);
        let index = with_room
            .or_else(|| self.empty.pop().map(|index| index as usize))
            .or_else(|| self.gap(LOOK, GAP_PAGES))?;
        self.make_current(index);
        let segment = self.segment(index);
        let (start, len) = segment.run(want);
        segment.mark(start, len, true);
        self.free_pages -= len;
        Some((index as u64 * SEGMENT + start, len))
    }

    /// Makes the next [`take`](Extents::take) use even the smallest gap; false if there is none.
    /// For when the file cannot grow.
    pub(crate) fn use_any_gap(&mut self) -> bool {
        if self.free_pages == 0 {
            return false;
        }
        let found = self
            .empty
            .pop()
            .map(|index| index as usize)
            .or_else(|| self.gap(usize::MAX, 1));
        if let Some(index) = found {
            self.make_current(index);
        }
        found.is_some()
    }

    fn make_current(&mut self, index: usize) {
        // Only the current segment may be empty without being listed as such.
        if let Some(old) = self.current.replace(index)
            && old != index
            && self.segment(old).used == 0
        {
            self.empty.push(old as u32);
        }
    }

    /// A segment in use with at least `least` free pages, among the next `look`.
    fn gap(&mut self, look: usize, least: u16) -> Option<usize> {
        for _ in 0..look.min(self.count) {
            self.looked = (self.looked + 1) % self.count;
            let used = self.segment(self.looked).used;
            if used > 0 && SEGMENT as u16 - used >= least {
                return Some(self.looked);
            }
        }
        None
    }

    /// Gives one page back.
    pub(crate) fn give_back(&mut self, page: u64) {
        let index = (page / SEGMENT) as usize;
        if index >= self.count {
            return;
        }
        let current = self.current == Some(index);
        let segment = self.segment(index);
        segment.mark(page % SEGMENT, 1, false);
        let emptied = segment.used == 0;
        self.free_pages += 1;
        if emptied && !current {
            self.empty.push(index as u32);
        }
    }

    /// Segments that could be given back to the disk.
    pub(crate) fn empty_count(&self) -> u64 {
        self.empty.len() as u64
    }

    /// Takes an empty segment out, to give its room back.
    pub(crate) fn take_empty(&mut self) -> Option<u64> {
        let index = self.empty.pop()?;
        self.free_pages -= SEGMENT;
        Some(u64::from(index))
    }

    /// The segment has no room on disk any more.
    pub(crate) fn add_bare(&mut self, segment: u64) {
        self.bare.push(segment as u32);
    }

    /// A segment that needs room on disk before it is used, inside the file as it is.
    pub(crate) fn take_bare(&mut self) -> Option<u64> {
        self.bare.pop().map(u64::from)
    }

    /// The segment has room on disk and may be used.
    pub(crate) fn add_empty(&mut self, segment: u64) {
        self.empty.push(segment as u32);
        self.free_pages += SEGMENT;
    }

    /// The number of segments there are, in use or not: the first new one has this number.
    pub(crate) fn count(&self) -> u64 {
        self.count as u64
    }

    /// Makes entries for `more` segments at the end. They are still to be added as empty or bare.
    pub(crate) fn extend(&mut self, more: u64) -> Result<(), StoreError> {
        let refused = |error| {
            StoreError::new(ErrorKind::Full, "grow the table of file segments").with_cause(error)
        };
        while self.pieces.len() * PIECE < self.count + more as usize {
            let mut piece = Vec::new();
            piece.try_reserve_exact(PIECE).map_err(refused)?;
            piece.resize(PIECE, Segment::default());
            self.pieces.push(piece.into_boxed_slice());
        }
        self.count += more as usize;
        Ok(())
    }

    /// Bytes of heap.
    pub(crate) fn bytes(&self) -> u64 {
        let lists = (self.empty.capacity() + self.bare.capacity()) * size_of::<u32>();
        (self.pieces.len() * PIECE * size_of::<Segment>() + lists) as u64
    }

    /// `index` is below `count`.
    fn segment(&mut self, index: usize) -> &mut Segment {
        &mut self.pieces[index / PIECE][index % PIECE]
    }
}

impl Segment {
    /// The first run of free pages, at most `want` of them. The segment is not full.
    fn run(&self, want: u64) -> (u64, u64) {
        let start = (0..SEGMENT).find(|page| !self.is_used(*page)).unwrap_or(0);
        let end = (start..SEGMENT.min(start + want)).find(|page| self.is_used(*page));
        (start, end.unwrap_or(SEGMENT.min(start + want)) - start)
    }

    fn is_used(&self, page: u64) -> bool {
        self.bits[(page / 64) as usize] & (1 << (page % 64)) != 0
    }

    fn mark(&mut self, start: u64, len: u64, used: bool) {
        for page in start..start + len {
            let (word, bit) = (&mut self.bits[(page / 64) as usize], 1 << (page % 64));
            match (used, *word & bit != 0) {
                (true, false) => {
                    *word |= bit;
                    self.used += 1;
                }
                (false, true) => {
                    *word &= !bit;
                    self.used -= 1;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn grown(segments: u64) -> Extents {
        let mut extents = Extents::default();
        extents.extend(segments).unwrap();
        (0..segments)
            .rev()
            .for_each(|segment| extents.add_empty(segment));
        extents
    }

    #[test]
    fn batches_are_runs_of_neighbours() {
        let mut extents = grown(2);
        assert_eq!(extents.take(64), Some((0, 64)));
        assert_eq!(extents.take(64), Some((64, 64)));
        assert_eq!(extents.take(200), Some((128, 128)));
        assert_eq!(extents.take(200), Some((256, 200)));
    }

    #[test]
    fn every_page_is_handed_out_once_and_again_after_its_return() {
        let mut extents = grown(3);
        let mut all = BTreeSet::new();
        while let Some((first, len)) = extents.take(50) {
            (first..first + len).for_each(|page| assert!(all.insert(page)));
        }
        assert_eq!(all.len() as u64, 3 * SEGMENT);
        assert!(!extents.use_any_gap());
        for page in [3, 300, 301, 700] {
            extents.give_back(page);
        }
        let mut again = BTreeSet::new();
        while extents.use_any_gap() {
            let (first, len) = extents.take(50).unwrap();
            again.extend(first..first + len);
        }
        assert_eq!(again, BTreeSet::from([3, 300, 301, 700]));
    }

    #[test]
    fn whole_segments_come_and_go() {
        let mut extents = grown(2);
        let mut pages = Vec::new();
        while let Some((first, len)) = extents.take(256) {
            pages.extend(first..first + len);
        }
        pages.into_iter().for_each(|page| extents.give_back(page));
        // The current segment stays; the other can be given back.
        assert_eq!(extents.empty_count(), 1);
        let segment = extents.take_empty().unwrap();
        extents.add_bare(segment);
        assert_eq!(extents.take_bare(), Some(segment));
        extents.add_empty(segment);
        assert!(extents.take(1).is_some());
    }
}
