//! What the curve means for the program's time: expected slowdown, the knee, the least memory for a
//! given slowdown.
use super::curve::Curve;
use crate::protocol::measured::Measured;

/// Steps in which memory is looked at, in hundredths of what is in use.
const STEPS: u64 = 100;
/// What a page that is taken out to be looked at costs the program in all. More than a miss: the
/// fault thread sleeps between so few faults, and each page is moved by itself. An assumption: ten
/// programs on two processors lost 34 to 144 us.
const TAKE_NS: u64 = 60_000;
/// Fewer pages taken out tell nothing.
const TAKES_MIN: u64 = 64;

/// How a program is expected to fare with less memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    curve: Curve,
    /// What a missed page costs the program, in nanoseconds.
    pub miss_ns: f64,
    /// Time that passes for the program, without what measuring itself cost it, over time measured.
    undisturbed: f64,
    /// Threads that go on while one waits, that one included; at least 1.
    parallel: f64,
    /// Pages missed in a second measured, with room for as much as each step says, or with more.
    most_missed: Vec<f64>,
}

impl Forecast {
    /// From what was measured on a machine of so many processors; none if that is too little to
    /// tell anything.
    pub fn of(measured: &Measured, processors: usize) -> Option<Forecast> {
        let curve = Curve::of(measured)?;
        if measured.takes < TAKES_MIN {
            return None;
        }
        let elapsed_ns = measured.elapsed_ns.max(1) as f64;
        let parallel = (measured.program_cpu_ns as f64 / elapsed_ns).max(1.0);
        // Where the program keeps all processors busy, evicting takes its time as well.
        let beside = (parallel + 1.0 - processors as f64).clamp(0.0, 1.0);
        let evict_ns = measured.take_cpu_ns as f64 / measured.takes as f64;
        let miss_ns = measured.fetch_wait_ns as f64 + beside * evict_ns;
        let own_ns = ((measured.takes * TAKE_NS) as f64).min(elapsed_ns / 2.0);
        let pages_max = curve.pages_max;
        let missed = |step: u64| curve.misses_per_second(step_of(pages_max, step) as f64);
        // With more memory no more is missed: what looks so is chance.
        let mut most_missed: Vec<f64> = (1..=STEPS).map(missed).collect();
        for step in (1..most_missed.len()).rev() {
            most_missed[step - 1] = most_missed[step - 1].max(most_missed[step]);
        }
        Some(Forecast {
            most_missed,
            curve,
            miss_ns,
            undisturbed: 1.0 - own_ns / elapsed_ns,
            parallel,
        })
    }

    /// How long was measured, in seconds.
    pub fn seconds(&self) -> f64 {
        self.curve.seconds
    }

    /// The most pages in use.
    pub fn pages_max(&self) -> u64 {
        self.curve.pages_max
    }

    /// Pages missed in all the time measured, with room for `pages`.
    pub fn misses(&self, pages: u64) -> f64 {
        self.missed(pages) * self.curve.seconds
    }

    /// Pages missed in a second measured, with room for `pages`: never more than with less.
    fn missed(&self, pages: u64) -> f64 {
        let mut steps = 1..=STEPS;
        let next = steps.position(|step| self.step(step) >= pages);
        let least = next.map_or(0.0, |index| self.most_missed[index]);
        self.curve.misses_per_second(pages as f64).max(least)
    }

    /// Pages missed in a second of the program's undisturbed time, with room for `pages`.
    pub fn misses_per_second(&self, pages: u64) -> f64 {
        self.missed(pages) / self.undisturbed
    }

    /// The expected time with room for `pages`, over that with room for all.
    pub fn slowdown(&self, pages: u64) -> f64 {
        1.0 + self.misses_per_second(pages) * self.miss_ns / 1e9 / self.parallel
    }

    fn step(&self, step: u64) -> u64 {
        step_of(self.pages_max(), step)
    }

    /// The fewest pages with which no more is expected than `slowdown`.
    pub fn least_for(&self, slowdown: f64) -> u64 {
        let keeps = |step: &u64| self.slowdown(self.step(*step)) <= slowdown;
        self.step((1..=STEPS).rev().take_while(keeps).last().unwrap_or(STEPS))
    }

