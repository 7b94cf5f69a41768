//! Memory whose first contents are in a file: pages that nobody has used are there, at the place
//! that follows from their number.
//!
//! Their words need not be written beforehand. An untouched page of such memory is in the source,
//! always: so a page of it that was written with zeros goes to the store, unlike others. The words
//! of a block of pages say Stored from the first look at one of them on.
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::Slot;

use crate::page::table::PageTable;
use crate::page::word::{Place, State};
use crate::stores::Stores;

/// Pages whose words are written at once: a page of words.
const BLOCK_PAGES: u64 = 512;

/// Which pages are in the source.
#[derive(Debug)]
pub(crate) struct Source {
    pages: PageRange,
    generation: u8,
}

impl Default for Source {
    /// None.
    fn default() -> Source {
        Source::new(PageRange::of(PageNumber(0), 0), 0)
    }
}

impl Source {
    /// `pages`, in the store of `generation`, whose slot 0 the first one is.
    pub(crate) fn new(pages: PageRange, generation: u8) -> Source {
        Source { pages, generation }
    }

    /// Whether there is any.
    pub(crate) fn is_some(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Whether `page` holds what the source has while it is untouched.
    pub(crate) fn has(&self, page: PageNumber) -> bool {
        self.pages.contains(page)
    }

    /// `page` will be asked for before long, alone: tells the store, if it is in the source.
    pub(crate) fn will_need(&self, stores: &Stores, page: PageNumber) {
        if self.has(page) {
            let slot = Slot((page.0 - self.pages.start.0) as u32);
            stores.of(self.generation).will_need(slot);
        }
    }

    /// Has the word of `page`, which is untouched, say where its bytes are, if it is in the source;
    /// and those of its block. Whether it is.
    pub(crate) fn reveal(&self, table: &PageTable, page: PageNumber) -> bool {
        if !self.has(page) {
            return false;
        }
        let block = PageRange::of(PageNumber(page.0 & !(BLOCK_PAGES - 1)), BLOCK_PAGES);
        for page in block.intersection(self.pages).iter() {
            let place = Place {
                generation: self.generation,
                slot: Slot((page.0 - self.pages.start.0) as u32),
            };
            table.update(page, |word| match word.state() {
                State::Untouched => word.sourced(place),
                _ => word,
            });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::word::Word;

    #[test]
    fn untouched_pages_of_the_block_are_in_the_source_and_no_others() {
        let table = PageTable::new().unwrap();
        let pages = PageRange::of(PageNumber(1000), 2000);
        table.ensure(pages).unwrap();
        let source = Source::new(pages, 5);
        let resident = Word::default().claimed().filled();
        table.store(PageNumber(1100), resident);
        assert!(!source.reveal(&table, PageNumber(999)));
        assert!(!source.reveal(&table, PageNumber(3000)));
        assert!(source.reveal(&table, PageNumber(1030)));
        assert_eq!(table.load(PageNumber(1100)), resident);
        for (page, slot) in [(1024, 24), (1099, 99), (1535, 535)] {
            let word = table.load(PageNumber(page));
            let slot = Slot(slot);
            let generation = 5;
            assert_eq!(word.state(), State::Stored);
            assert_eq!(word.place(), Place { generation, slot });
        }
        for page in [1000, 1023, 1536] {
            assert_eq!(table.load(PageNumber(page)), Word::default());
        }
        assert!(!Source::default().has(PageNumber(0)));
    }
}
