//! First touches in no order: in which blocks all pages are likely to be used.
//!
//! A program that fills an array in no order (a hash table, a join by partitions, a scatter by key)
//! touches each page for the first time by itself, and in the end nearly all of them. So once some
//! pages of a block have been touched one by one, the rest of it is filled. What a walk fills
//! ([`super::walks`]) does not count. Nothing is filled so while that does not pay
//! ([`super::filled_ahead`]).
use pagetide_kernel::{PageNumber, PageRange};

/// Pages of a block, which begins at a multiple of them: 256 KiB.
const BLOCK_PAGES: u64 = 64;
/// Pages touched for the rest to be filled. Of the blocks of seven programs in which so many were,
/// nearly all were used whole (docs/decisions/0075).
const DENSE: u32 = 8;
/// Blocks watched at a time: 64 MiB.
const BLOCKS: usize = 256;
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Which block of the address space.
    number: u64,
    /// A bit for each page touched.
    touched: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Scattered {
    /// At a place that follows from its number; a newer one takes it.
    blocks: [Block; BLOCKS],
}

impl Default for Scattered {
    fn default() -> Scattered {
        let none = Block {
            number: 0,
            touched: 0,
        };
        Scattered {
            blocks: [none; BLOCKS],
        }
    }
}

impl Scattered {
    /// `page` was touched for the first time, and not after the page before it. Its block, if
    /// enough of that has been touched now.
    pub(super) fn touched(&mut self, page: PageNumber) -> Option<PageRange> {
        let number = page.0 / BLOCK_PAGES;
        let block = &mut self.blocks[number as usize % BLOCKS];
        if block.number != number {
            *block = Block { number, touched: 0 };
        }
        block.touched |= 1 << (page.0 % BLOCK_PAGES);
        if block.touched.count_ones() < DENSE {
            return None;
        }
        block.touched = 0;
        let start = PageNumber(number * BLOCK_PAGES);
        Some(PageRange::of(start, BLOCK_PAGES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults, and pages filled beside those that had one, of a program that touches `pages`.
    fn program(pages: impl Iterator<Item = u64>) -> (usize, usize) {
        let mut scattered = Scattered::default();
        let mut there = std::collections::HashSet::new();
        let mut faults = 0;
        for page in pages {
            if !there.insert(page) {
                continue;
            }
            faults += 1;
            let block = scattered.touched(PageNumber(page));
            there.extend(
                block
                    .iter()
                    .flat_map(|block| block.iter())
                    .map(|page| page.0),
            );
        }
        (faults, there.len() - faults)
    }

    /// Each of `0..count` once, in no order.
    fn shuffled(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |i| i * 7919 % count)
    }

    #[test]
    fn an_array_filled_in_no_order_has_few_faults() {
        let (faults, filled) = program(shuffled(10_000).map(|page| 64_000 + page));
        assert!(faults <= 10_000 / 8 + 8, "{faults} faults");
        assert!(faults + filled <= 10_000 + 64);
    }

    #[test]
    fn pages_far_from_each_other_are_given_nothing_more() {
        // Four in each block.
        let (faults, filled) = program(shuffled(10_000).map(|page| page * 16));
        assert_eq!((faults, filled), (10_000, 0));
    }

    #[test]
    fn a_page_that_comes_and_goes_is_touched_once() {
        let mut scattered = Scattered::default();
        for _ in 0..100 {
            assert_eq!(scattered.touched(PageNumber(77)), None);
        }
    }
}
