//! Who is to give up how much of a common budget, and who may have it. Arithmetic alone.
//!
//! Nothing is divided while there is enough for all. Then whoever asks for more gets it:
//! 1. from those that have more than they use;
//! 2. from those that sleep: up to half of what they have beyond the floor, each time;
//! 3. from whoever gains least by what it has, if another would gain at least [`LEAD`] times as
//!    much. What a page more would gain a process is what it pays for not having it: its faults on
//!    pages that it would still have had with twice the memory, a second and a page of what it has.
//!    A loop that is far too long for its memory gains nothing by this measure, and nor does who
//!    reads everything once.
use super::file::{FLOOR_PAGES, NO_TARGET};

/// So many times as much must a page gain in its new place.
const LEAD: f64 = 2.0;
/// Near misses a page and second that are nothing.
const NO_GAIN: f64 = 0.02;
/// Of what a process has, one page in so many goes at a time to one that gains more by it: from one
/// that asks for more itself, and from one that is content.
const STEP: u64 = 8;
const STEP_CONTENT: u64 = 32;
/// The least of such steps.
const STEP_MIN: u64 = 16;
/// How many times what it asked for a process may come to have at a time.
const AHEAD: u64 = 4;

/// What is known of a process. Numbers of pages unless the name says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Process {
    pub granted: u64,
    pub used: u64,
    /// As the last division left it.
    pub target: u64,
    /// What it asks for; 0 if it is content.
    pub wanted: u64,
    pub cap: u64,
    /// Pages that it cannot give up.
    pub held: u64,
    pub weight: u64,
    /// Near misses a page and second.
    pub gain: f64,
    pub sleeps: bool,
}

impl Process {
    fn floor(&self) -> u64 {
        (FLOOR_PAGES + self.held).min(self.cap)
    }

    fn value(&self) -> f64 {
        self.gain * self.weight as f64
    }

    /// What it has once it has given up what it was asked to.
    fn share(&self) -> u64 {
        self.granted.min(self.target).min(self.cap)
    }

    /// What it can do without at once, of `share`.
    fn spare(&self, share: u64) -> u64 {
        if self.wanted > 0 {
            return 0;
        }
        let keeps = (self.used + self.used / 8 + STEP_MIN).max(self.floor());
        let unused = share.saturating_sub(keeps);
        let beyond = share.saturating_sub(self.floor());
        match self.sleeps {
            true => unused.max(beyond.div_ceil(2)),
            false => unused,
        }
    }
}

/// The targets of `processes` in a budget of `budget` pages: what each may go up to or is to go
/// down to.
pub(super) fn divide(budget: u64, processes: &[Process]) -> Vec<u64> {
    let mut shares: Vec<u64> = processes.iter().map(Process::share).collect();
    for (process, share) in processes.iter().zip(&mut shares) {
        *share -= process.spare(*share);
        // What does not go leaves it something to work with.
        if process.wanted > 0 {
            *share = process.floor().max(*share);
        }
    }
    let taken: u64 = shares.iter().sum();
    match budget.checked_sub(taken) {
        Some(pool) => {
            let left = hand_out(pool, processes, &mut shares);
            give_back(left, processes, &mut shares);
        }
        None => cut(taken - budget, processes, &mut shares),
    }
    move_to_gain(processes, &mut shares);
    let target = |(process, share): (&Process, u64)| match share == process.granted {
        true => NO_TARGET,
        false => share,
    };
    processes.iter().zip(shares).map(target).collect()
}

/// Takes `excess` pages from all, in proportion to what each has beyond the floor, or all of that.
fn cut(excess: u64, processes: &[Process], shares: &mut [u64]) {
    let beyond = |process: &Process, share: u64| share.saturating_sub(process.floor());
    let all = processes.iter().zip(&*shares);
    let all: u64 = all.map(|(process, share)| beyond(process, *share)).sum();
    for (process, share) in processes.iter().zip(shares) {
        let beyond = u128::from(beyond(process, *share));
        let part = (beyond * u128::from(excess.min(all))).div_ceil(u128::from(all.max(1)));
        *share -= part.min(beyond) as u64;
    }
}

