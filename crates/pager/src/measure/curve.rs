//! The miss curve: what a program would miss with less memory, from what became of looks at its
//! pages ([`super`] says why that follows).
use crate::protocol::measured::{AGES, Measured, Part, age_end};

/// Fewer pages that were used or given up are no corner of their own.
const CORNER_MIN: f64 = 12.0;

/// The least time that a page is taken to stay, in seconds, and how many times are looked at for
/// each of twice the length.
const STAY_MIN: f64 = 50e-6;
const STAYS: f64 = 4.0;

/// What became of pages in use at one time, by how many seconds later, from 0 on; in between, in
/// proportion.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fate {
    age: f64,
    /// The share that was neither used nor given up.
    left: f64,
    /// The share that was used.
    used: f64,
}

/// What memory holds if pages stay for a time that begins with a cohort of looks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stay {
    /// When that ends, in seconds from the beginning.
    until: f64,
    /// So many pages are there then,
    held: f64,
    /// and so many are missed in a second.
    rate: f64,
}

/// How many pages would be missed, by the pages of memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Of the looks of each part of the time, from short stays to long ones.
    cohorts: Vec<Vec<Stay>>,
    /// Pages in use, and when in seconds; in between, in proportion.
    in_use: Vec<(f64, f64)>,
    /// The time measured, in seconds.
    pub seconds: f64,
    /// The most pages in use.
    pub pages_max: u64,
}

impl Curve {
    /// From what was measured; none if no page was looked at.
    pub fn of(measured: &Measured) -> Option<Curve> {
        let seconds = measured.elapsed_ns as f64 / 1e9;
        let part_seconds = measured.part_ns as f64 / 1e9;
        let (mut looks, mut in_use) = (Vec::new(), Vec::new());
        for (index, part) in measured.parts.iter().enumerate() {
            let begin = index as f64 * part_seconds;
            let end = (begin + part_seconds).min(seconds);
            if end <= begin || part.counts == 0 {
                continue;
            }
            let at = (begin + end) / 2.0;
            in_use.push((at, part.pages as f64 / part.counts as f64));
            let fates = fates(part);
            if fates.len() > 1 {
                looks.push((at, fates));
            }
        }
        let of_part = |(at, fates): &(f64, Vec<Fate>)| stays(*at, fates, &in_use, seconds);
        let cohorts = looks.iter().map(of_part).collect();
        (!in_use.is_empty() && measured.pages_max > 0).then_some(Curve {
            cohorts,
            in_use,
            seconds,
            pages_max: measured.pages_max,
        })
    }

    /// Misses with room for `pages` pages in the time measured, in a second of that.
    pub fn misses_per_second(&self, pages: f64) -> f64 {
        let Some(mut begin) = self.full_at(pages) else {
            return 0.0;
        };
        let mut rates: Vec<(f64, f64)> = Vec::new();
        let reached = |stays: &Vec<Stay>| holding(stays, pages);
        for (at, rate) in self.cohorts.iter().filter_map(reached) {
            // A cohort that is younger falls out later; what says otherwise is chance.
            let last = rates.last().map_or(0.0, |last| last.0);
            rates.push((at.max(last), rate));
        }
        // Each cohort tells of the time up to half of the way to the next.
        let mut misses = 0.0;
        for (index, (at, rate)) in rates.iter().enumerate() {
            let next = rates.get(index + 1);
            let end = next.map_or(self.seconds, |(next, _)| (at + next) / 2.0);
            misses += rate * (end - begin).max(0.0);
            begin = begin.max(end);
        }
        misses / self.seconds
    }

    /// When so many pages are in use for the first time: before that nothing is evicted.
    fn full_at(&self, pages: f64) -> Option<f64> {
        let index = self
            .in_use
            .iter()
            .position(|(_, in_use)| *in_use >= pages)?;
        let Some(before) = index.checked_sub(1) else {
            return Some(0.0);
        };
        let (a, b) = (self.in_use[before], self.in_use[index]);
        Some(a.0 + (b.0 - a.0) * (pages - a.1) / (b.1 - a.1))
    }
}

