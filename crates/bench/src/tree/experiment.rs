//! `tree`: each scenario with one budget for the run and with a part of it for each process, in
//! turns.
use std::fmt::Write as _;
use std::io::Result;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::task::{Scenario, Task, Took, Work};
use super::worker::KIND;
use crate::arguments::{runs, size};
use crate::launch::{find_command, findings, under_run, worker};
use crate::machine::Machine;
use crate::report::{Table, cell, print};
use crate::runner::{System, Systems, in_turns};
use crate::statistics::median;
use crate::undo;

/// Processes of a run that share its budget.
const PROCESSES: usize = 8;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// The budget of the run; the other way each of eight processes has an eighth of it
    #[arg(long, default_value = "128M", value_parser = size)]
    pub resident: usize,
    /// Pages that each program reads
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: u64,
    /// Starts of a process of which the mean counts
    #[arg(long, default_value_t = 200, value_parser = crate::arguments::at_least_one())]
    pub starts: usize,
    /// Each way is measured so many times, in turns; medians count
    #[arg(long, default_value_t = 3, value_parser = runs())]
    pub runs: usize,
    /// Print JSON, in seconds
    #[arg(long)]
    pub json: bool,
    /// The pagetide command; default: the one beside this executable
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
}

/// A scenario, and what is compared in it.
struct Compared {
    title: &'static str,
    scenario: Scenario,
    must: f64,
    aim: f64,
}

impl Plan {
    /// Equal programs have twice what there is for each. One that works has what there is for all,
    /// less what those that sleep keep.
    fn scenarios(&self) -> [Compared; 2] {
        let part = self.resident / PROCESSES;
        let work = |bytes| Work {
            bytes,
            accesses: self.accesses,
            seed: 1,
        };
        let asleep = PROCESSES - 1;
        [
            Compared {
                title: "eight equal programs",
                scenario: Scenario::Equal(PROCESSES, work(2 * part)),
                must: 1.1,
                aim: 0.9,
            },
            Compared {
                title: "one works, seven sleep",
                scenario: Scenario::Busy(work(self.resident * 3 / 4), asleep, part),
                must: 0.5,
                aim: 0.3,
            },
        ]
    }
}

/// Times of one scenario, medians.
#[derive(Debug, Clone, Serialize)]
struct Row {
    scenario: &'static str,
    shared_seconds: f64,
    divided_seconds: f64,
    ratio: f64,
    must: f64,
    aim: f64,
}

/// A start of a process, medians.
#[derive(Debug, Clone, Serialize)]
struct Start {
    governed_seconds: f64,
    bare_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: Machine,
    resident_bytes: usize,
    accesses: u64,
    runs: usize,
    rows: Vec<Row>,
    start: Start,
}

/// A way in which the same is done.
struct Way<'a> {
    name: &'static str,
    /// The options of `pagetide run`; none for no `pagetide`.
    options: Option<Vec<String>>,
    pagetide: &'a Path,
}

impl System<Scenario> for Way<'_> {
    type Found = Took;

    fn name(&self) -> &str {
        self.name
    }

    fn run(&mut self, scenario: &Scenario) -> Result<Took> {
        let task = Task::Lead(scenario.clone());
        let mut command = match &self.options {
            Some(options) => {
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                under_run(self.pagetide, &options, KIND, &task)?
            }
            None => worker(KIND, &task)?,
        };
        findings(&mut command)
    }
}

fn options(words: &[&str], bytes: usize) -> Option<Vec<String>> {
    let resident = format!("--resident={bytes}");
    let words = ["--quiet"]
        .iter()
        .chain(words)
        .map(|word| (*word).to_owned());
    Some(words.chain([resident]).collect())
}

/// The medians of two ways of doing `scenario`, measured in turns.
fn compare(plan: &Plan, scenario: &Scenario, ways: [Way<'_>; 2]) -> Result<[f64; 2]> {
    let systems: Systems<'_, Scenario, Took> =
        ways.into_iter().map(|way| Box::new(way) as _).collect();
    let work = |_| scenario.clone();
    let all = in_turns(systems, plan.runs, work, |_, _, took| took.map(Some))?;
    let middle = |at: usize| {
        let seconds: Vec<f64> = all[at].runs.iter().map(|took| took.seconds).collect();
        median(&seconds)
    };
    Ok([middle(0), middle(1)])
}

/// Measures and prints.
///
/// # Errors
/// Starting processes; one of them failed.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let pagetide = &find_command(plan.pagetide.as_deref())?;
    let way = |name, options| Way {
        name,
        options,
        pagetide,
    };
    let mut rows = Vec::new();
    for Compared {
        title,
        scenario,
        must,
        aim,
    } in plan.scenarios()
    {
        let part = options(&["--per-process"], plan.resident / PROCESSES);
        let ways = [
            way("one budget", options(&[], plan.resident)),
            way("a part each", part),
        ];
        let [shared_seconds, divided_seconds] = compare(plan, &scenario, ways)?;
        rows.push(Row {
            scenario: title,
            shared_seconds,
            divided_seconds,
            ratio: shared_seconds / divided_seconds,
            must,
            aim,
        });
    }
    let ways = [
        way("started in a run", options(&[], plan.resident)),
        way("started alone", None),
    ];
    let [governed_seconds, bare_seconds] = compare(plan, &Scenario::Starts(plan.starts), ways)?;
    let start = Start {
        governed_seconds,
        bare_seconds,
    };
    let results = Results {
        machine: Machine::here(),
        resident_bytes: plan.resident,
        accesses: plan.accesses,
        runs: plan.runs,
        rows,
        start,
    };
    print(plan.json, &results, text)
}

fn text(results: &Results) -> String {
    let mut out = format!("{}\n\n", results.machine);
    let heads = ["", "one budget", "an eighth each", "ratio", "must", "aim"];
    let mut table = Table::new(&heads);
    for row in &results.rows {
        table.row([
            row.scenario.to_owned(),
            format!("{:.2} s", row.shared_seconds),
            format!("{:.2} s", row.divided_seconds),
            cell(row.ratio, 2),
            cell(row.must, 1),
            cell(row.aim, 1),
        ]);
    }
    let Start {
        governed_seconds,
        bare_seconds,
    } = results.start;
    let ms = |seconds: f64| format!("{:.2} ms", 1000.0 * seconds);
    let _ = write!(
        out,
        "{table}\nA start of /bin/true in a run: {}, alone {}: {} more (must 6 ms, aim 3 ms)\n",
        ms(governed_seconds),
        ms(bare_seconds),
        ms(governed_seconds - bare_seconds)
    );
    out
}
