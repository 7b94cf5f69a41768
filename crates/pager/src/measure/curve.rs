//! The miss curve: what a program would miss with less memory, from what became of looks at its
//! pages ([`super`] says why that follows).
use crate::protocol::measured::{Measured, Part, age_end};

/// The working set in one part of the time: how many different pages are used in a window, by its
/// length. The slope between two corners falls from each to the next.
#[derive(Debug, Clone, PartialEq)]
struct WorkingSet {
    seconds: f64,
    corners: Vec<(f64, f64)>,
}

/// How many pages a second would be missed, by the pages of memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    parts: Vec<WorkingSet>,
    /// The time measured, in seconds.
    pub seconds: f64,
    /// The most pages in use.
    pub pages_max: u64,
}

impl Curve {
    /// From what was measured; none if no page was looked at.
    pub fn of(measured: &Measured) -> Option<Curve> {
        let mut left = measured.elapsed_ns as f64 / 1e9;
        let mut parts = Vec::new();
        for part in &measured.parts {
            let seconds = left.min(measured.part_ns as f64 / 1e9);
            left -= seconds;
            if seconds > 0.0 && part.rounds > 0 {
                let corners = corners(part);
                parts.push(WorkingSet { seconds, corners });
            }
        }
        let seconds: f64 = parts.iter().map(|part| part.seconds).sum();
        (seconds > 0.0 && measured.pages_max > 0).then_some(Curve {
            parts,
            seconds,
            pages_max: measured.pages_max,
        })
    }

    /// Misses in a second with room for `pages` pages, in the mean of the time measured; of a
    /// program that does not wait for them.
    pub fn misses_per_second(&self, pages: f64) -> f64 {
        let of_part = |part: &WorkingSet| part.seconds * slope_at(&part.corners, pages);
        self.parts.iter().map(of_part).sum::<f64>() / self.seconds
    }
}

/// The slope of the working set where it reaches `pages`; none is missed with more.
fn slope_at(corners: &[(f64, f64)], pages: f64) -> f64 {
    let mut pairs = corners.windows(2);
    let reaching = pairs.find(|pair| pair[1].1 > pages);
    reaching.map_or(0.0, |pair| {
        (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0)
    })
}

/// The working set by the length of the window in seconds, as the least curve of falling slope
/// above what the looks say. The share of looks whose pages were used is estimated as in life
/// tables, with those that are open counted for as long as they are (Kaplan and Meier, 1958).
fn corners(part: &Part) -> Vec<(f64, f64)> {
    let pages = part.pages as f64 / part.rounds as f64;
    let sum = |counts: &[u32]| counts.iter().map(|count| f64::from(*count)).sum::<f64>();
    let mut at_risk = sum(&part.used) + sum(&part.open) + part.gone as f64;
    let mut unused = 1.0;
    let mut corners = vec![(0.0, 0.0)];
    for (class, (used, open)) in part.used.iter().zip(&part.open).enumerate() {
        let (used, open) = (f64::from(*used), f64::from(*open));
        let looked = at_risk - open / 2.0;
        if looked > 0.0 && used > 0.0 {
            unused *= (1.0 - used / looked).max(0.0);
            push(
                &mut corners,
                (age_end(class) as f64 / 1e9, pages * (1.0 - unused)),
            );
        }
        at_risk -= used + open;
    }
    corners
}

/// Adds a corner, and takes out those that the slope would rise at.
fn push(corners: &mut Vec<(f64, f64)>, corner: (f64, f64)) {
    let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
    while let [.., before, last] = corners[..] {
        if slope(before, last) > slope(last, corner) {
            break;
        }
        corners.pop();
    }
    corners.push(corner);
}

#[cfg(test)]
mod tests;
