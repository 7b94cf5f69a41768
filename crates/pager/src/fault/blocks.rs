//! Blocks: a page that is missed may be read together with its neighbours, where they are missed
//! soon after it. Where that is so is decided for each region of the address space apart, by
//! trials.
//!
//! A *trial* is a block of which one page was missed and no other read: which of the others that
//! are in the store are missed soon? Those would have been read in time, the rest in vain. A region
//! has an account for each size of block, of pages gained less pages in vain; blocks of the largest
//! size that gains are read. Of the blocks of such a region one in eight is a trial all the same,
//! because pages that were read cause no fault, used or not. So both decisions have one measure.
use pagetide_kernel::PageNumber;
use pagetide_kernel::sync::Mutex;

/// Pages of the largest block, and in how many sizes (2, 4, 8 and 16 pages) it is read.
const BLOCK_SHIFT: u32 = 4;
const SIZES: usize = BLOCK_SHIFT as usize;
/// A region is 32 MiB: large enough to be known soon. So many are told apart; those further on
/// share an account.
const REGION_SHIFT: u32 = 13;
const REGIONS: usize = 1024;
/// Blocks followed at a time, and how long each, in misses.
const FOLLOWED: usize = 256;
const SOON: u32 = 256;
/// Where blocks are read, one in so many is a trial; it stands for the others too, but its account
/// is not shaken by a single one.
const TRIAL: u32 = 8;
const WEIGHT: i32 = 4;
/// An account begins with nothing and has this at most; it is open above the half.
const FULL: i32 = 128;
const OPEN: u8 = 64;

/// A block of which a page was missed a short time ago.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// The first page's number over the pages of a block.
    number: u64,
    /// The miss that it begins with.
    since: u32,
    /// The place of the page missed then.
    first: u8,
    /// Nothing of it is read.
    is_trial: bool,
    /// A bit each: neighbours that were in the store, of a trial; else what was read.
    pages: u16,
    /// Those missed since, of a trial.
    missed: u16,
}

struct Seen {
    /// Misses so far.
    clock: u32,
    blocks: Box<[Block]>,
    /// For each region, what blocks of 2, 4, 8 and 16 pages gain.
    accounts: Box<[[u8; SIZES]]>,
}

/// The blocks of a pager, shared by the threads that serve faults. Nobody waits: who finds it in
/// use goes without.
pub struct Blocks(Mutex<Seen>);

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks(Mutex::new(Seen {
            clock: 0,
            blocks: vec![Block::default(); FOLLOWED].into(),
            accounts: vec![[0; SIZES]; REGIONS].into(),
        }))
    }
}

impl Blocks {
    /// `page` was fetched on demand, and a stream reads ahead from there or not: the first page and
    /// the number of pages of a block to be read. `is_stored` says what the store has.
    pub fn missed(
        &self,
        page: PageNumber,
        is_streamed: bool,
        is_stored: impl Fn(PageNumber) -> bool,
    ) -> Option<(PageNumber, u32)> {
        self.0.try_lock()?.missed(page, is_streamed, is_stored)
    }
}

impl Seen {
    fn missed(
        &mut self,
        page: PageNumber,
        is_streamed: bool,
        is_stored: impl Fn(PageNumber) -> bool,
    ) -> Option<(PageNumber, u32)> {
        self.clock = self.clock.wrapping_add(1);
        let (number, first) = (page.0 >> BLOCK_SHIFT, (page.0 & 15) as u8);
        let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - FOLLOWED.ilog2());
        let mut block = self.blocks[place as usize];
        let is_known = block.number == number && self.clock.wrapping_sub(block.since) < SOON;
        if is_known && block.is_trial {
            self.blocks[place as usize].missed |= 1 << first;
        }
        let is_done = block.is_trial || block.pages & 1 << first != 0;
        if is_streamed || is_known && is_done {
            return None;
        }
        let size = self.size(page);
        if !is_known {
            self.settle(block);
            let start = PageNumber(number << BLOCK_SHIFT);
            let is_trial = size.is_none() || self.clock.is_multiple_of(TRIAL);
            let counts =
                |index: &u8| is_trial && *index != first && is_stored(start.add(u64::from(*index)));
            block = Block {
                number,
                since: self.clock,
                first,
                is_trial,
                pages: (0..16)
                    .filter(counts)
                    .fold(0, |bits, index| bits | 1 << index),
                missed: 0,
            };
        }
        let read = size.filter(|_| !block.is_trial);
        if let Some(shift) = read {
            block.pages |= around(first, shift);
        }
        self.blocks[place as usize] = block;
        read.map(|shift| (PageNumber(page.0 >> shift << shift), 1 << shift))
    }

    /// The largest size, as a shift, of blocks that gain where `page` is.
    fn size(&self, page: PageNumber) -> Option<u32> {
        let account = self.accounts[region(page)];
        let gains = account.iter().rposition(|gained| *gained > OPEN);
        gains.map(|index| index as u32 + 1)
    }

    /// If `block` was a trial, it has ended.
    fn settle(&mut self, block: Block) {
        if !block.is_trial || block.pages == 0 {
            return;
        }
        let account = &mut self.accounts[region(PageNumber(block.number << BLOCK_SHIFT))];
        for (gained, shift) in account.iter_mut().zip(1..) {
            let read = block.pages & around(block.first, shift);
            let used = (read & block.missed).count_ones() as i32;
            let wasted = read.count_ones() as i32 - used;
            let weight = if *gained > OPEN { WEIGHT } else { 1 };
            // A page that is used saves a fault, one in vain costs another page its place.
            let gain = weight * (used - wasted);
            *gained = (i32::from(*gained) + gain).clamp(0, FULL) as u8;
        }
    }
}

