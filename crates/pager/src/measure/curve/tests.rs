//! Against a queue of pages that is simulated: a program of known accesses runs in a time of its
//! own.
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use pagetide_kernel::PageNumber;
use pagetide_kernel::own::Mapping;

use super::*;
use crate::measure::probes::{Probes, Whereabouts};
use crate::measure::rounds::{Memory, Rounds, TICK_NS};
use crate::protocol::measured::MeasuredCells;

/// Accesses in a second.
const RATE: u64 = 200_000;

fn cells() -> &'static MeasuredCells {
    let memory = Mapping::new(size_of::<MeasuredCells>()).unwrap();
    // SAFETY: zeroed cells are a value, and the memory is leaked.
    unsafe { &*memory.leak().cast() }
}

#[derive(Default)]
struct Simulated {
    /// Whether each page in use is out.
    pages: RefCell<HashMap<PageNumber, bool>>,
}

impl Memory for Simulated {
    fn each_used(&self, each: &mut dyn FnMut(PageNumber)) {
        let mut pages: Vec<_> = self.pages.borrow().keys().copied().collect();
        pages.sort_unstable();
        pages.into_iter().for_each(each);
    }

    fn whereabouts(&self, page: PageNumber) -> Option<Whereabouts> {
        Some(match self.pages.borrow().get(&page) {
            None => Whereabouts::Gone,
            Some(true) => Whereabouts::Out,
            Some(false) => Whereabouts::There,
        })
    }
}

/// The curve that is measured of a program with these accesses.
fn measured(accesses: impl Iterator<Item = u64>) -> Curve {
    let (cells, probes, memory) = (cells(), Probes::default(), Simulated::default());
    let mut rounds = Rounds::default();
    probes.begin(u64::MAX);
    let mut last_tick = 0;
    let mut now = 0;
    for (step, page) in accesses.enumerate() {
        now = 1 + step as u64 * 1_000_000_000 / RATE;
        let page = PageNumber(page + 1000);
        if memory.pages.borrow_mut().insert(page, false) == Some(true) {
            probes.note_use_at(page, now);
        }
        if now / TICK_NS > last_tick {
            last_tick = now / TICK_NS;
            let mut taken = Vec::new();
            rounds.tick(&probes, cells, &memory, now, 0, |page| taken.push(page));
            for page in taken {
                memory.pages.borrow_mut().insert(page, true);
            }
        }
    }
    rounds.end(&probes, cells, now);
    Curve::of(&cells.read().unwrap()).expect("pages were looked at")
}

/// Misses in a second with room for each number of `sizes` pages, of which the one leaves that came
/// first; first uses are none.
fn exact(accesses: impl Iterator<Item = u64>, sizes: &[u64]) -> Vec<f64> {
    let accesses: Vec<u64> = accesses.collect();
    let pages = *accesses.iter().max().unwrap() as usize + 1;
    let seconds = accesses.len() as f64 / RATE as f64;
    let misses = |size: &u64| {
        let (mut seen, mut there) = (vec![false; pages], vec![false; pages]);
        let (mut queue, mut misses) = (VecDeque::new(), 0u64);
        for page in &accesses {
            let index = *page as usize;
            if there[index] {
                continue;
            }
            misses += u64::from(std::mem::replace(&mut seen[index], true));
            if queue.len() as u64 == *size {
                let first: usize = queue.pop_front().unwrap();
                there[first] = false;
            }
            queue.push_back(index);
            there[index] = true;
        }
        misses as f64 / seconds
    };
    sizes.iter().map(misses).collect()
}

/// The mean difference of the curves from 5 to 100 % of `pages`, in the share of the misses that
/// there are with 5 %.
fn error<I: Iterator<Item = u64>>(accesses: impl Fn() -> I, pages: u64) -> f64 {
    let sizes: Vec<u64> = (1..=20).map(|share| pages * share / 20).collect();
    let (found, exact) = (measured(accesses()), exact(accesses(), &sizes));
    let most = exact[0].max(1.0);
    let differences = sizes.iter().zip(&exact).map(|(size, exact)| {
        let found = found.misses_per_second(*size as f64);
        (found - exact).abs() / most
    });
    differences.sum::<f64>() / sizes.len() as f64
}

