//! Runs the systems in turns, so that a machine whose speed drifts drifts for all of them.
use std::io::{Error, Result};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::governed::{PagetideRun, find_command};
use crate::launch;
use crate::machine::Machine;
use crate::peer::KernelSwap;
use crate::undo;
use crate::worker::{Findings, Parameters, Times};

/// Swap read-ahead settings the peer is tried with; the better one counts.
const PAGE_CLUSTERS: [u32; 2] = [0, 3];

/// What to compare.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub parameters: Parameters,
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
#[derive(Debug, Clone, Serialize)]
pub struct System {
    /// Its name in the table.
    pub name: String,
    /// What it was told to hold, in bytes.
    pub bound_bytes: u64,
    /// The most it held, as counted from outside, over all runs.
    pub held_bytes_max: u64,
    /// Each run, in order.
    pub runs: Vec<Findings>,
    /// Medians over the runs.
    pub read: Times,
    #[allow(missing_docs)]
    pub write: Times,
}

impl System {
    fn new(name: String, bound_bytes: u64) -> System {
        System {
            name,
            bound_bytes,
            held_bytes_max: 0,
            runs: Vec::new(),
            read: Times::default(),
            write: Times::default(),
        }
    }

    fn add(&mut self, findings: Findings, held: u64) {
        let [read, write] =
            [&findings.read, &findings.write].map(|times| (times.mean / 1e3, times.p99 / 1e3));
        eprintln!(
            "{:<16} run {}: read mean {:.1} us, p99 {:.1}; write mean {:.1}, p99 {:.1}",
            self.name,
            self.runs.len() + 1,
            read.0,
            read.1,
            write.0,
            write.1
        );
        self.runs.push(findings);
        self.held_bytes_max = self.held_bytes_max.max(held);
        self.read = medians(self.runs.iter().map(|run| run.read));
        self.write = medians(self.runs.iter().map(|run| run.write));
    }

    /// Mean over reads and writes together: what decides which of two settings is the better one.
    pub fn mean(&self) -> f64 {
        (self.read.mean + self.write.mean) / 2.0
    }
}

fn medians(runs: impl Iterator<Item = Times> + Clone) -> Times {
    let median = |of: fn(&Times) -> f64| {
        let mut values: Vec<f64> = runs.clone().map(|times| of(&times)).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        }
    };
    Times {
        mean: median(|t| t.mean),
        p50: median(|t| t.p50),
        p99: median(|t| t.p99),
        p999: median(|t| t.p999),
        max: median(|t| t.max),
    }
}

/// What came out.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Where.
    pub machine: Machine,
    /// Bytes of data, resident bound, accesses of each kind, warm-up reads, seed.
    pub data_bytes: u64,
    #[allow(missing_docs)]
    pub resident_bytes: u64,
    #[allow(missing_docs)]
    pub accesses: u64,
    #[allow(missing_docs)]
    pub warmup: u64,
    #[allow(missing_docs)]
    pub seed: u64,
    /// What the peer's group may hold beyond the bound, for the worker's own memory and its page
    /// tables.
    pub peer_allowance_bytes: u64,
    /// Version of the peer's memory cgroup.
    pub cgroup_version: u32,
    /// Of the peers, the better: the one that counts.
    pub peer: String,
    /// Every system, the peer's settings first.
    pub systems: Vec<System>,
    /// Pagetide's systems over the peer that counts; below 1 is better.
    pub ratios: Vec<Ratios>,
}

/// Pagetide's medians over the peer's.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Ratios {
    pub system: String,
    pub read_mean: f64,
    pub read_p99: f64,
    pub write_mean: f64,
    pub write_p99: f64,
}

impl Ratios {
    fn of(system: &System, peer: &System) -> Ratios {
        Ratios {
            system: system.name.clone(),
            read_mean: system.read.mean / peer.read.mean,
            read_p99: system.read.p99 / peer.read.p99,
            write_mean: system.write.mean / peer.write.mean,
            write_p99: system.write.p99 / peer.write.p99,
        }
    }
}

