//! Walks through fresh memory: where each goes on, and how many pages are filled at once for it.
//!
//! A thread that uses memory for the first time mostly walks through it: each of its faults is at
//! the page after those that the fault before filled. While it does, twice as many are filled each
//! time. With how many a new walk begins is learnt: more while most walks go on beyond what was
//! filled first, fewer while few do, so that scattered first touches are given a page each. So a
//! program that takes memory in blocks, gives it back and takes it again, has a fault a block.
use pagetide_kernel::PageNumber;

use super::streams::WINDOW_MAX;

/// Most pages filled at once.
const MOST: u64 = WINDOW_MAX as u64;
/// Most that a new walk begins with.
const FIRST_MOST: u64 = 16;
/// Walks followed at a time.
const WALKS: usize = 8;
/// Walks after which it is decided what new ones begin with.
const SAMPLE: u32 = 16;

#[derive(Debug, Clone, Copy)]
struct Walk {
    /// The page after those filled; page 0, which is never mapped, for no walk.
    next: PageNumber,
    /// Pages filled at once.
    window: u64,
    /// It has come to what was not filled for its first page.
    went_on: bool,
    /// When it was here last.
    used: u64,
}

const NONE: Walk = Walk {
    next: PageNumber(0),
    window: 1,
    went_on: false,
    used: 0,
};

impl Walk {
    /// Pages filled at once when it goes on.
    fn next_window(&self) -> u64 {
        (self.window * 2).min(MOST)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Walks {
    walks: [Walk; WALKS],
    clock: u64,
    /// Pages that a new walk begins with.
    first: u64,
    /// Walks that ended since that was decided, and those of them that had gone on.
    ended: u32,
    went_on: u32,
}

impl Default for Walks {
    fn default() -> Walks {
        Walks {
            walks: [NONE; WALKS],
            clock: 0,
            first: 1,
            ended: 0,
            went_on: 0,
        }
    }
}

impl Walks {
    /// How many pages to fill from `page` on, which is touched for the first time.
    pub(super) fn window(&self, page: PageNumber) -> u64 {
        let walk = self.walks.iter().find(|walk| walk.next == page);
        walk.map_or(self.first, Walk::next_window)
    }

    /// The `pages` pages from `page` on were filled. (A fault may have to be tried more than once.)
    /// Whether a walk goes on there.
    pub(super) fn filled(&mut self, page: PageNumber, pages: u64) -> bool {
        self.clock += 1;
        let known = self.walks.iter().position(|walk| walk.next == page);
        let index = known.unwrap_or_else(|| self.begin());
        let walk = &mut self.walks[index];
        if known.is_some() {
            walk.window = walk.next_window();
            walk.went_on = true;
        }
        (walk.next, walk.used) = (page.add(pages), self.clock);
        known.is_some()
    }

    /// A new walk in the place of the oldest.
    fn begin(&mut self) -> usize {
        let oldest = (0..WALKS).min_by_key(|index| self.walks[*index].used);
        let index = oldest.unwrap_or(0);
        let ended = std::mem::replace(&mut self.walks[index], NONE);
        if ended.next != PageNumber(0) {
            self.note_end(ended.went_on);
        }
        self.walks[index].window = self.first;
        index
    }

    fn note_end(&mut self, went_on: bool) {
        self.ended += 1;
        self.went_on += u32::from(went_on);
        if self.ended < SAMPLE {
            return;
        }
        if self.went_on * 2 >= self.ended {
            self.first = (self.first * 2).min(FIRST_MOST);
        } else if self.went_on * 4 < self.ended {
            self.first = (self.first / 2).max(1);
        }
        (self.ended, self.went_on) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults and pages filled in vain of a program that touches `pages` in this order.
    fn program(pages: impl Iterator<Item = u64>) -> (usize, usize) {
        let mut walks = Walks::default();
        let mut filled = std::collections::HashSet::new();
        let mut touched = std::collections::HashSet::new();
        let mut faults = 0;
        for page in pages {
            touched.insert(page);
            if filled.contains(&page) {
                continue;
            }
            faults += 1;
            let end = page + walks.window(PageNumber(page));
            let end = (page..end)
                .find(|page| !filled.insert(*page))
                .unwrap_or(end);
            walks.filled(PageNumber(page), end - page);
        }
        (faults, filled.difference(&touched).count())
    }

    #[test]
    fn blocks_taken_one_after_another_have_a_fault_or_two_each() {
        let blocks = (0..1000u64).flat_map(|block| (0..64).map(move |i| 1 + block * 1000 + i));
        let (faults, vain) = program(blocks);
        assert!(faults <= 1000 * 3 + 250, "{faults} faults");
        // A walk is filled for up to as many pages beyond its end as it is long.
        assert!(vain <= 1000 * 64, "{vain} in vain");
    }

    #[test]
    fn walks_of_several_threads_do_not_disturb_each_other() {
        let walks = (0..4000u64).flat_map(|i| (0..6).map(move |walk| 1 + walk * 1_000_000 + i));
        let (faults, vain) = program(walks);
        assert!(faults <= 6 * 80, "{faults} faults");
        assert!(vain <= 6 * 64, "{vain} in vain");
    }

    #[test]
    fn a_fault_that_is_tried_again_is_no_new_walk() {
        let mut walks = Walks::default();
        for page in 1..8 {
            walks.filled(PageNumber(1000 * page), 1);
        }
        let windows: Vec<u64> = (0..50).map(|_| walks.window(PageNumber(1001))).collect();
        assert_eq!(windows, [2; 50]);
        (0..50).for_each(|_| assert_eq!(walks.window(PageNumber(9000)), 1));
        walks.filled(PageNumber(1001), 2);
        assert_eq!(walks.window(PageNumber(1003)), 4);
    }

    #[test]
    fn scattered_first_touches_get_a_page_each() {
        let mut x = 1u64;
        let pages = std::iter::repeat_with(move || {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            1 + (x >> 33) % 4_000_000
        });
        let (faults, vain) = program(pages.take(20_000));
        assert!(vain * 50 < faults, "{vain} in vain");
    }
}
