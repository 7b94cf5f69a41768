//! Runs the strategies in turns, each in a process of its own.
use std::io::{Error, Result};

use pagetide::lock::{Access, LockedFile};
use serde::Serialize;

use super::data::Data;
use super::plan::Plan;
use super::report;
use super::strategy::Strategy;
use super::task::{Findings, Order, TOO_MANY_MAPPINGS, Task, WORKER};
use crate::machine::Machine;
use crate::report::{print, progress, save};
use crate::runner::{System, Systems, in_turns};
use crate::statistics::{median, medians};
use crate::{launch, sysfs, undo};

/// The state of the page cache before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Cache {
    Cold,
    Warm,
}

/// Medians of a strategy's runs.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub strategy: Strategy,
    pub cache: Cache,
    pub accesses: u64,
    pub setup_ms: f64,
    pub processing_ms: f64,
    pub resident_bytes: u64,
    pub touched_bytes: u64,
    pub major_faults: u64,
    /// Of setup and processing together.
    pub total_ms: f64,
    pub total_ms_min: f64,
    pub total_ms_max: f64,
}

impl Row {
    fn of(strategy: Strategy, cache: Cache, accesses: u64, runs: &[Findings]) -> Row {
        let middle = medians(runs);
        let totals = runs.iter().map(|run| run.setup_ms + run.processing_ms);
        let totals: Vec<f64> = totals.collect();
        Row {
            strategy,
            cache,
            accesses,
            setup_ms: middle.setup_ms,
            processing_ms: middle.processing_ms,
            resident_bytes: middle.resident_bytes,
            touched_bytes: middle.touched_bytes,
            major_faults: middle.major_faults,
            total_ms: median(&totals),
            total_ms_min: totals.iter().copied().fold(f64::INFINITY, f64::min),
            total_ms_max: totals.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// A strategy that was not run, and why.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Skipped {
    pub strategy: Strategy,
    pub accesses: u64,
    pub reason: String,
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Results {
    pub machine: Machine,
    pub file_bytes: u64,
    pub order: Order,
    pub runs: usize,
    pub rows: Vec<Row>,
    pub skipped: Vec<Skipped>,
}

/// Does what the plan says and prints it.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let directory = plan.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut strategies: Vec<Strategy> = plan.strategies.iter().copied().flatten().collect();
    if plan.strategies.contains(&None) {
        strategies = Strategy::all().collect();
    }
    let pages = plan.file_size / 4096;
    let mappings = strategies
        .iter()
        .map(|strategy| strategy.mappings(pages))
        .max();
    let mappings_max = allow_mappings(mappings.unwrap_or(0) + 10_000)?;
    progress("making the file");
    let experiment = Experiment {
        plan,
        data: Data::make(&directory, plan.file_size)?,
        strategies,
        mappings_max,
    };
    let mut results = Results {
        machine: Machine::here(),
        file_bytes: plan.file_size,
        order: plan.order,
        runs: plan.runs,
        rows: Vec::new(),
        skipped: experiment.impossible(),
    };
    for cache in [Cache::Cold, Cache::Warm] {
        let wanted = match cache {
            Cache::Cold => !plan.warm,
            Cache::Warm => !plan.cold,
        };
        for accesses in plan.accesses.iter().filter(|_| wanted) {
            experiment.measure(cache, *accesses, &mut results)?;
        }
    }
    if let Some(path) = &plan.plot {
        save(path, &report::draw(&results))?;
    }
    print(plan.json, &results, report::text)
}

/// Raises the most mappings a process may have, for the run, if root; returns what it is then.
fn allow_mappings(needed: u64) -> Result<u64> {
    const SYSCTL: &str = "/proc/sys/vm/max_map_count";
    let before = sysfs::read(SYSCTL)?;
    let now: u64 = before.parse().unwrap_or(65_530);
    if now >= needed || !rustix::process::geteuid().is_root() {
        return Ok(now);
    }
    let changed = undo::change(
        "vm.max_map_count",
        || sysfs::write(SYSCTL, needed.to_string()),
        move || sysfs::write(SYSCTL, before),
    );
    Ok(if changed.is_ok() { needed } else { now })
}

/// What all measurements share.
struct Experiment<'a> {
    plan: &'a Plan,
    data: Data,
    strategies: Vec<Strategy>,
    mappings_max: u64,
}

/// A strategy on the file, whose page cache is brought into a state first.
struct Locking<'a>(Strategy, Cache, &'a Data);

