//! A budget that follows the program: the least with which it loses no more than a given share of
//! its time to waiting for pages that were taken from it.
//!
//! Memory is taken little by little as long as the program hardly waits, in the manner of senpai
//! (Weiner et al., TMO, ASPLOS 2022), by the pager's own count of waits in the place of the
//! kernel's pressure. Nothing is held to what is left then: what the program wants back, or fills,
//! it has at once.

use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::PAGE_SIZE;

use super::cold::Allowance;
use crate::ledger::Ledger;

/// How often it is looked what the program loses.
pub const STEP_NS: u64 = 100_000_000;
/// Losses are averaged over about this time.
const MEMORY_NS: f64 = 1e9;
/// The most that is taken in a step is one part in so many of what is resident.
const TAKEN_PART: f64 = 16.0;
/// The most pages that are tried in a step, to see whether they are in use.
const TRIED_MAX: f64 = 256.0;
/// Where memory is short, one part in so many is taken at once, and for so long nothing is given
/// but to who starves, so much of what it has.
const SHORT_PART: f64 = 8.0;
const SHORT_NS: u64 = 2_000_000_000;
const GIVEN: f64 = 0.25;

/// What a program may lose, and in which bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Automatic {
    /// The share of its time.
    pub slowdown: f64,
    /// Never less than so many pages.
    pub floor_pages: u64,
}

impl Automatic {
    /// Says it in `ledger`.
    pub(crate) fn note(&self, ledger: &Ledger) {
        let millionths = (self.slowdown * 1e6).round() as u64;
        let floor = self.floor_pages * PAGE_SIZE as u64;
        ledger.automatic_millionths.store(millionths, Relaxed);
        ledger.automatic_floor_bytes.store(floor, Relaxed);
    }
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
    /// Processor time of the pager's.
    pub pager_cpu_ns: u64,
    /// Processors that it may use.
    pub processors: u64,
    /// A thread waits for room, and there was nothing that could be evicted for it.
    pub starves: bool,
    /// It was told since the step before that memory is short where the program runs.
    pub is_short: bool,
}

/// What is to be done until the next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Next {
    /// The budget, in pages.
    pub budget: u64,
    /// What may be taken and tried within it.
    pub allowance: Allowance,
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

    /// What is to be done where the budget was `budget`, `resident` pages are in use, and at most
    /// `ceiling` may be.
    pub fn step(&mut self, seen: Seen, budget: u64, resident: u64, ceiling: u64) -> Next {
        let last = self.last.replace(seen).unwrap_or(seen);
        let lost = lost(last, seen);
        let passed_ns = seen.now_ns.saturating_sub(last.now_ns) as f64;
        self.average += (lost - self.average) * (passed_ns / (passed_ns + MEMORY_NS));
        let floor = self.automatic.floor_pages.min(ceiling);
        if seen.is_short {
            self.short_ns = Some(seen.now_ns);
        }
        let was_short =
            (self.short_ns).is_some_and(|then| seen.now_ns.saturating_sub(then) < SHORT_NS);
        let next = if seen.starves {
            (budget.max(resident) as f64 * (1.0 + GIVEN)) as u64
        } else if seen.is_short {
            (budget.min(resident) as f64 * (1.0 - 1.0 / SHORT_PART)) as u64
        } else if was_short {
            budget
        } else {
            ceiling
        };
        let ease = 1.0 - self.average.max(lost / 2.0) / self.automatic.slowdown;
        let most = resident as f64 / TAKEN_PART * ease.max(0.0);
        Next {
            budget: next.clamp(floor, ceiling),
            allowance: Allowance {
                taken: (most as u64).min(resident.saturating_sub(floor)),
                tried: (TRIED_MAX * ease.max(0.0)) as u64,
            },
        }
    }
}

