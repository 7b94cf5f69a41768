//! Runs the strategies in turns, each in a process of its own.
use std::io::{Error, Result};

use pagetide::lock::{Access, LockedFile};

use super::data::Data;
use super::plan::Plan;
use super::report;
use super::results::{Cache, Results, Row, Skipped};
use super::strategy::Strategy;
use super::task::{Findings, TOO_MANY_MAPPINGS, Task, WORKER};
use crate::machine::Machine;
use crate::report::{print, progress, save};
use crate::runner::{System, Systems, in_turns};
use crate::{launch, sysfs, undo};

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