    /// Where the curve of misses bends most: farthest below the line between its ends (Kneedle,
    /// Satopaa et al., 2011). None if it does not bend.
    pub fn knee(&self) -> Option<u64> {
        /// Less than this below the line is no bend.
        const DEPTH: f64 = 0.1;
        let misses = |step: u64| self.misses_per_second(self.step(step));
        let (first, last) = (misses(1), misses(STEPS));
        let depth = |step: u64| {
            let across = (step - 1) as f64 / (STEPS - 1) as f64;
            1.0 - across - (misses(step) - last) / (first - last)
        };
        let deepest = (1..=STEPS).max_by(|a, b| depth(*a).total_cmp(&depth(*b)))?;
        (first > last && depth(deepest) > DEPTH).then(|| self.step(deepest))
    }
}

/// Pages of a step, of `pages_max` in use.
fn step_of(pages_max: u64, step: u64) -> u64 {
    (pages_max * step / STEPS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::measured::{AGES, Part, age_class};

    /// A program that uses 1000 pages again within 0.1 s, and 9000 within 10 s; a fault waits
    /// 35 us.
    fn measured() -> Measured {
        let mut used = vec![0; AGES];
        used[age_class(90_000_000)] = 1000;
        used[age_class(9_000_000_000)] = 9000;
        Measured {
            elapsed_ns: 60_000_000_000,
            part_ns: 60_000_000_000,
            program_cpu_ns: 60_000_000_000,
            pages_max: 10_000,
            takes: 1000,
            take_cpu_ns: 6_000_000,
            fetch_wait_ns: 35_000,
            parts: vec![Part {
                counts: 1,
                pages: 10_000,
                used,
                gone: vec![0; AGES],
                open: vec![0; AGES],
            }],
            ..Measured::default()
        }
    }

    #[test]
    fn a_miss_costs_what_fetching_and_where_all_are_busy_evicting_took() {
        let miss_ns = |processors| Forecast::of(&measured(), processors).unwrap().miss_ns;
        assert_eq!((miss_ns(2), miss_ns(1)), (35_000.0, 41_000.0));
        let idle = Measured {
            takes: 63,
            ..measured()
        };
        assert_eq!(Forecast::of(&idle, 2), None);
    }

    #[test]
    fn more_memory_is_never_expected_to_be_worse() {
        // A program that grows, and misses more in its second half, when it has more: by the
        // curve's own reckoning, with room for half.
        let part = |pages, fast: u32, slow: u32| {
            let mut used = vec![0; AGES];
            used[age_class(90_000_000)] = fast;
            used[age_class(9_000_000_000)] = slow;
            Part {
                counts: 1,
                pages,
                used,
                gone: vec![0; AGES],
                open: vec![0; AGES],
            }
        };
        let grows = Measured {
            part_ns: 20_000_000_000,
            parts: vec![
                part(5000, 20, 980),
                part(5500, 900, 100),
                part(10_000, 20, 980),
            ],
            ..measured()
        };
        let forecast = Forecast::of(&grows, 2).unwrap();
        let steps = |of: &dyn Fn(u64) -> f64| (1..=STEPS).map(of).collect::<Vec<f64>>();
        let falls = |rates: &[f64]| rates.windows(2).all(|pair| pair[0] >= pair[1]);
        let raw = steps(&|step| forecast.curve.misses_per_second(forecast.step(step) as f64));
        assert!(!falls(&raw), "nothing to mend: {raw:?}");
        assert!(falls(&steps(&|step| forecast.misses(forecast.step(step)))));
        assert!(falls(
            &steps(&|step| forecast.slowdown(forecast.step(step)))
        ));
    }

    #[test]
    fn memory_is_recommended_by_what_is_expected_of_it() {
        let forecast = Forecast::of(&measured(), 2).unwrap();
        assert!(forecast.slowdown(500) > 1.1);
        // A page stays for 11 s in the mean, so there are some 450 misses a second, of 35 us.
        let slow = forecast.slowdown(5000);
        assert!((1.012..1.022).contains(&slow), "{slow}");
        assert_eq!(forecast.slowdown(10_000), 1.0);
        let least = [1.1, 1.01].map(|slowdown| forecast.least_for(slowdown));
        assert!((700..=900).contains(&least[0]), "{least:?}");
        assert!((7000..=8000).contains(&least[1]), "{least:?}");
        let knee = forecast.knee().unwrap();
        assert!((900..=1300).contains(&knee), "{knee}");
    }
}