/// The block of `1 << shift` pages that page `index` is in, as bits.
fn around(index: u8, shift: u32) -> u16 {
    (u16::MAX >> (16 - (1 << shift))) << (index >> shift << shift)
}

fn region(page: PageNumber) -> usize {
    (page.0 >> REGION_SHIFT) as usize % REGIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program all of whose pages are stored, but for the 500 that came in last.
    struct Program {
        blocks: Blocks,
        present: std::collections::VecDeque<u64>,
        misses: u64,
        read: u64,
    }

    impl Program {
        fn new() -> Program {
            Program {
                blocks: Blocks::default(),
                present: Default::default(),
                misses: 0,
                read: 0,
            }
        }

        /// Touches `pages`; returns the misses and the pages read with their blocks.
        fn touch(&mut self, pages: impl Iterator<Item = u64>) -> (u64, u64) {
            let (misses, read) = (self.misses, self.read);
            for page in pages {
                if self.present.contains(&page) {
                    continue;
                }
                self.misses += 1;
                self.install(page);
                let is_stored = |page: PageNumber| !self.present.contains(&page.0);
                let block = self.blocks.missed(PageNumber(page), false, is_stored);
                let (start, count) = block.unwrap_or((PageNumber(0), 0));
                for page in start.0..start.0 + u64::from(count) {
                    if !self.present.contains(&page) {
                        self.install(page);
                        self.read += 1;
                    }
                }
            }
            (self.misses - misses, self.read - read)
        }

        fn install(&mut self, page: u64) {
            self.present.push_back(page);
            if self.present.len() > 500 {
                self.present.pop_front();
            }
        }
    }

    fn random() -> impl Iterator<Item = u64> {
        let mut state = 1u64;
        std::iter::repeat_with(move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            state >> 33
        })
    }

    const HERE: u64 = 100 << REGION_SHIFT;
    const THERE: u64 = 101 << REGION_SHIFT;

    /// Groups of `size` pages of the region at `start`, in no order, each page of one.
    fn groups(start: u64, size: u64) -> impl Iterator<Item = u64> {
        let groups = random().map(move |number| start + number % (8192 / size) * size);
        groups.flat_map(move |first| [0, 3, 1, 2].map(|page| first + page % size))
    }

    #[test]
    fn groups_that_are_missed_together_are_read_together_and_only_in_their_region() {
        let mut program = Program::new();
        program.touch(groups(HERE, 4).take(4000));
        let (misses, read) = program.touch(groups(HERE, 4).take(4000));
        assert!(misses < 1700, "{misses} misses of 1000 groups of four");
        assert!((2000..3000).contains(&read), "{read} read");
        let elsewhere = random().map(|number| THERE + number % 8192);
        let (_, read) = program.touch(elsewhere.take(4000));
        assert_eq!(read, 0);
    }

    #[test]
    fn what_is_used_no_more_is_soon_read_no_more() {
        let mut program = Program::new();
        program.touch(groups(HERE, 4).take(4000));
        let alone = || random().map(|number| HERE + number % 8192);
        let (_, wasted) = program.touch(alone().take(4000));
        assert!(wasted < 2000, "{wasted} wasted");
        let (_, wasted) = program.touch(alone().skip(4000).take(4000));
        assert_eq!(wasted, 0);
        let (_, read) = program.touch(groups(HERE, 4).take(12_000));
        assert!(read > 3000, "{read} read once it pays again");
    }
}
