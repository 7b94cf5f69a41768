//! Which systems a plan compares, and what came out.
use std::io::{Error, Result};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::device::{self, DeviceFile};
use super::floor;
use super::graph::Prepared;
use super::kernel_swap::KernelSwap;
use super::pattern::Pattern;
use super::plan::{DeliveryChoice, PeerChoice, Plan};
use super::report;
use super::shape::Shape;
use super::systems::{Swap, Systems, Worker, check_agreement};
use super::task::{Findings, Home, Phase, Task};
use crate::launch::find_command;
use crate::machine::Machine;
use crate::report::{print, progress, save};
use crate::runner::{Measured, in_turns};
use crate::statistics::{Ratios, medians, ratios};
use crate::undo;

/// One run, or the median of several, in the units people and the table use.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
        Figures {
            // Bounds are not averaged.
            resident_max_bytes: runs.iter().fold(0.0, |m, r| r.resident_max_bytes.max(m)),
            ..medians(runs)
        }
    }
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
    pub ratio: Option<Ratios>,
    /// Where the peer is the bare device: what a fault takes beyond it.
    pub added: Option<Added>,
    /// The least a fault by signal can take, in the mean over that peer: without contents, and with
    /// the store's read.
    pub floor: Option<[f64; 2]>,
    /// Of a graph: vertices, edges, and that every run gave the answer of the run in unbounded
    /// memory.
    pub graph: Option<Shape>,
}

const RATIO: [(&str, &str); 5] = [
    ("mean", "/mean_us"),
    ("p99", "/p99_us"),
    ("pages_per_s", "/pages_per_s"),
    ("time", "/seconds"),
    ("fault_mean", "/fault_mean_us"),
];

/// Does what the plan says and prints it. The machine is left changed: call [`undo::all`]
/// afterwards, whatever came out.
pub fn run(plan: &Plan) -> Result<()> {
    check_plan(plan)?;
    undo::arm()?;
    let graph = match plan.pattern {
        Pattern::Graph => Some(Prepared::new(plan.size as u64, plan.seed, plan.threads)?),
        _ => None,
    };
    let task = task(plan, graph.as_ref());
    let peer = Peer::start(plan, &task)?;
    let mut systems = peer.systems();
    let peers = systems.len();
    systems.push(pagetide(plan)?);
    if plan.floor {
        systems.push(Worker::at(floor::BARE, Home::Floor));
        systems.push(Worker::at(floor::STORE, Home::FloorStore));
    }
    let work = |turn| Task {
        seed: plan.seed + turn as u64,
        ..task.clone()
    };
    let measured = in_turns(systems, plan.runs, work, |name, turn, findings| {
        let findings = findings?;
        let f = Figures::of(name, plan, &findings);
        progress(&format!(
            "{name:<18} run {}: mean {:.2} us, p99 {:.1} us, {:.0} pages/s\n",
            turn + 1,
            f.mean_us,
            f.p99_us,
            f.pages_per_s
        ));
        Ok(Some(findings))
    })?;
    check_agreement(&measured, graph.as_ref().map(|graph| &graph.answer))?;
    let results = Results {
        peer_allowance_bytes: peer.kernel().map(|kernel| kernel.allowance_bytes),
        cgroup_version: peer.kernel().map(KernelSwap::cgroup_version),
        graph: graph.map(|graph| graph.shape),
        ..results(plan, &task, &measured, peers)
    };
    if let Some(path) = &plan.plot {
        save(path, &report::draw(&results, &measured, peers))?;
    }
    print(plan.json, &results, report::text)
}

fn check_plan(plan: &Plan) -> Result<()> {
    if plan.size / 4096 < 64 * plan.threads {
        return Err(Error::other(format!(
            "--size {} is less than 64 pages a thread: there is nothing to measure",
            plan.size
        )));
    }
    let is_graph = plan.pattern == Pattern::Graph;
    let by_signal = plan.delivery == DeliveryChoice::Signal;
    if plan.floor && (plan.writes > 0 || plan.threads > 1 || !by_signal || is_graph) {
        return Err(Error::other(
            "--floor is of random or other reads by one thread, by signal; expected --writes 0, \
             --threads 1, --delivery signal and another --pattern than graph",
        ));
    }
    if plan.peer == PeerChoice::Device && is_graph {
        return Err(Error::other(
            "--peer device: a graph is not read page by page; expected another --pattern",
        ));
    }
    Ok(())
}