/// The share of its time that a program has lost from `last` to `seen`: what its threads waited,
/// and what the pager's threads used of processors that it would have used itself.
fn lost(last: Seen, seen: Seen) -> f64 {
    let passed_ns = seen.now_ns.saturating_sub(last.now_ns);
    if passed_ns == 0 {
        return 0.0;
    }
    let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed_ns as f64;
    let own = since(seen.cpu_ns, last.cpu_ns);
    let pagers = since(seen.pager_cpu_ns, last.pager_cpu_ns);
    let idle = (seen.processors as f64 - own - pagers).max(0.0);
    let waited = since(seen.waited_ns, last.waited_ns);
    (waited + pagers * (1.0 - idle).max(0.0)) / own.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILING: u64 = 100_000;
    const RESIDENT: u64 = 64_000;
    const FLOOR: u64 = 4096;
    const BEGIN: Seen = Seen {
        now_ns: 1,
        waited_ns: 0,
        cpu_ns: 0,
        pager_cpu_ns: 0,
        processors: 2,
        starves: false,
        is_short: false,
    };

    /// One whose program has run for a moment.
    fn adapting() -> Adapting {
        let mut adapting = Adapting::new(Automatic {
            slowdown: 0.1,
            floor_pages: FLOOR,
        });
        adapting.step(BEGIN, CEILING, RESIDENT, CEILING);
        adapting
    }

    /// What was seen a step later, of a program that keeps a processor busy and waits for so much
    /// of its time, in percent.
    fn later(last: Seen, waits: u64) -> Seen {
        Seen {
            now_ns: last.now_ns + STEP_NS,
            waited_ns: last.waited_ns + STEP_NS / 100 * waits,
            cpu_ns: last.cpu_ns + STEP_NS,
            ..BEGIN
        }
    }

    /// Runs a program that waits for so much of its time for so many steps.
    fn run(adapting: &mut Adapting, steps: u64, waits: u64) -> Next {
        let mut next = None;
        for _ in 0..steps {
            let seen = later(adapting.last.unwrap(), waits);
            assert!(adapting.is_due(seen.now_ns));
            next = Some(adapting.step(seen, CEILING, RESIDENT, CEILING));
        }
        next.unwrap()
    }

    #[test]
    fn of_a_program_that_never_waits_a_part_is_taken_and_its_budget_is_the_ceiling() {
        let next = run(&mut adapting(), 20, 0);
        assert_eq!(next.budget, CEILING);
        assert_eq!(next.allowance.taken, RESIDENT / TAKEN_PART as u64);
        assert_eq!(next.allowance.tried, TRIED_MAX as u64);
    }

    #[test]
    fn nothing_is_taken_below_the_floor() {
        let mut adapting = adapting();
        let mut step = |resident| {
            let seen = later(adapting.last.unwrap(), 0);
            adapting.step(seen, CEILING, resident, CEILING).allowance
        };
        assert_eq!(step(FLOOR + 10).taken, 10);
        assert_eq!(step(FLOOR - 10).taken, 0);
    }

    #[test]
    fn nothing_is_taken_or_tried_where_it_waits_as_is_wished_until_it_waits_less() {
        let mut adapting = adapting();
        assert_eq!(run(&mut adapting, 60, 11).allowance.tried, 0);
        assert_eq!(run(&mut adapting, 1, 11).allowance.taken, 0);
        let half = run(&mut adapting, 60, 5).allowance.taken;
        let most = RESIDENT / TAKEN_PART as u64;
        assert!((most * 4 / 10..most * 6 / 10).contains(&half), "{half}");
        // Many waits all at once count before their average does.
        assert_eq!(run(&mut adapting, 1, 20).allowance.taken, 0);
        assert!(run(&mut adapting, 60, 0).allowance.taken > most * 9 / 10);
    }

    #[test]
    fn what_the_pager_uses_is_lost_where_no_processor_is_idle() {
        let last = BEGIN;
        let busy = |processors, pager_cpu_ns| Seen {
            pager_cpu_ns,
            processors,
            ..later(last, 0)
        };
        assert_eq!(lost(last, busy(1, STEP_NS / 5)), 0.2);
        assert_eq!(lost(last, busy(3, STEP_NS / 5)), 0.0);
        let alone = lost(last, busy(2, STEP_NS / 5));
        assert!((0.03..0.05).contains(&alone), "{alone}");
    }

    #[test]
    fn waits_of_many_threads_are_shared_by_them() {
        let seen = Seen {
            cpu_ns: 4 * STEP_NS,
            waited_ns: STEP_NS,
            processors: 8,
            ..later(BEGIN, 0)
        };
        assert_eq!(lost(BEGIN, seen), 0.25);
    }

    #[test]
    fn where_memory_is_short_an_eighth_goes_at_once_and_only_who_starves_is_given_for_a_while() {
        let mut adapting = adapting();
        let mut step = |budget, is_short, starves| {
            let seen = Seen {
                is_short,
                starves,
                ..later(adapting.last.unwrap(), 50)
            };
            adapting.step(seen, budget, budget, CEILING).budget
        };
        assert_eq!(step(40_000, true, false), 35_000);
        assert_eq!(step(35_000, false, false), 35_000);
        assert_eq!(step(35_000, false, true), 43_750);
        for _ in 0..SHORT_NS / STEP_NS {
            step(35_000, false, false);
        }
        assert_eq!(step(35_000, false, false), CEILING);
    }
}