impl System<Task> for Locking<'_> {
    /// None if the kernel refused more mappings.
    type Found = Option<Findings>;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn run(&mut self, task: &Task) -> Result<Option<Findings>> {
        let Locking(strategy, cache, data) = self;
        match cache {
            Cache::Cold => data.make_cold()?,
            Cache::Warm => data.make_warm()?,
        }
        let task = Task {
            strategy: *strategy,
            ..task.clone()
        };
        let (status, printed) = launch::output(&mut launch::worker(WORKER, &task)?)?;
        match status.code() {
            Some(0) => Ok(Some(serde_json::from_slice(&printed)?)),
            Some(TOO_MANY_MAPPINGS) => Ok(None),
            _ => Err(Error::other(format!(
                "{} with {} accesses ended with {status}",
                strategy.name(),
                task.accesses
            ))),
        }
    }
}

impl Experiment<'_> {
    /// What this kernel has not, or does not let this user have: what `Access::Exact` needs.
    fn impossible(&self) -> Vec<Skipped> {
        let strategy = Strategy::OnFaultExact;
        let builder = LockedFile::builder().access(Access::Exact).range(0, 4096);
        match builder.open(self.data.path()) {
            Err(error) if self.strategies.contains(&strategy) => vec![Skipped {
                strategy,
                accesses: 0,
                reason: error.to_string(),
            }],
            _ => vec![],
        }
    }

    fn measure(&self, cache: Cache, accesses: u64, results: &mut Results) -> Result<()> {
        let skips = |skipped: &[Skipped], strategy| {
            let of = |skip: &Skipped| skip.strategy == strategy && skip.accesses <= accesses;
            skipped.iter().any(of)
        };
        let possible = self
            .strategies
            .iter()
            .filter(|of| !skips(&results.skipped, **of));
        let possible: Vec<Strategy> = possible.copied().collect();
        let system = |strategy: &Strategy| Box::new(Locking(*strategy, cache, &self.data)) as _;
        let systems: Systems<'_, Task, Option<Findings>> = possible.iter().map(system).collect();
        let work = |_| Task {
            strategy: Strategy::None,
            file: self.data.path().to_owned(),
            accesses,
            order: self.plan.order,
        };
        let mut checksum = None;
        let all = in_turns(systems, self.plan.runs, work, |name, _, found| {
            let found = found?;
            if let Some(one) = &found
                && *checksum.get_or_insert(one.checksum) != one.checksum
            {
                return Err(Error::other(format!("{name}: wrong bytes")));
            }
            Ok(found)
        })?;
        for (strategy, measured) in possible.into_iter().zip(&all) {
            if measured.runs.len() < self.plan.runs {
                results.skipped.push(self.refused(strategy, accesses));
            }
            if !measured.runs.is_empty() {
                results
                    .rows
                    .push(Row::of(strategy, cache, accesses, &measured.runs));
            }
        }
        Ok(())
    }

    fn refused(&self, strategy: Strategy, accesses: u64) -> Skipped {
        let needed = strategy.mappings(self.plan.file_size / 4096) + 10_000;
        Skipped {
            strategy,
            accesses,
            reason: format!(
                "needs more mappings than vm.max_map_count allows ({}); as root: sysctl -w \
                 vm.max_map_count={needed}",
                self.mappings_max
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_fields_that_are_promised_and_medians_in_them() {
        let one = |processing_ms| Findings {
            setup_ms: 0.5,
            processing_ms,
            resident_bytes: 8192,
            touched_bytes: 4096,
            major_faults: 1,
            checksum: 0,
        };
        let found = [one(9.0), one(2.0), one(1.0)];
        let row = Row::of(Strategy::OnFault, Cache::Cold, 2000, &found);
        let json = serde_json::to_value(&row).unwrap();
        for (field, value) in [
            ("strategy", serde_json::json!("on-fault")),
            ("cache", serde_json::json!("cold")),
            ("accesses", serde_json::json!(2000)),
            ("setup_ms", serde_json::json!(0.5)),
            ("processing_ms", serde_json::json!(2.0)),
            ("resident_bytes", serde_json::json!(8192)),
            ("major_faults", serde_json::json!(1)),
            ("total_ms_max", serde_json::json!(9.5)),
        ] {
            assert_eq!(json[field], value, "{field}");
        }
    }
}
