//! Runs the systems in turns, so that a machine whose speed drifts drifts for all of them.
use std::io::{Error, IsTerminal, Result, Write};
use std::process::Command;

use serde::Serialize;

use super::device::{self, DeviceFile};
use super::floor;
use super::graph::Prepared;
use super::pattern::Pattern;
use super::peer::KernelSwap;
use super::worker::{Findings, Home, Task};
use super::{DeliveryChoice, PeerChoice, Plan, plot, report};
use crate::governed::find_command;
use crate::machine::Machine;
use crate::{launch, undo};

/// Swap read-ahead settings the peer is tried with; the better one counts.
const PAGE_CLUSTERS: [u32; 2] = [0, 3];

/// One run, or the median of several, in the units people and the table use.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Figures {
    pub system: String,
    pub pattern: Pattern,
    /// Percent.
    pub writes: u32,
    pub threads: usize,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Accesses by the timed part's length; on a graph, vertices.
    pub pages_per_s: f64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub resident_max_bytes: f64,
    pub store_bytes: f64,
    pub store_writes: f64,
    pub prefetch_coverage: Option<f64>,
    pub prefetch_accuracy: Option<f64>,
    /// Faults by the pager's or the kernel's count (major ones), and the accesses slower than 1 us.
    pub faults: f64,
    pub fault_mean_us: f64,
    pub fault_p50_us: f64,
    pub fault_p99_us: f64,
}

impl Figures {
    fn of(system: &str, plan: &Plan, findings: &Findings) -> Figures {
        let (all, slow) = (&findings.all, &findings.slow);
        Figures {
            system: system.to_owned(),
            pattern: plan.pattern,
            writes: plan.writes,
            threads: plan.threads,
            mean_us: all.mean / 1e3,
            p50_us: all.p50 / 1e3,
            p90_us: all.p90 / 1e3,
            p99_us: all.p99 / 1e3,
            p999_us: all.p999 / 1e3,
            max_us: all.max / 1e3,
            pages_per_s: all.count as f64 / findings.seconds,
            seconds: findings.seconds,
            cpu_seconds: findings.cpu_seconds,
            resident_max_bytes: findings.resident_max_bytes as f64,
            store_bytes: findings.store_bytes as f64,
            store_writes: findings.store_writes as f64,
            prefetch_coverage: findings.prefetch_coverage,
            prefetch_accuracy: findings.prefetch_accuracy,
            faults: findings.faults as f64,
            fault_mean_us: slow.mean / 1e3,
            fault_p50_us: slow.p50 / 1e3,
            fault_p99_us: slow.p99 / 1e3,
        }
    }

    fn median(runs: &[Figures]) -> Figures {
        let median = |of: &dyn Fn(&Figures) -> f64| {
            crate::track::median(&runs.iter().map(of).collect::<Vec<f64>>())
        };
        let maybe = |of: &dyn Fn(&Figures) -> Option<f64>| {
            runs.iter()
                .all(|run| of(run).is_some())
                .then(|| median(&|run| of(run).unwrap_or(0.0)))
        };
        Figures {
            mean_us: median(&|r| r.mean_us),
            p50_us: median(&|r| r.p50_us),
            p90_us: median(&|r| r.p90_us),
            p99_us: median(&|r| r.p99_us),
            p999_us: median(&|r| r.p999_us),
            max_us: median(&|r| r.max_us),
            pages_per_s: median(&|r| r.pages_per_s),
            seconds: median(&|r| r.seconds),
            cpu_seconds: median(&|r| r.cpu_seconds),
            // Bounds are not averaged.
            resident_max_bytes: runs.iter().fold(0.0, |m, r| r.resident_max_bytes.max(m)),
            store_bytes: median(&|r| r.store_bytes),
            store_writes: median(&|r| r.store_writes),
            prefetch_coverage: maybe(&|r| r.prefetch_coverage),
            prefetch_accuracy: maybe(&|r| r.prefetch_accuracy),
            faults: median(&|r| r.faults),
            fault_mean_us: median(&|r| r.fault_mean_us),
            fault_p50_us: median(&|r| r.fault_p50_us),
            fault_p99_us: median(&|r| r.fault_p99_us),
            ..runs[0].clone()
        }
    }
}