/// When memory holds so many pages, and how many are missed then in a second.
fn holding(stays: &[Stay], pages: f64) -> Option<(f64, f64)> {
    let index = stays.iter().position(|stay| stay.held >= pages)?;
    let after = stays[index];
    let before = index.checked_sub(1).map_or(after, |before| stays[before]);
    let part = match after.held > before.held {
        true => (pages - before.held) / (after.held - before.held),
        false => 1.0,
    };
    let mix = |a: f64, b: f64| a + part * (b - a);
    Some((mix(before.until, after.until), mix(before.rate, after.rate)))
}

/// What memory holds by how long pages stay, of looks begun at `at`.
fn stays(at: f64, fates: &[Fate], in_use: &[(f64, f64)], seconds: f64) -> Vec<Stay> {
    let (pages, longest) = (between(at, in_use), seconds - at);
    let steps = (0u32..).map(|step| STAY_MIN * (f64::from(step) / STAYS).exp2());
    let counts = in_use.iter().map(|(counted, _)| counted - at);
    let mut ages: Vec<f64> = steps.take_while(|age| *age < longest).collect();
    ages.extend(counts.filter(|age| (STAY_MIN..longest).contains(age)));
    ages.push(longest);
    ages.sort_unstable_by(f64::total_cmp);
    let gone = |fate: &Fate| (fate.age, 1.0 - fate.left - fate.used);
    let gone: Vec<_> = fates.iter().map(gone).collect();
    let stay = |age: &f64| {
        let came = came(fates, *age);
        let still_out = pages * (1.0 - between(*age, &gone) - came);
        Stay {
            until: at + age,
            held: between(at + age, in_use) - still_out,
            rate: pages * came / age,
        }
    };
    ages.iter().map(stay).collect()
}

/// The share of pages that come to be used within a time that is `stay` in the mean and ends by
/// chance: where pages are used by chance, it is the same as for pages that leave in the order in
/// which they came (Gelenbe, 1973).
fn came(fates: &[Fate], stay: f64) -> f64 {
    let share = |pair: &[Fate]| {
        let age = (pair[0].age + pair[1].age) / 2.0;
        (pair[1].used - pair[0].used) * (-age / stay).exp()
    };
    fates.windows(2).map(share).sum()
}

/// What there is at `at` between those of `points`, which are in order, in proportion; outside them
/// the nearest.
fn between(at: f64, points: &[(f64, f64)]) -> f64 {
    let index = points.partition_point(|point| point.0 <= at);
    match (
        index.checked_sub(1).map(|before| points[before]),
        points.get(index),
    ) {
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (at - a.0) / (b.0 - a.0),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

/// What became of the pages that were looked at in one part of the time, as in life tables with two
/// ends: looks that are open are counted for as long as they are (Kaplan and Meier, 1958).
fn fates(part: &Part) -> Vec<Fate> {
    let count = |counts: &[u32], class: usize| f64::from(counts[class]);
    let sum = |counts: &[u32]| (0..AGES).map(|class| count(counts, class)).sum::<f64>();
    let mut at_risk = sum(&part.used) + sum(&part.gone) + sum(&part.open);
    let mut now = Fate {
        age: 0.0,
        left: 1.0,
        used: 0.0,
    };
    let mut fates = vec![now];
    let mut seen = 0.0;
    for class in 0..AGES {
        let (used, open) = (count(&part.used, class), count(&part.open, class));
        let ended = used + count(&part.gone, class);
        let looked = at_risk - open / 2.0;
        at_risk -= ended + open;
        if looked <= 0.0 || ended == 0.0 {
            continue;
        }
        let begin = class
            .checked_sub(1)
            .map_or(0.0, |before| age_end(before) as f64 / 1e9);
        if seen == 0.0 && begin > now.age {
            // Nothing happened up to here.
            fates.push(Fate { age: begin, ..now });
        }
        let share = (ended / looked).min(1.0);
        now.used += now.left * share * used / ended;
        now.left *= 1.0 - share;
        now.age = age_end(class) as f64 / 1e9;
        seen += ended;
        if seen >= CORNER_MIN {
            fates.push(now);
            seen = 0.0;
        }
    }
    if seen > 0.0 {
        fates.push(now);
    }
    fates
}

#[cfg(test)]
mod tests;
