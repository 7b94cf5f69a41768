//! What came out of a comparison, in the units people and the table use.
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::plan::{PeerChoice, Plan};
use super::shape::Shape;
use super::task::{Findings, Task};
use crate::machine::Machine;
use crate::runner::Measured;
use crate::statistics::{Ratios, medians, ratios};

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
    /// Of one run.
    pub fn of(system: &str, plan: &Plan, findings: &Findings) -> Figures {
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

impl Results {
    /// The first `peers` systems are the peer's, then comes Pagetide, then the floors.
    pub fn of(plan: &Plan, task: &Task, all: &[Measured<Findings>], peers: usize) -> Results {
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
}