/// Hands `pool` out to those that ask, by what each would gain; what is left of it.
fn hand_out(mut pool: u64, processes: &[Process], shares: &mut [u64]) -> u64 {
    let best = processes.iter().map(Process::value).fold(0.0, f64::max);
    // Who gains nothing that is seen is not left with nothing.
    let weigh = |process: &Process| process.value() + (best / 16.0 + 1e-9) * process.weight as f64;
    let mut asking: Vec<usize> = (0..processes.len())
        .filter(|index| processes[*index].wanted > 0)
        .collect();
    asking.sort_by(|a, b| weigh(&processes[*b]).total_cmp(&weigh(&processes[*a])));
    let mut weights: f64 = asking.iter().map(|index| weigh(&processes[*index])).sum();
    for index in asking {
        let process = &processes[index];
        let part = (pool as f64 * weigh(process) / weights) as u64;
        weights -= weigh(process);
        let most = process.cap.saturating_sub(shares[index]);
        let part = part.min(process.wanted.saturating_mul(AHEAD)).min(most);
        shares[index] += part;
        pool -= part.min(pool);
    }
    pool
}

/// Leaves those that sleep what they use, as far as nobody else wants it: `pool` in all.
fn give_back(mut pool: u64, processes: &[Process], shares: &mut [u64]) {
    for (process, share) in processes.iter().zip(shares) {
        let used = process.share().min(process.used);
        let back = used.saturating_sub(*share).min(pool);
        *share += back;
        pool -= back;
    }
}

/// Moves pages from those that gain least by them to those that ask for more and gain most.
fn move_to_gain(processes: &[Process], shares: &mut [u64]) {
    let mut order: Vec<usize> = (0..processes.len()).collect();
    order.sort_by(|a, b| processes[*a].value().total_cmp(&processes[*b].value()));
    let asks = |index: &usize| processes[*index].wanted > 0;
    let mut givers = order.iter().copied();
    for taker in order.iter().copied().rev().filter(asks) {
        let process = &processes[taker];
        let room = process.cap.saturating_sub(shares[taker]);
        let Some((giver, pages)) = givers.find_map(|giver| {
            let step = step(&processes[giver], shares[giver]).min(room);
            (step > 0).then_some((giver, step))
        }) else {
            return;
        };
        if process.gain < NO_GAIN || process.value() < LEAD * processes[giver].value() {
            return;
        }
        shares[giver] -= pages;
        shares[taker] += pages;
    }
}

