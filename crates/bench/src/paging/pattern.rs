//! The order in which pages are accessed: the same for every system, decided by the pattern, the
//! seed and the thread alone.
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::content::Random;

/// Which pages, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Uniformly random pages
    Random,
    /// Every page in address order, over and over; several threads take a part each
    Sequential,
    /// Four interleaved streams, each taking every third page of its quarter
    Stride,
    /// Zipf-distributed popularity (0.99), the popular pages scattered
    Zipf,
    /// In address order over a quarter more pages than may be resident, over and over: the worst
    /// case of FIFO and LRU
    Loop,
    /// BFS and PageRank on an R-MAT graph in CSR
    Graph,
}

/// Exponent of the Zipf distribution.
const ZIPF_EXPONENT: f64 = 0.99;
/// Streams of the stride pattern, and their stride in pages.
const STREAMS: u64 = 4;
const STRIDE: u64 = 3;

impl Pattern {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
            Pattern::Stride => "stride",
            Pattern::Zipf => "zipf",
            Pattern::Loop => "loop",
            Pattern::Graph => "graph",
        }
    }
}

/// The popularity of pages by Zipf's law, drawn as Gray et al. do (SIGMOD 1994, "Quickly generating
/// billion-record synthetic databases").
#[derive(Debug, Clone)]
pub struct Zipf {
    items: u64,
    alpha: f64,
    zeta: f64,
    eta: f64,
    /// Odd step between the places of neighbouring ranks.
    scatter: u64,
}

impl Zipf {
    /// Over `items` things.
    pub fn new(items: u64) -> Zipf {
        let zeta = |n: u64| -> f64 { (1..=n).map(|i| (i as f64).powf(-ZIPF_EXPONENT)).sum() };
        let all = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - ZIPF_EXPONENT)) / (1.0 - zeta(2) / all);
        // The golden section of the items, moved to the next number without a common factor: every
        // rank has a place of its own.
        let mut scatter = (items as f64 * 0.618) as u64 | 1;
        while gcd(scatter, items) != 1 {
            scatter += 1;
        }
        Zipf {
            items,
            alpha: 1.0 / (1.0 - ZIPF_EXPONENT),
            zeta: all,
            eta,
            scatter,
        }
    }

    /// The place of one draw.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let uniform = (random.number() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(ZIPF_EXPONENT) {
            1
        } else {
            let power = (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
            (self.items as f64 * power) as u64
        };
        let rank = rank.min(self.items - 1);
        (u128::from(rank) * u128::from(self.scatter) % u128::from(self.items)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What a sequence is drawn from.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Pages in all.
    pub pages: u64,
    /// Pages that may be resident.
    pub resident: u64,
    /// Threads that share the pages.
    pub threads: u64,
}

/// One thread's endless sequence of pages.
pub struct Sequence {
    random: Random,
    first: u64,
    pages: u64,
    position: u64,
    zipf: Option<Zipf>,
    pattern: Pattern,
}

impl Sequence {
    /// The sequence of `thread` (from 0). Panics for [`Pattern::Graph`], whose order the graph
    /// decides.
    pub fn new(pattern: Pattern, space: Space, thread: u64, seed: u64) -> Sequence {
        assert_ne!(
            pattern,
            Pattern::Graph,
            "a graph is walked, not drawn from a sequence"
        );
        let share = space.pages / space.threads;
        let (first, pages) = match pattern {
            Pattern::Sequential | Pattern::Stride => (share * thread, share),
            Pattern::Loop => {
                let looped = (space.resident + space.resident / 4).min(space.pages) / space.threads;
                (looped * thread, looped.max(1))
            }
            _ => (0, space.pages),
        };
        Sequence {
            random: Random::new(seed.wrapping_add(thread.wrapping_mul(0x5851_f42d_4c95_7f2d))),
            first,
            pages,
            position: 0,
            zipf: (pattern == Pattern::Zipf).then(|| Zipf::new(space.pages)),
            pattern,
        }
    }

    /// The next page.
    pub fn page(&mut self) -> u64 {
        let position = self.position;
        self.position += 1;
        match (&self.zipf, self.pattern) {
            (Some(zipf), _) => zipf.draw(&mut self.random),
            (None, Pattern::Random) => self.random.below(self.pages),
            (None, Pattern::Stride) => self.first + self.strided(position),
            _ => self.first + position % self.pages,
        }
    }

    fn strided(&self, position: u64) -> u64 {
        let quarter = (self.pages / STREAMS).max(1);
        let (stream, step) = (position % STREAMS, position / STREAMS);
        // A walk over the quarter takes every third page; the next walk starts a page further on.
        let steps = quarter.div_ceil(STRIDE);
        let (walk, step) = (step / steps, step % steps);
        let page = (step * STRIDE + walk % STRIDE).min(quarter - 1);
        (stream * quarter + page).min(self.pages - 1)
    }

    /// Further random numbers, for what is done with the page.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Space = Space {
        pages: 1200,
        resident: 300,
        threads: 1,
    };

    #[test]
    fn every_pattern_stays_inside_and_reaches_what_it_should() {
        for (pattern, least) in [
            (Pattern::Random, 1190),
            (Pattern::Sequential, 1200),
            (Pattern::Stride, 1200),
            (Pattern::Zipf, 800),
            (Pattern::Loop, 375),
        ] {
            let mut sequence = Sequence::new(pattern, SPACE, 0, 1);
            let mut seen = vec![false; 1200];
            (0..20_000).for_each(|_| seen[sequence.page() as usize] = true);
            let count = seen.iter().filter(|s| **s).count();
            assert!(count >= least, "{pattern:?} reached {count} pages");
            assert!(
                pattern != Pattern::Loop || count == least,
                "the loop is {count} pages long"
            );
        }
    }

    #[test]
    fn streams_step_by_three_pages() {
        let mut sequence = Sequence::new(Pattern::Stride, SPACE, 0, 1);
        let pages: Vec<u64> = (0..12).map(|_| sequence.page()).collect();
        assert_eq!(
            pages,
            [0, 300, 600, 900, 3, 303, 603, 903, 6, 306, 606, 906]
        );
    }

    #[test]
    fn the_tenth_that_is_most_popular_gets_most_draws() {
        let (zipf, mut random) = (Zipf::new(10_000), Random::new(3));
        let mut counts = vec![0u32; 10_000];
        (0..200_000).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts[..1000].iter().sum();
        // H(1000) / H(10000) with exponent 0.99 is 0.76.
        assert!(
            (0.73..0.80).contains(&(f64::from(top) / 200_000.0)),
            "{top}"
        );
    }

    #[test]
    fn threads_have_parts_of_their_own_or_other_numbers() {
        let space = Space {
            threads: 2,
            ..SPACE
        };
        let mut second = Sequence::new(Pattern::Sequential, space, 1, 1);
        assert_eq!(second.page(), 600);
        let draws = |thread| {
            let mut sequence = Sequence::new(Pattern::Random, space, thread, 1);
            (0..10).map(|_| sequence.page()).collect::<Vec<_>>()
        };
        assert_ne!(draws(0), draws(1));
    }
}