/// One system, all its runs.
#[derive(Debug, Clone)]
pub struct System {
    /// Its name.
    pub name: String,
    /// Each run.
    pub runs: Vec<Figures>,
    findings: Vec<Findings>,
}

impl System {
    fn new(name: String) -> System {
        System {
            name,
            runs: Vec::new(),
            findings: Vec::new(),
        }
    }

    fn add(&mut self, plan: &Plan, findings: Findings) {
        let figures = Figures::of(&self.name, plan, &findings);
        if std::io::stderr().is_terminal() {
            eprintln!(
                "{:<18} run {}: mean {:.2} us, p99 {:.1} us, {:.0} pages/s",
                self.name,
                self.runs.len() + 1,
                figures.mean_us,
                figures.p99_us,
                figures.pages_per_s
            );
        }
        self.runs.push(figures);
        self.findings.push(findings);
    }

    /// Medians.
    pub fn median(&self) -> Figures {
        Figures::median(&self.runs)
    }

    /// Of all runs together: upper bounds in ns and counts.
    pub fn distribution(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = self
            .findings
            .iter()
            .flat_map(|findings| findings.distribution.iter().copied())
            .collect();
        all.sort_unstable();
        all
    }
}

/// Pagetide's medians over the peer's.
#[derive(Debug, Clone, Copy, Serialize)]
#[allow(missing_docs)]
pub struct Ratio {
    pub mean: f64,
    pub p99: f64,
    pub pages_per_s: f64,
    /// Of the timed part.
    pub time: f64,
    pub fault_mean: f64,
}

/// What a fault takes beyond a read of the bare device.
#[derive(Debug, Clone, Copy, Serialize)]
#[allow(missing_docs)]
pub struct Added {
    pub mean_us: f64,
    pub p50_us: f64,
}

/// What came out.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Results {
    pub machine: Machine,
    pub size_bytes: u64,
    pub resident_bytes: u64,
    pub accesses: u64,
    pub compressibility: f64,
    pub store: String,
    /// What the peer's group may hold beyond the bound, for the worker's own memory and its page
    /// tables.
    pub peer_allowance_bytes: Option<u64>,
    pub cgroup_version: Option<u32>,
    /// Huge pages were off in every worker.
    pub thp_disabled: bool,
    /// Every run.
    pub runs: Vec<Figures>,
    /// Of each system, the peer's settings first.
    pub medians: Vec<Figures>,
    /// The peer that counts.
    pub peer: Option<String>,
    /// Pagetide over that peer.
    pub ratio: Option<Ratio>,
    /// Where the peer is the bare device: what a fault takes beyond it.
    pub added: Option<Added>,
    /// The least a fault by signal can take, in the mean over that peer: without contents, and with
    /// the store's read.
    pub floor: Option<[f64; 2]>,
    /// Of a graph: vertices, edges, and that every run gave the answer of the run in unbounded
    /// memory.
    pub graph: Option<super::graph::Shape>,
}

fn task(plan: &Plan, resident: u64, graph: Option<&Prepared>) -> Task {
    let pages = plan.size / 4096;
    let accesses = plan.accesses.unwrap_or(pages);
    Task {
        bytes: (pages * 4096) as usize,
        resident,
        pattern: plan.pattern,
        writes: plan.writes,
        threads: plan.threads,
        accesses,
        // A scan must have been over everything once, or the pages it writes back are those that
        // were filled.
        warmup: accesses.max(if plan.pattern == Pattern::Random {
            0
        } else {
            pages
        }),
        seed: plan.seed,
        compressibility: plan.compressibility,
        home: Home::Plain,
        store: plan.store.clone(),
        policy: plan.policy,
        cgroup: None,
        swap: None,
        graph: graph.map(Prepared::path),
    }
}

impl Plan {
    /// Whether the bare handler can serve what is asked for.
    fn can_have_floor(&self) -> bool {
        self.writes == 0
            && self.threads == 1
            && self.delivery == DeliveryChoice::Signal
            && self.pattern != Pattern::Graph
    }
}

