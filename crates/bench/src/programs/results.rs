//! What all runs come to: medians of those that ended well, ratios, means over the programs.
use serde::Serialize;

use super::findings::{Failure, Findings};
use super::plan::Bound;
use crate::machine::Machine;
use crate::statistics::medians;

/// Everything, as JSON has it: seconds, bytes, pages, and shares of one.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Results {
    pub machine: Machine,
    pub runs: usize,
    pub scale: f64,
    /// What a program may lose whose budget follows it.
    pub auto_percent: Option<f64>,
    /// Beyond the budget, and beside a 512th of the peak for page tables, in swap's cgroup.
    pub allowance_bytes: u64,
    pub programs: Vec<Measured>,
    pub summary: Vec<Summary>,
    /// Programs, and swap, that could not be measured, and why.
    pub not_measured: Vec<(String, String)>,
}

/// One program.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Measured {
    pub name: &'static str,
    pub what: &'static str,
    /// The most anonymous memory of its largest process, alone, looked at every millisecond.
    pub peak_bytes: u64,
    pub alone: Side,
    /// With room for all, while it is measured how much memory it needs.
    pub measuring: Option<Side>,
    /// With a budget that follows it.
    pub following: Option<Side>,
    /// Alone: anonymous memory of its largest process in the mean of the time.
    pub mean_bytes: u64,
    pub rows: Vec<Row>,
}

/// One program in one bound.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub share: Bound,
    pub resident_bytes: u64,
    pub pagetide: Side,
    /// None where swap is not measured: it cannot be here, or the program fits.
    pub swap: Option<Side>,
    /// Pagetide over swap, or over the program alone where it fits.
    pub ratio: Ratio,
}

/// All runs of a program in one environment.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Side {
    /// Of the runs that ended well; none if none did.
    pub median: Option<Findings>,
    /// Of the runs that did not.
    pub failures: Vec<Failure>,
    pub runs: Vec<Findings>,
}

/// Ours over theirs: none where one of them has a run that did not end well, or counted nothing.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[allow(missing_docs)]
pub struct Ratio {
    pub wall: Option<f64>,
    pub cpu: Option<f64>,
    /// Pages fetched on demand over swap-ins.
    pub demand: Option<f64>,
}

/// All programs in one bound, those that both sides survived.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub share: Bound,
    pub wall: Option<Mean>,
    pub cpu: Option<Mean>,
    pub demand: Option<Mean>,
    /// Programs with a run that did not end well.
    pub pagetide_failed: Vec<&'static str>,
    pub swap_failed: Vec<&'static str>,
    /// Programs that the kernel's OOM killer would have ended, had it not been held off.
    pub swap_helped: Vec<&'static str>,
}

/// Of ratios.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Mean {
    pub programs: usize,
    pub geometric: f64,
    pub worst: f64,
    pub worst_program: &'static str,
}

impl Side {
    /// All `runs`; those whose output is not `expected` count as failed.
    pub fn new(mut runs: Vec<Findings>, expected: &str) -> Side {
        for run in &mut runs {
            if run.failure.is_none() && run.output != expected {
                run.failure = Some(Failure::WrongOutput);
            }
        }
        let well = |run: &&Findings| run.failure.is_none();
        let ended_well: Vec<Findings> = runs.iter().filter(well).cloned().collect();
        Side {
            median: (!ended_well.is_empty()).then(|| medians(&ended_well)),
            failures: runs.iter().filter_map(|run| run.failure.clone()).collect(),
            runs,
        }
    }

    /// Its medians, if every run ended well.
    pub fn survived(&self) -> Option<&Findings> {
        self.median.as_ref().filter(|_| self.failures.is_empty())
    }
}

impl Row {
    /// Whether the kernel's OOM killer was held off in a run under swap.
    pub fn is_helped(&self) -> bool {
        let runs = self.swap.iter().flat_map(|side| &side.runs);
        runs.filter_map(|run| run.held_off).any(|calls| calls > 0)
    }
}

impl Ratio {
    /// Of medians.
    pub fn of(ours: &Side, theirs: &Side) -> Ratio {
        let (Some(ours), Some(theirs)) = (ours.survived(), theirs.survived()) else {
            return Ratio::default();
        };
        let over = |a: f64, b: f64| (a > 0.0 && b > 0.0).then(|| a / b);
        let pages = ours.demand_pages.zip(theirs.demand_pages);
        Ratio {
            wall: over(ours.wall_seconds, theirs.wall_seconds),
            cpu: over(ours.cpu_seconds, theirs.cpu_seconds),
            demand: pages.and_then(|(a, b)| over(a as f64, b as f64)),
        }
    }
}

impl Summary {
    /// Of the rows that all `programs` have at `at`.
    pub fn of(programs: &[Measured], at: usize, share: Bound) -> Summary {
        let rows = || {
            programs
                .iter()
                .map(|program| (program.name, &program.rows[at]))
        };
        let mean = |of: fn(&Ratio) -> Option<f64>| {
            mean(rows().filter_map(|(name, row)| Some((name, of(&row.ratio)?))))
        };
        let failed = |of: fn(&Row) -> Option<&Side>| {
            let failed = rows().filter(|(_, row)| of(row).is_some_and(|s| s.survived().is_none()));
            failed.map(|(name, _)| name).collect()
        };
        let helped = rows().filter(|(_, row)| row.is_helped());
        Summary {
            share,
            wall: mean(|ratio| ratio.wall),
            cpu: mean(|ratio| ratio.cpu),
            demand: mean(|ratio| ratio.demand),
            pagetide_failed: failed(|row| Some(&row.pagetide)),
            swap_failed: failed(|row| row.swap.as_ref()),
            swap_helped: helped.map(|(name, _)| name).collect(),
        }
    }
}

fn mean(ratios: impl Iterator<Item = (&'static str, f64)>) -> Option<Mean> {
    let ratios: Vec<_> = ratios.collect();
    let (worst_program, worst) = *ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let logs: f64 = ratios.iter().map(|(_, ratio)| ratio.ln()).sum();
    Some(Mean {
        programs: ratios.len(),
        geometric: (logs / ratios.len() as f64).exp(),
        worst,
        worst_program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(wall_seconds: f64, output: &str) -> Findings {
        Findings {
            wall_seconds,
            cpu_seconds: 1.0,
            output: output.to_owned(),
            ..Findings::default()
        }
    }

    #[test]
    fn a_run_that_failed_leaves_the_medians_but_not_the_count() {
        let killed = Findings {
            failure: Some(Failure::OutOfMemory),
            ..run(0.1, "")
        };
        let side = Side::new(vec![run(2.0, "x"), killed, run(9.0, "y")], "x");
        assert_eq!(side.median.as_ref().unwrap().wall_seconds, 2.0);
        assert_eq!(side.failures, [Failure::OutOfMemory, Failure::WrongOutput]);
        assert!(side.survived().is_none());
        let well = Side::new(vec![run(1.0, "x"); 3], "x");
        assert!(Ratio::of(&well, &side).wall.is_none());
        assert_eq!(Ratio::of(&well, &well).wall, Some(1.0));
        assert_eq!(Ratio::of(&well, &well).demand, None);
    }

    #[test]
    fn the_mean_is_geometric_and_the_worst_is_named() {
        let found = mean([("a", 4.0), ("b", 1.0)].into_iter()).unwrap();
        assert!((found.geometric - 2.0).abs() < 1e-9);
        assert_eq!((found.worst, found.worst_program), (4.0, "a"));
        assert_eq!(mean(std::iter::empty()), None);
    }
}
