//! One bit a page.
use std::ops::{Deref, DerefMut, Range};

use crate::words::Part;

/// A set of numbers within bounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits {
    /// The lower bound.
    base: u64,
    words: Words,
}

#[derive(Debug)]
enum Words {
    Own(Vec<u64>),
    Kept(Part),
}

impl Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Words::Own(words) => words,
            Words::Kept(words) => words,
        }
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            Words::Own(words) => words,
            Words::Kept(words) => words,
        }
    }
}

impl Default for Words {
    fn default() -> Words {
        Words::Own(Vec::new())
    }
}

impl Clone for Words {
    /// The copy is kept nowhere.
    fn clone(&self) -> Words {
        Words::Own(self.to_vec())
    }
}

impl Bits {
    /// None of the numbers in `bounds`.
    pub fn new(bounds: Range<u64>) -> Bits {
        let len = bounds.end.saturating_sub(bounds.start);
        Bits {
            base: bounds.start,
            words: Words::Own(vec![0; len.div_ceil(64) as usize]),
        }
    }

    /// Those that are in `words`, of numbers from `base` on.
    pub fn kept(base: u64, words: Part) -> Bits {
        let words = Words::Kept(words);
        Bits { base, words }
    }

    /// Whether `number` is in it; what is out of bounds is not.
    pub fn has(&self, number: u64) -> bool {
        let index = number.wrapping_sub(self.base);
        self.word(index) >> (index % 64) & 1 == 1
    }

    /// The bits of the numbers around the one at `index`.
    fn word(&self, index: u64) -> u64 {
        let word = self.words.get((index / 64) as usize);
        word.copied().unwrap_or_default()
    }

    /// The first number of `range`, which is within bounds, that is neither in this set nor in
    /// `other`, which has the same bounds.
    pub fn first_in_neither(&self, other: &Bits, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let index = at - self.base;
            let free = !(self.word(index) | other.word(index)) >> (index % 64);
            if free != 0 {
                let found = at + u64::from(free.trailing_zeros());
                return (found < range.end).then_some(found);
            }
            at += 64 - index % 64;
        }
        None
    }

    /// Puts in, or takes out, `first` and those that follow, `count` in all; how many changed.
    /// Those out of bounds do not.
    pub fn set(&mut self, first: u64, count: u64, value: bool) -> u64 {
        let end = first.saturating_add(count).saturating_sub(self.base);
        let mut at = first.saturating_sub(self.base);
        let mut changed = 0;
        while at < end {
            let Some(word) = self.words.get_mut((at / 64) as usize) else {
                break;
            };
            let (from, to) = (at % 64, (end - at / 64 * 64).min(64));
            let mask = (u64::MAX >> (64 - (to - from))) << from;
            let before = *word;
            *word = if value { before | mask } else { before & !mask };
            changed += u64::from((before ^ *word).count_ones());
            at += to - from;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn bits_are_a_set(
            steps in prop::collection::vec((0u64..200, 0u64..150, any::<bool>()), 1..20),
        ) {
            let (mut bits, mut set) = (Bits::new(50..250), BTreeSet::new());
            let none = Bits::new(50..250);
            for (first, count, value) in steps {
                let numbers = first.max(50)..(first + count).clamp(50, 50 + 256);
                let changed = match value {
                    true => numbers.filter(|n| set.insert(*n)).count(),
                    false => numbers.filter(|n| set.remove(n)).count(),
                };
                prop_assert_eq!(bits.set(first, count, value), changed as u64);
                prop_assert!((0..350).all(|n| bits.has(n) == set.contains(&n)));
                let from = first.clamp(50, 250);
                let missing = (from..250).find(|number| !set.contains(number));
                prop_assert_eq!(bits.first_in_neither(&none, from..250), missing);
                prop_assert_eq!(none.first_in_neither(&bits, from..250), missing);
            }
        }
    }
}
