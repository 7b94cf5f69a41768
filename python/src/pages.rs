//! A set of pages, by number.
use std::ops::Range;

/// A bit a page.
pub struct PageSet {
    words: Vec<u64>,
    len: u64,
    /// No word from here on has a bit.
    end: usize,
}

/// The words that `pages` are in, each with their bits of it.
fn words(pages: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let first = pages.start / 64;
    let last = pages.end.div_ceil(64);
    (first..last).map(move |word| {
        let from = pages.start.saturating_sub(word * 64).min(63);
        let to = pages.end.saturating_sub(word * 64).min(64);
        (word as usize, u64::MAX << from & u64::MAX >> (64 - to))
    })
}

impl PageSet {
    /// None of `pages` pages.
    pub fn new(pages: u32) -> PageSet {
        PageSet {
            words: vec![0; pages.div_ceil(64) as usize],
            len: 0,
            end: 0,
        }
    }

    /// Pages in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Adds `pages`.
    pub fn insert(&mut self, pages: Range<u32>) {
        for (word, bits) in words(pages) {
            self.len += u64::from((bits & !self.words[word]).count_ones());
            self.words[word] |= bits;
            self.end = self.end.max(word + 1);
        }
    }

    /// Takes `pages` out; how many were in it.
    pub fn remove(&mut self, pages: Range<u32>) -> u64 {
        let before = self.len;
        for (word, bits) in words(pages) {
            self.len -= u64::from((bits & self.words[word]).count_ones());
            self.words[word] &= !bits;
        }
        before - self.len
    }

    /// Calls `each` with every run of pages, and takes out those for which it says true.
    pub fn drain(&mut self, mut each: impl FnMut(Range<u32>) -> bool) {
        let mut from = 0;
        while let Some(start) = self.next(from, true) {
            let limit = self.end as u32 * 64;
            let stop = self.next(start, false).unwrap_or(limit);
            if each(start..stop) {
                self.remove(start..stop);
            }
            from = stop;
        }
        if self.len == 0 {
            self.end = 0;
        }
    }

    /// The first page from `from` on that is in the set, or is not.
    fn next(&self, from: u32, is_in: bool) -> Option<u32> {
        let first = (from / 64) as usize;
        for (index, word) in self.words[..self.end].iter().enumerate().skip(first) {
            let mut bits = if is_in { *word } else { !*word };
            if index == first {
                bits &= u64::MAX << (from % 64);
            }
            if bits != 0 {
                return Some(index as u32 * 64 + bits.trailing_zeros());
            }
        }
        None
    }
}