/// Pagetide's run of `task`.
fn pagetide(plan: &Plan, task: &Task) -> Result<Findings> {
    let home = match plan.delivery {
        DeliveryChoice::Signal => Home::Signal,
        DeliveryChoice::Thread => Home::Thread,
        DeliveryChoice::Run => Home::Plain,
    };
    let words = Task {
        home,
        ..task.clone()
    }
    .to_words();
    let this = std::env::current_exe()?;
    if plan.delivery != DeliveryChoice::Run {
        return launch::findings_of(Command::new(this).args(words));
    }
    let mut command = Command::new(find_command(plan.pagetide.as_deref())?);
    command
        .args(["run", "--quiet", "--resident", &task.resident.to_string()])
        .args(["--policy", plan.policy.name()])
        .args(["--store", &plan.store, "--"])
        .arg(this)
        .args(words);
    launch::findings_of(&mut command)
}

/// Does what the plan says and prints it. The machine is left changed: call [`undo::all`]
/// afterwards, whatever came out.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let results = compare(plan)?;
    let text = match plan.json {
        true => serde_json::to_string(&results.0)? + "\n",
        false => report::table(&results.0),
    };
    if let Some(path) = &plan.plot {
        std::fs::write(path, plot::draw(&results.0, &results.1))?;
    }
    std::io::stdout().write_all(text.as_bytes())
}