/// What is taken at a time of a process that has `share`.
fn step(process: &Process, share: u64) -> u64 {
    let part = match process.wanted {
        0 => STEP_CONTENT,
        _ => STEP,
    };
    let beyond = share.saturating_sub(process.floor());
    beyond.min((share / part).max(STEP_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(granted: u64, used: u64, wanted: u64, gain: f64) -> Process {
        Process {
            granted,
            used,
            target: NO_TARGET,
            wanted,
            cap: u64::MAX,
            held: 0,
            weight: 100,
            gain,
            sleeps: false,
        }
    }

    fn asleep(granted: u64) -> Process {
        Process {
            sleeps: true,
            ..process(granted, granted, 0, 0.0)
        }
    }

    /// What each comes to have when everybody does as the targets say, again and again.
    fn settled(budget: u64, mut processes: Vec<Process>, rounds: u32) -> Vec<u64> {
        for _ in 0..rounds {
            let targets = divide(budget, &processes);
            for (process, target) in processes.iter_mut().zip(targets) {
                if target != NO_TARGET {
                    let full = process.used == process.granted;
                    process.granted = target;
                    process.used = if full {
                        target
                    } else {
                        process.used.min(target)
                    };
                }
            }
            let granted: u64 = processes.iter().map(|process| process.granted).sum();
            let floors = processes.len() as u64 * FLOOR_PAGES;
            assert!(granted <= budget.max(floors), "{granted} of {budget}");
        }
        processes.iter().map(|process| process.granted).collect()
    }

    #[test]
    fn one_that_asks_gets_what_sleepers_and_others_do_not_use() {
        let busy = process(1000, 1000, 250, 1.0);
        let all = vec![busy, asleep(1000), asleep(1000), process(1000, 500, 0, 0.0)];
        let shares = settled(4000, all, 40);
        assert_eq!(&shares[1..3], [FLOOR_PAGES, FLOOR_PAGES]);
        assert!(shares[0] > 3000, "{shares:?}");
    }

    #[test]
    fn one_that_sleeps_gives_up_no_more_than_others_want_or_the_budget_has_less() {
        assert_eq!(settled(3900, vec![asleep(4000)], 3), [3900]);
        assert_eq!(settled(4000, vec![asleep(4000)], 3), [4000]);
        let all = vec![process(1000, 1000, 10, 0.0), asleep(3000)];
        assert_eq!(settled(4000, all, 1), [1040, 2960]);
    }

    #[test]
    fn a_process_that_gains_nothing_is_left_in_peace_by_others_that_do_not_either() {
        let content = process(2000, 2000, 0, 0.0);
        let streaming = process(2000, 2000, 500, 0.0);
        assert_eq!(settled(4000, vec![content, streaming], 20), [2000, 2000]);
    }

    #[test]
    fn who_gains_most_takes_from_who_gains_least_and_weights_count() {
        let pair = |gain| {
            vec![
                process(2000, 2000, 500, 1.0),
                process(2000, 2000, 500, gain),
            ]
        };
        assert_eq!(settled(4000, pair(1.5), 1), [2000, 2000]);
        let shares = settled(4000, pair(3.0), 1);
        assert_eq!(shares, [1750, 2250]);
        let mut heavy = pair(1.5);
        heavy[1].weight = 200;
        assert_eq!(settled(4000, heavy, 1), [1750, 2250]);
    }

    #[test]
    fn a_smaller_budget_is_taken_of_all_and_leaves_the_floors() {
        let all = || vec![process(64, 64, 0, 0.0), process(3000, 3000, 500, 9.0)];
        assert_eq!(settled(1000, all(), 1), [64, 936]);
        let shares = settled(100, all(), 5);
        assert_eq!(shares, [64, 64]);
    }

    #[test]
    fn who_cannot_give_up_is_left_that_and_a_floor() {
        let mut locked = process(500, 500, 100, 0.0);
        locked.held = 500;
        let shares = settled(1000, vec![locked, process(500, 500, 60, 9.0)], 10);
        assert_eq!(shares, [564, 436]);
    }

    #[test]
    fn nobody_gets_more_than_it_may() {
        let mut capped = process(100, 100, 1000, 5.0);
        capped.cap = 120;
        let shares = settled(10_000, vec![capped, process(5000, 5000, 0, 0.0)], 10);
        assert_eq!(shares, [120, 5000]);
        capped.cap = 10;
        assert_eq!(settled(10_000, vec![capped], 1), [10]);
    }

    #[test]
    fn random_divisions_stay_within_the_budget() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..2000 {
            let budget = 1 + random(20_000);
            let count = 1 + random(9);
            let all = (0..count).map(|_| {
                let granted = random(budget);
                Process {
                    target: [NO_TARGET, random(budget)][random(2) as usize],
                    cap: [u64::MAX, 1 + random(5000)][random(2) as usize],
                    weight: 1 + random(10_000),
                    sleeps: random(3) == 0,
                    ..process(
                        granted,
                        random(granted + 1),
                        random(3) * 100,
                        random(9) as f64,
                    )
                }
            });
            settled(budget, all.collect(), 3);
        }
    }
}
