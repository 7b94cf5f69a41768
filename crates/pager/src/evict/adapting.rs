//! A budget that follows the program: the least with which it loses no more than a given share of
//! its time to waiting for pages that were taken from it.
//!
//! Memory is taken little by little as long as the program hardly waits, and given back at once
//! when it does, in the manner of senpai (Weiner et al., TMO, ASPLOS 2022), by the pager's own
//! count of waits in the place of the kernel's pressure.

/// How often the budget may change.
pub const STEP_NS: u64 = 100_000_000;
/// Waits are averaged over about this time before memory is taken.
const MEMORY_NS: f64 = 1e9;
/// The most that is taken in a step is one part in so many.
const TAKEN_PART: f64 = 96.0;
/// The most that is given in a step, and what is given when waits are just as long as wished.
const GIVEN_MAX: f64 = 0.25;
const GIVEN: f64 = 0.04;
/// Where memory is short, one part in so many is taken at once, and for so long nothing is given
/// but to who starves.
const SHORT_PART: f64 = 8.0;
const SHORT_NS: u64 = 2_000_000_000;

/// What a program may lose, and in which bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Automatic {
    /// The share of its time.
    pub slowdown: f64,
    /// Never less than so many pages.
    pub floor_pages: u64,
}

/// What was seen of the program up to now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// When.
    pub now_ns: u64,
    /// Time that its threads have waited for pages that were taken, or for room.
    pub waited_ns: u64,
    /// Processor time of its threads.
    pub cpu_ns: u64,
    /// A thread waits for room, and there was nothing that could be evicted for it.
    pub starves: bool,
    /// It was told since the step before that memory is short where the program runs.
    pub is_short: bool,
}

/// The state of one program's budget.
#[derive(Debug)]
pub struct Adapting {
    automatic: Automatic,
    last: Option<Seen>,
    average: f64,
    /// When it was told last that memory is short.
    short_ns: Option<u64>,
}

impl Adapting {
    /// At the beginning.
    pub fn new(automatic: Automatic) -> Adapting {
        Adapting {
            automatic,
            last: None,
            average: 0.0,
            short_ns: None,
        }
    }

    /// Whether the next step is due.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.last
            .is_none_or(|last| now_ns.saturating_sub(last.now_ns) >= STEP_NS)
    }

    /// The budget from now on, in pages, where it was `budget`, `resident` are in use, and at most
    /// `ceiling` may be.
    pub fn step(&mut self, seen: Seen, budget: u64, resident: u64, ceiling: u64) -> u64 {
        let Some(last) = self.last.replace(seen) else {
            return budget;
        };
        let passed_ns = seen.now_ns.saturating_sub(last.now_ns).max(1) as f64;
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed_ns;
        let parallel = since(seen.cpu_ns, last.cpu_ns).max(1.0);
        let waits = since(seen.waited_ns, last.waited_ns) / parallel;
        self.average += (waits - self.average) * (passed_ns / (passed_ns + MEMORY_NS));
        let wished = self.automatic.slowdown;
        let floor = self.automatic.floor_pages.min(ceiling);
        if seen.is_short {
            self.short_ns = Some(seen.now_ns);
        }
        let was_short = (self.short_ns).is_some_and(|then| seen.now_ns - then < SHORT_NS);
        let next = if seen.starves {
            budget.max(resident) as f64 * (1.0 + GIVEN_MAX)
        } else if seen.is_short {
            budget.min(resident) as f64 * (1.0 - 1.0 / SHORT_PART)
        } else if was_short && waits > 0.0 {
            budget as f64
        } else if waits > 2.0 * wished || self.average > wished {
            let most = waits.max(self.average) / wished;
            budget as f64 * (1.0 + (GIVEN * most).min(GIVEN_MAX))
        } else if self.average < wished / 2.0 && waits < wished && resident <= budget {
            let ease = 1.0 - self.average / (wished / 2.0);
            resident as f64 * (1.0 - ease / TAKEN_PART)
        } else {
            // Also while what was taken last has not gone: it may be locked.
            budget as f64
        };
        (next as u64).clamp(floor, ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILING: u64 = 100_000;
    const BEGIN: Seen = Seen {
        now_ns: 1,
        waited_ns: 0,
        cpu_ns: 0,
        starves: false,
        is_short: false,
    };

    /// Runs a program for so many steps, that waits for a share of its time by its budget.
    fn run(adapting: &mut Adapting, budget: u64, steps: u64, waits: impl Fn(u64) -> f64) -> u64 {
        let (mut budget, mut seen) = (budget, adapting.last);
        for _ in 0..steps {
            let before = seen.unwrap_or(BEGIN);
            let now = Seen {
                now_ns: before.now_ns + STEP_NS,
                waited_ns: before.waited_ns + (STEP_NS as f64 * waits(budget)) as u64,
                cpu_ns: before.cpu_ns + STEP_NS,
                ..BEGIN
            };
            assert!(adapting.is_due(now.now_ns));
            budget = adapting.step(now, budget, budget.min(80_000), CEILING);
            seen = Some(now);
        }
        budget
    }

    fn adapting() -> Adapting {
        Adapting::new(Automatic {
            slowdown: 0.1,
            floor_pages: 4096,
        })
    }

    #[test]
    fn a_program_that_never_waits_comes_to_the_floor() {
        assert_eq!(run(&mut adapting(), CEILING, 600, |_| 0.0), 4096);
    }

    #[test]
    fn one_that_waits_comes_to_where_it_waits_as_is_wished_and_back_when_it_needs_more() {
        // The fewer pages it has below so many, the longer it waits.
        let needs = |pages: f64| move |budget: u64| (1.0 - budget as f64 / pages).max(0.0);
        let mut adapting = adapting();
        let budget = run(&mut adapting, CEILING, 300, needs(50_000.0));
        assert!((42_000..52_000).contains(&budget), "{budget}");
        let budget = run(&mut adapting, budget, 30, needs(80_000.0));
        assert!((68_000..90_000).contains(&budget), "{budget}");
    }

    #[test]
    fn what_does_not_go_is_not_taken_from_and_who_starves_is_given() {
        let mut adapting = adapting();
        let mut seen = BEGIN;
        let mut step = |budget, starves| {
            seen.now_ns += STEP_NS;
            seen.starves = starves;
            adapting.step(seen, budget, 60_000, CEILING)
        };
        assert_eq!(step(50_000, false), 50_000);
        assert_eq!(step(50_000, false), 50_000);
        assert_eq!(step(50_000, true), 75_000);
    }

    #[test]
    fn where_memory_is_short_an_eighth_goes_at_once_and_only_who_starves_is_given_for_a_while() {
        let mut adapting = adapting();
        let mut seen = BEGIN;
        let mut step = |budget, is_short, starves| {
            seen.now_ns += STEP_NS;
            // Half of its time.
            seen.waited_ns += STEP_NS / 2;
            (seen.is_short, seen.starves) = (is_short, starves);
            adapting.step(seen, budget, budget, CEILING)
        };
        step(40_000, false, false);
        assert_eq!(step(40_000, true, false), 35_000);
        assert_eq!(step(35_000, false, false), 35_000);
        assert_eq!(step(35_000, false, true), 43_750);
        for _ in 0..SHORT_NS / STEP_NS {
            step(35_000, false, false);
        }
        assert!(step(35_000, false, false) > 35_000);
    }

    #[test]
    fn one_that_always_waits_comes_to_the_ceiling() {
        assert_eq!(run(&mut adapting(), 10_000, 60, |_| 0.5), CEILING);
    }
}
