//! Runs the strategies in turns, each in a process of its own.
use std::io::{Error, IsTerminal, Result, Write};
use std::process::{Command, Stdio};

use pagetide::lock::{Access, LockedFile};
use serde::Serialize;

use super::data::Data;
use super::strategy::Strategy;
use super::worker::{Findings, Order};
use super::{Plan, handler, plot, report};
use crate::machine::Machine;
use crate::{sysfs, undo};

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
    pub runs: u32,
    pub rows: Vec<Row>,
    pub skipped: Vec<Skipped>,
}

/// Does what the plan says and prints it.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let directory = plan.dir.clone().unwrap_or_else(std::env::temp_dir);
    let strategies = strategies(plan);
    let mappings = strategies
        .iter()
        .map(|strategy| strategy.mappings(plan.file_size / 4096))
        .max()
        .unwrap_or(0);
    let mappings_max = allow_mappings(mappings + 10_000)?;
    say("making the file");
    let data = Data::make(&directory, plan.file_size)?;
    let caches: &[Cache] = match (plan.cold, plan.warm) {
        (true, _) => &[Cache::Cold],
        (_, true) => &[Cache::Warm],
        _ => &[Cache::Cold, Cache::Warm],
    };
    let mut results = Results {
        machine: Machine::here(),
        file_bytes: plan.file_size,
        order: plan.order,
        runs: plan.runs,
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    for cache in caches {
        for accesses in &plan.accesses {
            measure(
                plan,
                &data,
                *cache,
                *accesses,
                &strategies,
                mappings_max,
                &mut results,
            )?;
        }
    }
    say("");
    if let Some(path) = &plan.plot {
        std::fs::write(path, plot::draw(&results))?;
    }
    let text = if plan.json {
        serde_json::to_string(&results)? + "\n"
    } else {
        report::tables(&results)
    };
    std::io::stdout().write_all(text.as_bytes())
}

fn strategies(plan: &Plan) -> Vec<Strategy> {
    if plan.strategies.contains(&None) {
        return Strategy::ALL.to_vec();
    }
    plan.strategies.iter().copied().flatten().collect()
}

/// On the terminal only.
fn say(what: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{what}");
    }
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

/// Whether this kernel has what `Access::Exact` needs, and lets this user have it.
fn exact_works(data: &Data) -> std::result::Result<(), String> {
    let builder = LockedFile::builder().access(Access::Exact).range(0, 4096);
    let opened = builder.open(data.path());
    opened.map(drop).map_err(|error| error.to_string())
}

fn measure(
    plan: &Plan,
    data: &Data,
    cache: Cache,
    accesses: u64,
    strategies: &[Strategy],
    mappings_max: u64,
    results: &mut Results,
) -> Result<()> {
    let mut findings: Vec<(Strategy, Vec<Findings>)> =
        strategies.iter().map(|s| (*s, Vec::new())).collect();
    let mut checksum = None;
    let exact = Strategy::OnFaultExact;
    let known = results.skipped.iter().any(|s| s.strategy == exact);
    if strategies.contains(&exact)
        && !known
        && let Err(reason) = exact_works(data)
    {
        results.skipped.push(Skipped {
            strategy: exact,
            accesses: 0,
            reason,
        });
    }
    for run in 0..plan.runs {
        for (strategy, found) in &mut findings {
            if results
                .skipped
                .iter()
                .any(|skipped| skipped.strategy == *strategy && skipped.accesses <= accesses)
            {
                continue;
            }
            say(&format!(
                "{cache:?}, {accesses} accesses, run {} of {}: {}",
                run + 1,
                plan.runs,
                strategy.name()
            ));
            match cache {
                Cache::Cold => data.make_cold()?,
                Cache::Warm => data.make_warm()?,
            }
            match once(data, *strategy, accesses, plan.order)? {
                Some(one) => {
                    if *checksum.get_or_insert(one.checksum) != one.checksum {
                        return Err(Error::other(format!("{}: wrong bytes", strategy.name())));
                    }
                    found.push(one);
                }
                None => results.skipped.push(Skipped {
                    strategy: *strategy,
                    accesses,
                    reason: format!(
                        "needs more mappings than vm.max_map_count allows ({mappings_max}); as \
                         root: sysctl -w vm.max_map_count={}",
                        strategy.mappings(plan.file_size / 4096) + 10_000
                    ),
                }),
            }
        }
    }
    for (strategy, found) in findings {
        if let Some(row) = row(strategy, cache, accesses, &found) {
            results.rows.push(row);
        }
    }
    Ok(())
}

/// One run; `None` if the kernel refused more mappings.
fn once(data: &Data, strategy: Strategy, accesses: u64, order: Order) -> Result<Option<Findings>> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["lock-worker", "--strategy", strategy.name(), "--file"])
        .arg(data.path())
        .arg(format!("--accesses={accesses}"))
        .arg(match order {
            Order::Random => "--order=random",
            Order::Sequential => "--order=sequential",
        });
    let child = undo::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit()),
    )?;
    let output = child.wait_with_output();
    undo::forget_process();
    let output = output?;
    if output.status.code() == Some(handler::TOO_MANY_MAPPINGS) {
        return Ok(None);
    }
    if !output.status.success() {
        return Err(Error::other(format!(
            "{} with {accesses} accesses ended with {}",
            strategy.name(),
            output.status
        )));
    }
    Ok(Some(serde_json::from_slice(&output.stdout)?))
}

fn row(strategy: Strategy, cache: Cache, accesses: u64, found: &[Findings]) -> Option<Row> {
    let median = |of: &dyn Fn(&Findings) -> f64| {
        let mut values: Vec<f64> = found.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let total = |f: &Findings| f.setup_ms + f.processing_ms;
    let totals = || found.iter().map(total);
    Some(Row {
        strategy,
        cache,
        accesses,
        setup_ms: median(&|f| f.setup_ms)?,
        processing_ms: median(&|f| f.processing_ms)?,
        resident_bytes: median(&|f| f.resident_bytes as f64)? as u64,
        touched_bytes: median(&|f| f.touched_bytes as f64)? as u64,
        major_faults: median(&|f| f.major_faults as f64)? as u64,
        total_ms: median(&total)?,
        total_ms_min: totals().fold(f64::INFINITY, f64::min),
        total_ms_max: totals().fold(0.0, f64::max),
    })
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
        let row = row(Strategy::OnFault, Cache::Cold, 2000, &found).unwrap();
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
