//! `dirty`: what dirty tracking costs: a take over much memory of which little was written, and
//! writes to tracked pages.
use std::io::{Error, Result};
use std::time::Instant;

use clap::Args;
use pagetide::track::{DirtyTracker, Method};
use serde::Serialize;

use crate::arguments::{at_least_one, share, size};
use crate::content::Random;
use crate::memory::{HugePages, Plain};
use crate::report::print;
use crate::statistics::median;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Memory tracked
    #[arg(long, default_value = "4G", value_parser = size)]
    pub size: usize,
    /// Share of the pages written before a take, in percent, at random places
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true, value_parser = share)]
    pub percent: f64,
    /// Takes
    #[arg(long, default_value_t = 7, value_parser = at_least_one())]
    pub runs: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    method: String,
    size_bytes: usize,
    pages_written: usize,
    take_ms: f64,
    first_write_us: f64,
    later_write_us: f64,
    untracked_write_us: f64,
}

/// Measures the best method there is, and prints.
pub fn run(plan: &Plan) -> Result<()> {
    let memory = Plain::new(plan.size, HugePages::Never)?;
    let pages = memory.pages();
    (0..pages).for_each(|page| memory.write(page, 1));
    let mut random = Random::new(1);
    let count = ((pages as f64 * plan.percent / 100.0) as usize).clamp(1, pages);
    let places: Vec<usize> = (0..count)
        .map(|_| random.below(pages as u64) as usize)
        .collect();
    let write_all = || {
        let start = Instant::now();
        places.iter().for_each(|page| memory.write(*page, 2));
        start.elapsed().as_secs_f64() * 1e6 / count as f64
    };
    write_all();
    let untracked: Vec<f64> = (0..plan.runs).map(|_| write_all()).collect();
    let tracked = vec![memory.memory().map_err(Error::other)?];
    let mut tracker = DirtyTracker::new(tracked).map_err(Error::other)?;
    let (mut takes, mut first, mut later) = (vec![], vec![], vec![]);
    for _ in 0..plan.runs {
        first.push(write_all());
        // The faults have pushed the pages out of the caches; each untracked round, too, follows
        // another.
        write_all();
        later.push(write_all());
        let start = Instant::now();
        let ranges = tracker.take().map_err(Error::other)?;
        takes.push(start.elapsed().as_secs_f64() * 1e3);
        let found: usize = ranges.iter().map(|range| range.len() / 4096).sum();
        let mut distinct = places.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if found != distinct.len() {
            return Err(Error::other(format!(
                "{} pages were written and {found} found",
                distinct.len()
            )));
        }
    }
    let row = Row {
        method: tracker.method().to_string(),
        size_bytes: plan.size,
        pages_written: count,
        take_ms: median(&takes),
        first_write_us: median(&first),
        later_write_us: median(&later),
        untracked_write_us: median(&untracked),
    };
    debug_assert!(Method::ALL.contains(&tracker.method()));
    print(plan.json, &row, |row| {
        format!(
            "dirty tracking of {} bytes by {}, {} writes at random places before each of {} \
             takes, medians\ntake {:.2} ms; write to a page: first since the take {:.2} us, later \
             {:.3} us, untracked {:.3} us\n",
            row.size_bytes,
            row.method,
            row.pages_written,
            plan.runs,
            row.take_ms,
            row.first_write_us,
            row.later_write_us,
            row.untracked_write_us
        )
    })
}