fn task(plan: &Plan, graph: Option<&Prepared>) -> Task {
    let pages = (plan.size / 4096) as u64;
    let accesses = plan.accesses.unwrap_or(pages);
    let writes = plan.writes;
    Task {
        pattern: plan.pattern,
        threads: plan.threads,
        phases: vec![Phase { accesses, writes }],
        // A scan must have been over everything once, or the pages it writes back are those that
        // were filled.
        warmup: match plan.pattern {
            Pattern::Random => accesses,
            _ => accesses.max(pages),
        },
        compressibility: plan.compressibility,
        store: plan.store.clone(),
        policy: plan.policy.name().to_owned(),
        file: graph.map(Prepared::path),
        ..Task::random_reads(plan.size as u64, plan.resident.of(plan.size), accesses)
    }
}

/// What is measured beside, as long as it is needed.
enum Peer {
    Swap(Rc<KernelSwap>, &'static str),
    Plain,
    Device(DeviceFile),
    None,
}

impl Peer {
    fn start(plan: &Plan, task: &Task) -> Result<Peer> {
        let swap = |directory| KernelSwap::start(directory, task).map(Rc::new);
        Ok(match plan.peer {
            PeerChoice::Zram => Peer::Swap(swap(None)?, "zram"),
            PeerChoice::Swapfile => {
                let directory = plan.swap_dir.clone().unwrap_or_else(std::env::temp_dir);
                Peer::Swap(swap(Some(&*directory))?, "swap file")
            }
            PeerChoice::Plain => Peer::Plain,
            PeerChoice::Device => {
                Peer::Device(DeviceFile::new(&plan.store, plan.size as u64, plan.seed)?)
            }
            PeerChoice::None => Peer::None,
        })
    }

    fn systems(&self) -> Systems<'static> {
        match self {
            Peer::Swap(kernel, name) => Swap::settings(kernel, name),
            Peer::Plain => vec![Worker::at("plain memory", Home::Plain)],
            Peer::Device(file) => {
                let path = file.path().to_owned();
                vec![Worker::new(device::NAME, move |task| Task {
                    home: Home::Device,
                    file: Some(path.clone()),
                    ..task
                })]
            }
            Peer::None => vec![],
        }
    }

    fn kernel(&self) -> Option<&KernelSwap> {
        match self {
            Peer::Swap(kernel, _) => Some(kernel),
            _ => None,
        }
    }
}

fn pagetide(plan: &Plan) -> Result<Box<Worker>> {
    Ok(match plan.delivery {
        DeliveryChoice::Signal => Worker::at("Region, signal", Home::Signal),
        DeliveryChoice::Thread => Worker::at("Region, thread", Home::Thread),
        DeliveryChoice::Run => {
            let command = find_command(plan.pagetide.as_deref())?;
            Worker::under_run("pagetide run", command, |task| task)
        }
    })
}

/// The first `peers` systems are the peer's, then comes Pagetide, then the floors.
fn results(plan: &Plan, task: &Task, all: &[Measured<Findings>], peers: usize) -> Results {
    let figures = |system: &Measured<Findings>| -> Vec<Figures> {
        let of = |run| Figures::of(&system.name, plan, run);
        system.runs.iter().map(of).collect()
    };
    let runs: Vec<Vec<Figures>> = all.iter().map(figures).collect();
    let medians: Vec<Figures> = runs.iter().map(|runs| Figures::median(runs)).collect();
    let time = |f: &Figures| match plan.pattern {
        Pattern::Graph => f.seconds,
        _ => f.mean_us,
    };
    let pagetide = &medians[peers];
    let best = medians[..peers]
        .iter()
        .min_by(|a, b| time(a).total_cmp(&time(b)));
    let has_device = plan.peer == PeerChoice::Device;
    let runs_of = |turn: usize| runs.iter().map(move |runs| runs[turn].clone());
    Results {
        machine: Machine::here(),
        size_bytes: task.bytes as u64,
        resident_bytes: task.resident,
        accesses: task.phases[0].accesses,
        compressibility: plan.compressibility,
        store: plan.store.clone(),
        peer_allowance_bytes: None,
        cgroup_version: None,
        thp_disabled: all
            .iter()
            .all(|s| s.runs.iter().all(|run| run.thp_disabled)),
        runs: (0..plan.runs).flat_map(runs_of).collect(),
        peer: best.map(|peer| peer.system.clone()),
        ratio: best.map(|peer| ratios(pagetide, peer, &RATIO)),
        added: best.filter(|_| has_device).map(|alone| Added {
            mean_us: pagetide.fault_mean_us - alone.mean_us,
            p50_us: pagetide.fault_p50_us - alone.p50_us,
        }),
        floor: best
            .filter(|_| plan.floor)
            .map(|peer| [1, 2].map(|floor| medians[peers + floor].mean_us / peer.mean_us)),
        medians,
        graph: None,
    }
}
