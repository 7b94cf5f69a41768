//! `first-numbers`: the preset of `paging` that compares everything there is with kernel swap on
//! zram: random reads, then writes, by one thread.
use std::io::{Error, Result, Write};
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use serde_json::{Value, json};

use super::kernel_swap::KernelSwap;
use super::systems::{Swap, Worker, check_agreement};
use super::task::{Findings, Home, Phase, Task};
use crate::launch::find_command;
use crate::machine::Machine;
use crate::report::{Table, cell, mib, say};
use crate::runner::{Measured, in_turns};
use crate::statistics::{Ratios, Spread, medians, ratios};
use crate::undo;

/// What to compare.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Bytes of anonymous memory to work on.
    #[arg(long, default_value_t = 1 << 30)]
    pub bytes: u64,
    /// Timed accesses of each kind: so many reads, then so many writes.
    #[arg(long, default_value_t = 400_000)]
    pub accesses: u64,
    /// Reads before the clock runs.
    #[arg(long, default_value_t = 100_000)]
    pub warmup: u64,
    /// Decides the contents and the order of accesses.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The most bytes of the data that may be resident.
    #[arg(long, default_value_t = 256 << 20)]
    pub resident: u64,
    /// Times each system is run.
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// The pagetide command; default: the one beside this executable.
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
    /// The store Pagetide evicts to; default: its own default.
    #[arg(long)]
    pub store: Option<String>,
    /// Measure kernel swap alone.
    #[arg(long)]
    pub peer_only: bool,
    /// Also write the results as JSON to this file; `-` writes them to stdout in place of the
    /// table.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// All runs of one system.
struct System {
    name: String,
    /// What it was told to hold.
    bound_bytes: u64,
    /// The most it held over all runs.
    held_bytes_max: u64,
    runs: Vec<Findings>,
    /// Medians over the runs.
    read: Spread,
    write: Spread,
}

impl System {
    fn of(measured: Measured<Findings>, bound_bytes: u64) -> System {
        let phases = medians(&measured.runs).phases;
        let held = measured.runs.iter().map(|run| run.resident_max_bytes);
        System {
            name: measured.name,
            bound_bytes,
            held_bytes_max: held.max().unwrap_or(0),
            runs: measured.runs,
            read: phases[0],
            write: phases[1],
        }
    }

    /// Over reads and writes together: what decides which of two settings is the better one.
    fn mean(&self) -> f64 {
        (self.read.mean + self.write.mean) / 2.0
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "bound_bytes": self.bound_bytes,
            "held_bytes_max": self.held_bytes_max,
            "runs": self.runs.iter().map(run_json).collect::<Value>(),
            "read": times(&self.read),
            "write": times(&self.write),
        })
    }
}

fn run_json(run: &Findings) -> Value {
    json!({
        "read": times(&run.phases[0]),
        "write": times(&run.phases[1]),
        "clock_ns": run.clock_ns,
        "fill_seconds": run.fill_seconds,
        "access_seconds": run.seconds,
        "verify_seconds": run.verify_seconds,
        "major_faults": run.major_faults,
        "own_bytes": run.own_bytes,
        "resident_bytes": run.resident_bytes,
        "thp_disabled": run.thp_disabled,
        "region_bytes_max": run.region_bytes_max,
        "checksum": run.checksum,
    })
}

/// In nanoseconds.
fn times(spread: &Spread) -> Value {
    let Spread {
        mean,
        p50,
        p99,
        p999,
        max,
        ..
    } = spread;
    json!({ "mean": mean, "p50": p50, "p99": p99, "p999": p999, "max": max })
}

struct Results {
    machine: Machine,
    /// What the peer's group may hold beyond the bound, for the worker's own memory and its page
    /// tables.
    allowance_bytes: u64,
    cgroup_version: u32,
    /// Of the peers, the better: the one that counts.
    peer: String,
    /// Every system, the peer's settings first.
    systems: Vec<System>,
    /// Pagetide's medians over the peer's, by system.
    over: Vec<(String, Ratios)>,
}

const RATIOS: [(&str, &str); 4] = [
    ("read_mean", "/read/mean"),
    ("read_p99", "/read/p99"),
    ("write_mean", "/write/mean"),
    ("write_p99", "/write/p99"),
];

impl Results {
    fn json(&self, plan: &Plan) -> Value {
        let over = |(system, ratios): &(String, Ratios)| {
            let mut over = json!(ratios);
            over["system"] = json!(system);
            over
        };
        json!({
            "machine": self.machine,
            "data_bytes": plan.bytes,
            "resident_bytes": plan.resident,
            "accesses": plan.accesses,
            "warmup": plan.warmup,
            "seed": plan.seed,
            "peer_allowance_bytes": self.allowance_bytes,
            "cgroup_version": self.cgroup_version,
            "peer": self.peer,
            "systems": self.systems.iter().map(System::json).collect::<Value>(),
            "ratios": self.over.iter().map(over).collect::<Value>(),
        })
    }
}