/// A generator that is the same everywhere (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// So many accesses, with the probability of a page as 1 / rank.
fn zipf(pages: u64, count: usize) -> impl Iterator<Item = u64> {
    let mut random = Random(7);
    let sums: Vec<f64> = (1..=pages)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        })
        .collect();
    let all = sums[sums.len() - 1];
    (0..count).map(move |_| {
        let at = random.next() * all;
        let rank = sums.partition_point(|sum| *sum < at) as u64;
        // Ranks are not to lie in the order of addresses.
        rank * 7919 % pages
    })
}

const SECONDS: usize = 12;
const COUNT: usize = SECONDS * RATE as usize;

#[test]
fn of_a_loop_too_little_is_expected_but_with_all_of_it_nothing() {
    let found = measured((0..COUNT as u64).map(|step| step % 20_000));
    // In truth each of them is a miss.
    let share = |pages: f64| found.misses_per_second(pages) / RATE as f64;
    assert!((0.85..1.1).contains(&share(4_000.0)), "{}", share(4_000.0));
    assert!((0.6..1.0).contains(&share(10_000.0)), "{}", share(10_000.0));
    assert_eq!(share(20_000.0), 0.0);
}

#[test]
fn of_a_part_that_is_used_often_and_one_that_is_not() {
    let hot_and_cold = || {
        let mut random = Random(5);
        (0..COUNT).map(move |step| match step % 10 {
            0 => 5000 + (random.next() * 15_000.0) as u64,
            _ => (random.next() * 5000.0) as u64,
        })
    };
    let error = error(hot_and_cold, 20_000);
    assert!(error < 0.07, "{error}");
}

#[test]
fn of_unequal_pages() {
    let error = error(|| zipf(20_000, COUNT), 20_000);
    assert!(error < 0.07, "{error}");
}

#[test]
fn of_pages_at_random() {
    let uniform = || {
        let mut random = Random(3);
        (0..COUNT).map(move |_| (random.next() * 8000.0) as u64)
    };
    let error = error(uniform, 8000);
    assert!(error < 0.07, "{error}");
}

#[test]
fn of_memory_that_grows_what_is_new_needs_room_too() {
    // Each page is used again once, when as many as a third of all have come into use since.
    let (pages, apart) = (24_000, 8000);
    let growing = || {
        (0..COUNT as u64).map(move |step| match step % 2 {
            0 => step * pages / COUNT as u64,
            _ => (step * pages / COUNT as u64).saturating_sub(apart),
        })
    };
    let (found, exact) = (measured(growing()), exact(growing(), &[4000, 16_000]));
    let with = [4000.0, 16_000.0].map(|pages| found.misses_per_second(pages));
    assert!(exact[0] > 1000.0 && exact[1] == 0.0, "{exact:?}");
    assert!(
        (0.6..1.6).contains(&(with[0] / exact[0])),
        "{with:?} {exact:?}"
    );
    assert!(with[1] < 0.4 * exact[0], "{with:?} {exact:?}");
}

#[test]
fn of_a_scan_that_never_comes_back() {
    let curve = measured((0..COUNT as u64 / 4).map(|step| step / 4));
    assert!(curve.misses_per_second(100.0) < 500.0, "{curve:?}");
}

#[test]
fn of_two_phases_that_need_different_amounts() {
    let phases = || {
        let mut random = Random(9);
        (0..COUNT).map(move |step| match step < COUNT / 2 {
            true => (random.next() * 4000.0) as u64,
            false => (random.next() * 20_000.0) as u64,
        })
    };
    let error = error(phases, 20_000);
    assert!(error < 0.08, "{error}");
}
