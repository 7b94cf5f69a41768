//! Which systems a plan compares.
use std::io::{Error, Result};
use std::rc::Rc;

use super::device::{self, DeviceFile};
use super::figures::{Figures, Results};
use super::floor;
use super::graph::Prepared;
use super::kernel_swap::KernelSwap;
use super::pattern::Pattern;
use super::plan::{DeliveryChoice, PeerChoice, Plan};
use super::report;
use super::systems::{Swap, Systems, Worker, check_agreement};
use super::task::{Home, Phase, Task};
use crate::launch::find_command;
use crate::report::{print, progress, save};
use crate::runner::in_turns;
use crate::undo;

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
        ..Results::of(plan, &task, &measured, peers)
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