/// Does what the plan says and prints it. The machine is left changed: call [`undo::all`]
/// afterwards, whatever came out.
pub fn run(plan: &Plan) -> Result<()> {
    let results = compare(plan)?;
    let json = serde_json::to_string_pretty(&results.json(plan))?;
    let table = match &plan.json {
        Some(path) if path.as_os_str() == "-" => json + "\n",
        Some(path) => {
            std::fs::write(path, json)?;
            text(plan, &results)
        }
        None => text(plan, &results),
    };
    std::io::stdout().write_all(table.as_bytes())
}

fn compare(plan: &Plan) -> Result<Results> {
    if plan.runs == 0 || plan.accesses == 0 {
        return Err(Error::other(
            "there is nothing to measure: --runs and --accesses must be at least 1",
        ));
    }
    let command = (!plan.peer_only).then(|| find_command(plan.pagetide.as_deref()));
    let command = command.transpose()?;
    undo::arm()?;
    let accesses = plan.accesses;
    let task = Task {
        warmup: plan.warmup,
        phases: [0, 100].map(|writes| Phase { accesses, writes }).into(),
        store: plan.store.clone().unwrap_or("ram:".to_owned()),
        ..Task::random_reads(plan.bytes, plan.resident, accesses)
    };
    let kernel = Rc::new(KernelSwap::start(None, &task)?);
    let (allowance, version) = (kernel.allowance_bytes, kernel.cgroup_version());
    say(&format!(
        "kernel swap on zram (lz4), cgroup v{version}: {} bytes and {allowance} for the worker \
         itself",
        plan.resident
    ));
    let mut systems = Swap::settings(&kernel, "zram");
    let peers = systems.len();
    if let Some(command) = command {
        systems.push(Worker::under_run("pagetide run", command, |task| task));
        systems.push(Worker::at("Region, thread", Home::Thread));
        systems.push(Worker::at("Region, signal", Home::Signal));
    }
    let work = |turn| Task {
        seed: plan.seed + turn as u64,
        ..task.clone()
    };
    let measured = in_turns(systems, plan.runs, work, |name, turn, findings| {
        let findings = findings?;
        told(name, turn, &findings)?;
        Ok(Some(findings))
    })?;
    check_agreement(&measured, None)?;
    let bound = |index| plan.resident + if index < peers { allowance } else { 0 };
    let systems = measured.into_iter().enumerate();
    let systems: Vec<System> = systems.map(|(at, m)| System::of(m, bound(at))).collect();
    let by_mean = |a: &&System, b: &&System| a.mean().total_cmp(&b.mean());
    let peer = systems[..peers]
        .iter()
        .min_by(by_mean)
        .expect("the peer has settings");
    let over = |system: &System| {
        (
            system.name.clone(),
            ratios(&system.json(), &peer.json(), &RATIOS),
        )
    };
    Ok(Results {
        machine: Machine::here(),
        allowance_bytes: allowance,
        cgroup_version: version,
        peer: peer.name.clone(),
        over: systems[peers..].iter().map(over).collect(),
        systems,
    })
}

/// Says what came out of one run, unless that is nothing.
fn told(name: &str, turn: usize, run: &Findings) -> Result<()> {
    if name.starts_with("zram") && run.major_faults == 0 {
        return Err(Error::other(
            "nothing was swapped in: this measures nothing, ask for more --bytes or less \
             --resident",
        ));
    }
    let [read, write] =
        [run.phases[0], run.phases[1]].map(|times| (times.mean / 1e3, times.p99 / 1e3));
    say(&format!(
        "{name:<16} run {}: read mean {:.1} us, p99 {:.1}; write mean {:.1}, p99 {:.1}",
        turn + 1,
        read.0,
        read.1,
        write.0,
        write.1
    ));
    Ok(())
}

/// Medians of all systems in microseconds, with the machine and the ratios.
fn text(plan: &Plan, results: &Results) -> String {
    let mut table = Table::new(&[
        "system",
        "access",
        "mean",
        "p50",
        "p99",
        "p99.9",
        "held (bound)",
    ]);
    let mut row = |name: &str, kind: &str, times: &Spread, held: String| {
        let us = |ns: f64, decimals| cell(ns / 1e3, decimals);
        let [mean, p50] = [times.mean, times.p50].map(|ns| us(ns, 2));
        let [p99, p999] = [times.p99, times.p999].map(|ns| us(ns, 1));
        table.row([name.to_owned(), kind.to_owned(), mean, p50, p99, p999, held]);
    };
    for system in &results.systems {
        let (held, bound) = (system.held_bytes_max as f64, system.bound_bytes as f64);
        let held = format!("{} ({})", mib(held), mib(bound));
        row(&system.name, "read", &system.read, held);
        row("", "write", &system.write, String::new());
    }
    let mut out = format!(
        "{} data, {} resident, {} reads then {} writes of random pages, medians of {} runs, times \
         in us\n{} (THP off in the workers)\n\n{table}",
        mib(plan.bytes as f64),
        mib(plan.resident as f64),
        plan.accesses,
        plan.accesses,
        plan.runs,
        results.machine
    );
    for (system, over) in &results.over {
        let of = |name, decimals| cell(over[name], decimals);
        out += &format!(
            "\n{} over `{}`: reads mean {}, p99 {}; writes mean {}, p99 {} (below 1 is better)\n",
            system,
            results.peer,
            of("read_mean", 2),
            of("read_p99", 3),
            of("write_mean", 2),
            of("write_p99", 3)
        );
    }
    out
}
