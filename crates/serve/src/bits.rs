//! One bit a page.

/// A set of numbers below a bound.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// None of `len` numbers.
    pub fn new(len: u64) -> Bits {
        Bits {
            words: vec![0; len.div_ceil(64) as usize],
        }
    }

    /// Whether `index` is in it; what is beyond the bound is not.
    pub fn has(&self, index: u64) -> bool {
        let word = self.words.get((index / 64) as usize);
        word.is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Puts in, or takes out, `first` and those that follow, `count` in all; how many changed.
    pub fn set(&mut self, first: u64, count: u64, value: bool) -> u64 {
        let (mut at, end) = (first, first.saturating_add(count));
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
            let (mut bits, mut set) = (Bits::new(200), BTreeSet::new());
            for (first, count, value) in steps {
                let numbers = first..(first + count).min(256);
                let changed = match value {
                    true => numbers.filter(|n| set.insert(*n)).count(),
                    false => numbers.filter(|n| set.remove(n)).count(),
                };
                prop_assert_eq!(bits.set(first, count, value), changed as u64);
                prop_assert!((0..300).all(|n| bits.has(n) == set.contains(&n)));
            }
        }
    }
}
