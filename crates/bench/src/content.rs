//! What the pages hold: half of each is random, the other half zeros or one repeated word, so they
//! compress to about half.

/// Words in a page.
pub const PAGE_WORDS: usize = 512;
/// Bytes in a page.
pub const PAGE_BYTES: usize = PAGE_WORDS * 8;
/// The word that writes count up; no other word ever changes.
pub const COUNTER_WORD: usize = 0;

/// A generator of uniform numbers from a seed: the same numbers on every machine.
pub struct Random(u64);

impl Random {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number (SplitMix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What pages hold at first: so many random words each, then zeros or, in every other page, one
/// repeated word.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    /// Decides the random words.
    pub seed: u64,
    /// Random words at the start of each page; the rest compresses to almost nothing.
    pub random_words: usize,
}

impl Content {
    /// Compresses to about half.
    pub fn half(seed: u64) -> Content {
        let random_words = PAGE_WORDS / 2;
        Content { seed, random_words }
    }

    /// Fills one page.
    pub fn fill(&self, page: usize, words: &mut [u64]) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(page, index);
        }
    }

    /// The word first written at `index` of `page`.
    pub fn word(&self, page: usize, index: usize) -> u64 {
        let key = mix(self.seed ^ (page as u64).wrapping_mul(0xa076_1d64_78bd_642f));
        if index < self.random_words {
            mix(key ^ index as u64)
        } else if page.is_multiple_of(2) {
            0
        } else {
            key
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut random = Random::new(1);
        let mut seen = [false; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] = true);
        assert_eq!(seen, [true; 10]);
    }
}
