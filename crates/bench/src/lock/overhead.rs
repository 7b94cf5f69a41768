//! `overhead`: STREAM, a compile job and a program of many threads, with and without locking. The
//! text of 2015 found no measurable cost.
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::programs::{CompileJob, Rates, STREAM, Sizes, Stream, THREADS};
use super::registry;
use crate::arguments::runs;
use crate::machine::Machine;
use crate::report::{Table, cell, print};
use crate::runner::{System, Systems, in_turns};
use crate::statistics::median;
use crate::{launch, undo};

/// Threads of the program of many.
const MANY: usize = 64;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Each is measured so many times, in turns; the median counts
    #[arg(long, default_value_t = 5, value_parser = runs())]
    pub runs: usize,
    /// Doubles in each of STREAM's three arrays
    #[arg(long, default_value_t = 10_000_000)]
    pub elements: usize,
    /// The `pagetide` command, for the compile job; beside this program if not said
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
    /// Print a JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    unit: &'static str,
    without: f64,
    with: f64,
    /// Time with locking over time without: above 1 is slower.
    cost: f64,
    /// Least and most of the runs without: what noise there is.
    without_min: f64,
    without_max: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: Machine,
    runs: usize,
    rows: Vec<Line>,
    registry: registry::Cost,
}

/// What is measured of all programs together, with or without all memory locked on fault.
struct Programs<'a> {
    locked: bool,
    pagetide: &'a Path,
    job: &'a CompileJob,
}

/// What one run finds.
struct Found {
    rates: Rates,
    seconds: f64,
    sizes: Sizes,
}

impl System<Stream> for Programs<'_> {
    type Found = Found;

    fn name(&self) -> &str {
        if self.locked { "with" } else { "without" }
    }

    fn run(&mut self, stream: &Stream) -> Result<Found> {
        let lock = self.locked;
        let stream = Stream { lock, ..*stream };
        let mut threads = match lock {
            true => launch::under_run(self.pagetide, &["--lock", "on-fault"], THREADS, &MANY)?,
            false => launch::worker(THREADS, &MANY)?,
        };
        let found = Found {
            rates: launch::findings(&mut launch::worker(STREAM, &stream)?)?,
            seconds: self.job.run(lock.then_some(self.pagetide))?,
            sizes: launch::findings(&mut threads)?,
        };
        if lock && found.sizes.vmlck_bytes == 0 {
            return Err(Error::other("the program of 64 threads was not locked"));
        }
        Ok(found)
    }
}

/// A line: its name, its unit, and what of a run it is of.
type Of = (&'static str, &'static str, fn(&Found) -> f64);

const LINES: [Of; 6] = [
    ("STREAM copy", "MB/s", |found| found.rates.copy),
    ("STREAM scale", "MB/s", |found| found.rates.scale),
    ("STREAM add", "MB/s", |found| found.rates.add),
    ("STREAM triad", "MB/s", |found| found.rates.triad),
    ("compile job", "s", |found| found.seconds),
    ("RSS, 64 threads", "MiB", |found| {
        found.sizes.rss_bytes as f64 / f64::from(1 << 20)
    }),
];

/// Measures and prints.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let pagetide = launch::find_command(plan.pagetide.as_deref())?;
    let job = CompileJob::new()?;
    let programs = |locked| Programs {
        locked,
        pagetide: &pagetide,
        job: &job,
    };
    let systems: Systems<'_, Stream, Found> =
        vec![Box::new(programs(false)), Box::new(programs(true))];
    let elements = plan.elements;
    let work = |_| Stream {
        lock: false,
        elements,
    };
    let all = in_turns(systems, plan.runs, work, |_, _, found| found.map(Some))?;
    let line = |(name, unit, of): Of| {
        line(
            name,
            unit,
            [0, 1].map(|i: usize| all[i].runs.iter().map(of).collect()),
        )
    };
    let results = Results {
        machine: Machine::here(),
        runs: plan.runs,
        rows: LINES.map(line).into(),
        registry: registry::measure(20_000, plan.runs)?,
    };
    print(plan.json, &results, text)
}

fn line(name: &'static str, unit: &'static str, [before, after]: [Vec<f64>; 2]) -> Line {
    let (without, with) = (median(&before), median(&after));
    Line {
        name,
        unit,
        without,
        with,
        // A rate is the other way round.
        cost: if unit == "MB/s" {
            without / with
        } else {
            with / without
        },
        without_min: before.iter().copied().fold(f64::INFINITY, f64::min),
        without_max: before.iter().copied().fold(0.0, f64::max),
    }
}

fn text(results: &Results) -> String {
    let mut table = Table::new(&["", "without", "with", "cost", "noise of without", ""]);
    for row in &results.rows {
        let noise = format!("{:.2} to {:.2}", row.without_min, row.without_max);
        let [without, with] = [row.without, row.with].map(|value| cell(value, 2));
        let (name, unit) = (row.name.to_owned(), row.unit.to_owned());
        table.row([name, without, with, cell(row.cost, 3), noise, unit]);
    }
    let Results {
        machine,
        runs,
        registry,
        ..
    } = results;
    let added = |what: &str, with: f64, bare: f64| {
        let [with, bare] = [with / 1e3, bare / 1e3];
        format!(
            "{what} {with:.2} us (bare {bare:.2}, added {:.2})",
            with - bare
        )
    };
    format!(
        "without and with all memory locked on fault, medians of {runs} runs taken in turns\n\
         {machine}\n\n{table}\ncost: time (or memory) with locking over without\n\nregistry with \
         {} ranges: {}, {}\n{} threads at once, time over all calls: {:.2} us (bare {:.2})\n",
        registry.ranges,
        added("lock", registry.lock_ns, registry.bare_lock_ns),
        added("unlock", registry.unlock_ns, registry.bare_unlock_ns),
        registry.threads,
        registry.threads_ns / 1e3,
        registry.bare_threads_ns / 1e3,
    )
}