/// Runs everything in turns. The machine is left changed: call [`undo::all`] afterwards, whatever
/// came out.
pub fn compare(plan: &Plan) -> Result<Results> {
    if plan.runs == 0 || plan.parameters.accesses == 0 {
        return Err(Error::other(
            "there is nothing to measure: --runs and --accesses must be at least 1",
        ));
    }
    let pagetide = if plan.peer_only {
        None
    } else {
        Some(PagetideRun::new(
            find_command(plan.pagetide.as_deref())?,
            plan.resident,
            plan.store.clone(),
        ))
    };
    undo::arm()?;
    let machine = Machine::here();
    let kernel = KernelSwap::start(&plan.parameters, plan.resident)?;
    eprintln!(
        "kernel swap on zram (lz4), cgroup v{}: {} bytes and {} for the worker itself",
        kernel.cgroup_version(),
        plan.resident,
        kernel.allowance_bytes
    );
    let mut peers = PAGE_CLUSTERS.map(|cluster| {
        System::new(
            format!("zram, cluster {cluster}"),
            plan.resident + kernel.allowance_bytes,
        )
    });
    let mut governed = System::new("pagetide run".to_owned(), plan.resident);
    let mut regions = [("Region, thread", false), ("Region, signal", true)]
        .map(|(name, signal)| (System::new(name.to_owned(), plan.resident), signal));
    for turn in 0..plan.runs {
        // The same seed within a turn: every system sees the same accesses and must end with the
        // same bytes.
        let parameters = Parameters {
            seed: plan.parameters.seed + turn as u64,
            cgroup: None,
            ..plan.parameters.clone()
        };
        for (peer, cluster) in peers.iter_mut().zip(PAGE_CLUSTERS) {
            let run = kernel.run(&parameters, cluster)?;
            peer.add(run.findings, run.group_peak_bytes);
        }
        if let Some(pagetide) = &pagetide {
            let (findings, statistics) = pagetide.run(&parameters)?;
            governed.add(
                findings,
                statistics["resident_bytes_max"].as_u64().unwrap_or(0),
            );
            for (region, signal) in &mut regions {
                let findings = launch::region(&Parameters {
                    region: Some(plan.resident),
                    region_signal: *signal,
                    region_store: plan.store.clone().unwrap_or("ram:".into()),
                    ..parameters.clone()
                })?;
                let held = findings.region_bytes_max.unwrap_or(0);
                region.add(findings, held);
            }
        }
    }
    let peer = if peers[0].mean() <= peers[1].mean() {
        peers[0].clone()
    } else {
        peers[1].clone()
    };
    let mut systems = Vec::from(peers);
    let mut ratios = Vec::new();
    if pagetide.is_some() {
        systems.push(governed);
        systems.extend(regions.map(|(region, _)| region));
        ratios.extend(systems[2..].iter().map(|system| Ratios::of(system, &peer)));
    }
    check_agreement(&systems)?;
    Ok(Results {
        machine,
        data_bytes: plan.parameters.bytes as u64,
        resident_bytes: plan.resident,
        accesses: plan.parameters.accesses,
        warmup: plan.parameters.warmup,
        seed: plan.parameters.seed,
        peer_allowance_bytes: kernel.allowance_bytes,
        cgroup_version: kernel.cgroup_version(),
        peer: peer.name,
        systems,
        ratios,
    })
}

/// Every system must have ended each turn with the same bytes.
fn check_agreement(systems: &[System]) -> Result<()> {
    for system in systems {
        for (turn, (run, first)) in system.runs.iter().zip(&systems[0].runs).enumerate() {
            if run.checksum != first.checksum {
                let sums = format!(
                    "{} ended turn {turn} with checksum {}",
                    system.name, run.checksum
                );
                return Err(Error::other(format!(
                    "{sums}, {} with {}: one of them lost data",
                    systems[0].name, first.checksum
                )));
            }
        }
    }
    Ok(())
}