fn compare(plan: &Plan) -> Result<(Results, Vec<System>)> {
    if plan.size / 4096 < 64 * plan.threads as u64 {
        return Err(Error::other(format!(
            "--size {} is less than 64 pages a thread: there is nothing to measure",
            plan.size
        )));
    }
    if plan.floor && !plan.can_have_floor() {
        return Err(Error::other(
            "--floor is of random or other reads by one thread, by signal; expected --writes 0, \
             --threads 1, --delivery signal and another --pattern than graph",
        ));
    }
    let resident = plan.resident.of(plan.size);
    let machine = Machine::here();
    let kernel = match plan.peer {
        PeerChoice::Zram | PeerChoice::Swapfile => Some(KernelSwap::start(
            plan.peer,
            plan.swap_dir.as_deref(),
            &task(plan, resident, None),
            resident,
        )?),
        PeerChoice::Plain | PeerChoice::Device | PeerChoice::None => None,
    };
    let device = match plan.peer {
        PeerChoice::Device if plan.pattern == Pattern::Graph => {
            return Err(Error::other(
                "--peer device: a graph is not read page by page; expected another --pattern",
            ));
        }
        PeerChoice::Device => Some(DeviceFile::new(&plan.store, plan.size, plan.seed)?),
        _ => None,
    };
    let graph = match plan.pattern {
        Pattern::Graph => Some(Prepared::new(plan.size, plan.seed, plan.threads)?),
        _ => None,
    };
    let task = task(plan, resident, graph.as_ref());
    let mut systems: Vec<System> = match plan.peer {
        PeerChoice::Zram => PAGE_CLUSTERS
            .map(|cluster| System::new(format!("zram, cluster {cluster}")))
            .into(),
        PeerChoice::Swapfile => PAGE_CLUSTERS
            .map(|cluster| System::new(format!("swap file, cluster {cluster}")))
            .into(),
        PeerChoice::Plain => vec![System::new("plain memory".to_owned())],
        PeerChoice::Device => vec![System::new(device::NAME.to_owned())],
        PeerChoice::None => vec![],
    };
    let peers = systems.len();
    let name = match plan.delivery {
        DeliveryChoice::Signal => "Region, signal",
        DeliveryChoice::Thread => "Region, thread",
        DeliveryChoice::Run => "pagetide run",
    };
    systems.push(System::new(name.to_owned()));
    if plan.floor {
        systems.extend([floor::BARE, floor::STORE].map(|name| System::new(name.to_owned())));
    }
    for turn in 0..plan.runs {
        // The same seed within a turn: every system sees the same accesses and must end with the
        // same bytes.
        let task = Task {
            seed: plan.seed + u64::from(turn),
            ..task.clone()
        };
        for (index, system) in systems.iter_mut().enumerate() {
            let findings = match &kernel {
                _ if index == peers => pagetide(plan, &task)?,
                _ if index > peers => {
                    let homes = [Home::Floor, Home::FloorStore];
                    let home = homes[index - peers - 1];
                    let words = Task {
                        home,
                        ..task.clone()
                    }
                    .to_words();
                    launch::findings_of(Command::new(std::env::current_exe()?).args(words))?
                }
                Some(kernel) => kernel.run(&task, PAGE_CLUSTERS[index])?,
                None => {
                    let task = match &device {
                        Some(file) => Task {
                            home: Home::Device,
                            graph: Some(file.path().to_owned()),
                            ..task.clone()
                        },
                        None => task.clone(),
                    };
                    launch::findings_of(
                        Command::new(std::env::current_exe()?).args(task.to_words()),
                    )?
                }
            };
            system.add(plan, findings);
        }
    }
    check(&systems, graph.as_ref())?;
    let medians: Vec<Figures> = systems.iter().map(System::median).collect();
    let (pagetide, peer_medians) = (&medians[peers], &medians[..peers]);
    let best = peer_medians.iter().min_by(|a, b| {
        let time = |f: &Figures| match plan.pattern {
            Pattern::Graph => f.seconds,
            _ => f.mean_us,
        };
        time(a).total_cmp(&time(b))
    });
    let ratio = best.map(|peer| Ratio {
        mean: pagetide.mean_us / peer.mean_us,
        p99: pagetide.p99_us / peer.p99_us,
        pages_per_s: pagetide.pages_per_s / peer.pages_per_s,
        time: pagetide.seconds / peer.seconds,
        fault_mean: pagetide.fault_mean_us / peer.fault_mean_us,
    });
    let added = best.filter(|_| device.is_some()).map(|alone| Added {
        mean_us: pagetide.fault_mean_us - alone.mean_us,
        p50_us: pagetide.fault_p50_us - alone.p50_us,
    });
    let results = Results {
        machine,
        size_bytes: task.bytes as u64,
        resident_bytes: resident,
        accesses: task.accesses,
        compressibility: plan.compressibility,
        store: plan.store.clone(),
        peer_allowance_bytes: kernel.as_ref().map(|kernel| kernel.allowance_bytes),
        cgroup_version: kernel.as_ref().map(KernelSwap::cgroup_version),
        thp_disabled: systems
            .iter()
            .all(|s| s.findings.iter().all(|f| f.thp_disabled)),
        runs: (0..plan.runs as usize)
            .flat_map(|turn| systems.iter().map(move |system| system.runs[turn].clone()))
            .collect(),
        peer: best.map(|peer| peer.system.clone()),
        ratio,
        added,
        floor: best
            .filter(|_| plan.floor)
            .map(|peer| [1, 2].map(|floor| medians[peers + floor].mean_us / peer.mean_us)),
        medians,
        graph: graph.map(|graph| graph.shape),
    };
    Ok((results, systems))
}

/// Every system must have ended each turn with the same bytes, or with the answer of the run in
/// unbounded memory.
fn check(systems: &[System], graph: Option<&Prepared>) -> Result<()> {
    // The device and the bare handler hold nothing that could be lost.
    let systems: Vec<&System> = systems
        .iter()
        .filter(|system| ![device::NAME, floor::BARE].contains(&&*system.name))
        .collect();
    for system in &systems {
        for (turn, (run, first)) in system.findings.iter().zip(&systems[0].findings).enumerate() {
            let same = match graph {
                Some(graph) => run.answer.as_ref() == Some(&graph.answer),
                None => run.checksum.is_some() && run.checksum == first.checksum,
            };
            if !same {
                return Err(Error::other(format!(
                    "{} ended turn {turn} with {:?} {:?}, which is not what the others have: data \
                     was lost",
                    system.name, run.checksum, run.answer
                )));
            }
        }
    }
    Ok(())
}
