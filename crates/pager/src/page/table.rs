//! The page table: a page word for every page of the address space, in two levels, indexed by page
//! number alone.
//!
//! A leaf holds the words of 1 GiB of address space (2 MiB of words, of which only the touched
//! pages cost memory). Leaves are made when memory is attached, never on the fault path, and live
//! as long as the table.
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::word::Word;

const LEAF_SHIFT: u32 = 18;
const LEAF_PAGES: u64 = 1 << LEAF_SHIFT;
/// User address space on x86-64 is 2^47 bytes.
const ROOT_ENTRIES: usize = 1 << (47 - 12 - LEAF_SHIFT);
/// Words in a page of words; a leaf knows which of these pages were ever used, so that walks skip
/// the rest.
const CHUNK_SHIFT: u32 = 9;
const CHUNKS: usize = 1 << (LEAF_SHIFT - CHUNK_SHIFT);

struct Leaf {
    words: Mapping,
    used: [AtomicU64; CHUNKS / 64],
}

impl Leaf {
    fn word(&self, index: u64) -> &AtomicU64 {
        assert!(index < LEAF_PAGES);
        // SAFETY: the mapping holds LEAF_PAGES words, zero-initialised and aligned, and lives as
        // long as the leaf; all access is atomic.
        unsafe { &*self.words.as_ptr().cast::<AtomicU64>().add(index as usize) }
    }

    fn is_used(&self, chunk: usize) -> bool {
        self.used[chunk / 64].load(Ordering::Relaxed) & 1 << (chunk % 64) != 0
    }

    fn mark_used(&self, chunk: usize) {
        if !self.is_used(chunk) {
            self.used[chunk / 64].fetch_or(1 << (chunk % 64), Ordering::Relaxed);
        }
    }
}

/// The words of all pages under one pager.
pub struct PageTable {
    root: Mapping,
}

impl PageTable {
    /// An empty table.
    pub fn new() -> Result<PageTable, Errno> {
        Ok(PageTable {
            root: Mapping::new(ROOT_ENTRIES * size_of::<usize>())?,
        })
    }

    fn root(&self) -> &[AtomicPtr<Leaf>] {
        // SAFETY: the mapping holds ROOT_ENTRIES null-initialised pointers and lives as long as the
        // table.
        unsafe { std::slice::from_raw_parts(self.root.as_ptr().cast(), ROOT_ENTRIES) }
    }

    fn leaf(&self, page: PageNumber) -> Option<&Leaf> {
        let leaf = self
            .root()
            .get((page.0 >> LEAF_SHIFT) as usize)?
            .load(Ordering::Acquire);
        // SAFETY: leaves are published once, fully made, and dropped only with the table.
        unsafe { leaf.as_ref() }
    }

    /// Makes the words of `range` exist. Allocates; not for the fault path.
    pub fn ensure(&self, range: PageRange) -> Result<(), Errno> {
        for index in range.start.0 >> LEAF_SHIFT..(range.end.0 + LEAF_PAGES - 1) >> LEAF_SHIFT {
            let entry = self.root().get(index as usize).ok_or(Errno::RANGE)?;
            if entry.load(Ordering::Acquire).is_null() {
                let words = Mapping::new((LEAF_PAGES as usize) * size_of::<u64>())?;
                let leaf = Box::into_raw(Box::new(Leaf {
                    words,
                    used: [const { AtomicU64::new(0) }; CHUNKS / 64],
                }));
                if entry
                    .compare_exchange(
                        std::ptr::null_mut(),
                        leaf,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    )
                    .is_err()
                {
                    // SAFETY: another thread published first; this leaf is still ours alone.
                    drop(unsafe { Box::from_raw(leaf) });
                }
            }
        }
        Ok(())
    }

    /// The word of `page`, if its leaf exists.
    pub fn word(&self, page: PageNumber) -> Option<&AtomicU64> {
        let index = page.0 & (LEAF_PAGES - 1);
        self.leaf(page).map(|leaf| leaf.word(index))
    }

    /// All pages there can be words of.
    pub fn pages(&self) -> PageRange {
        PageRange {
            start: PageNumber(0),
            end: PageNumber((ROOT_ENTRIES as u64) << LEAF_SHIFT),
        }
    }

    /// The value of `page`'s word; Untouched where there is none.
    pub fn load(&self, page: PageNumber) -> Word {
        Word(
            self.word(page)
                .map_or(0, |word| word.load(Ordering::Acquire)),
        )
    }

    /// Sets `page`'s word. Panics where its leaf does not exist.
    pub fn store(&self, page: PageNumber, value: Word) {
        let leaf = self
            .leaf(page)
            .expect("the page's leaf was made when it was attached");
        let index = page.0 & (LEAF_PAGES - 1);
        leaf.mark_used((index >> CHUNK_SHIFT) as usize);
        leaf.word(index).store(value.0, Ordering::Release);
    }

    /// Changes `page`'s word from `current` to `new`; whether it still was `current`.
    pub fn change(&self, page: PageNumber, current: Word, new: Word) -> bool {
        let Some(leaf) = self.leaf(page) else {
            return false;
        };
        let index = page.0 & (LEAF_PAGES - 1);
        leaf.mark_used((index >> CHUNK_SHIFT) as usize);
        leaf.word(index)
            .compare_exchange(current.0, new.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Changes `page`'s word by `f` until it holds; returns the value before.
    pub fn update(&self, page: PageNumber, f: impl Fn(Word) -> Word) -> Word {
        loop {
            let current = self.load(page);
            let new = f(current);
            if new == current || self.change(page, current, new) {
                return current;
            }
        }
    }

    /// Calls `visit` with every page of `range` whose word is not zero.
    pub fn for_each_used(&self, range: PageRange, mut visit: impl FnMut(PageNumber, Word)) {
        let mut page = range.start;
        while page < range.end {
            let next_leaf = ((page.0 >> LEAF_SHIFT) + 1) << LEAF_SHIFT;
            let Some(leaf) = self.leaf(page) else {
                page = PageNumber(next_leaf);
                continue;
            };
            let index = page.0 & (LEAF_PAGES - 1);
            let chunk_end = PageNumber(((page.0 >> CHUNK_SHIFT) + 1) << CHUNK_SHIFT).min(range.end);
            if leaf.is_used((index >> CHUNK_SHIFT) as usize) {
                for page in (PageRange {
                    start: page,
                    end: chunk_end,
                })
                .iter()
                {
                    let word = Word(leaf.word(page.0 & (LEAF_PAGES - 1)).load(Ordering::Acquire));
                    if word.0 != 0 {
                        visit(page, word);
                    }
                }
            }
            page = chunk_end;
        }
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        for entry in self.root() {
            let leaf = entry.load(Ordering::Acquire);
            if !leaf.is_null() {
                // SAFETY: published leaves are owned by the table, which nobody uses any more.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::word::State;

    #[test]
    fn walks_see_what_was_stored_across_leaves_and_nothing_else() {
        let table = PageTable::new().unwrap();
        let first = PageNumber(LEAF_PAGES * 5 - 3);
        let range = PageRange {
            start: first,
            end: first.add(LEAF_PAGES + 10),
        };
        table.ensure(range).unwrap();
        let pages = [
            first,
            first.add(2),
            first.add(3),
            first.add(700),
            range.end.add(0),
        ];
        table.ensure(PageRange::one(range.end)).unwrap();
        for page in pages {
            table.store(page, Word::default().with_state(State::Resident));
        }
        let mut seen = vec![];
        table.for_each_used(range, |page, _| seen.push(page));
        assert_eq!(seen, pages[..4]);
    }
}
