//! The two values that cross the boundary of a store: a page's bytes, and the handle given for
//! them.

use std::fmt;

/// Bytes in a page: the 4 KiB OS page of x86-64.
pub const PAGE_SIZE: usize = 4096;

/// The bytes of one page, aligned so that direct I/O and `UFFDIO_COPY` can use them in place.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct Page(pub [u8; PAGE_SIZE]);

impl Page {
    /// A page of zeros.
    pub const ZERO: Page = Page([0; PAGE_SIZE]);

    /// The repeated native-endian 8-byte word, if the page holds nothing else.
    pub fn same_filled(&self) -> Option<u64> {
        let (words, _) = self.0.as_chunks::<8>();
        let first = words[0];
        // The last word differs most often when the first does not tell: look there before walking.
        if words[words.len() - 1] != first || words.iter().any(|word| *word != first) {
            return None;
        }
        Some(u64::from_ne_bytes(first))
    }

    /// Fills the page with one repeated 8-byte word.
    pub fn fill(&mut self, word: u64) {
        self.0.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page(..)")
    }
}

/// A store's handle for one page it holds. Means nothing to any other store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Slot(pub u32);
