//! A long run under changing budgets: a verifying program under `pagetide run`, `pagetide limit`
//! from outside, at random.
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use clap::Args;

use crate::content::Random;
use crate::launch::find_command;
use crate::{sysfs, undo};

/// What to soak, and for how long.
#[derive(Debug, Clone, Args)]
pub struct Soak {
    /// Seconds to run.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// MiB the program works on.
    #[arg(long, default_value_t = 192)]
    pub mib: u64,
    /// Decides the budgets and their moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The verifying program: called with MIB and SECONDS, exits 0 if every word was right. `make
    /// soak` compiles the project's own and names it.
    #[arg(long)]
    pub program: PathBuf,
    /// The pagetide command; default: the one beside this executable.
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
    /// The store to evict to.
    #[arg(long)]
    pub store: Option<String>,
}

/// Descendants of `root`, itself excluded, that have the agent in them.
fn governed_processes(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.push((pid, parent.unwrap_or(0)));
    }
    let mut members = vec![root];
    let mut at = 0;
    while at < members.len() {
        let parent = members[at];
        members.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    members.retain(|pid| *pid != root && has_agent(*pid));
    members
}

/// Whether the process lives, a zombie does not, and holds the agent.
fn has_agent(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("libpagetide_preload")
}

/// A budget of one page, a few pages, or anything up to twice the program's memory.
fn random_budget(random: &mut Random, mib: u64) -> u64 {
    match random.below(8) {
        0 => 4096,
        1 => 4096 * (1 + random.below(64)),
        2 => mib << 21,
        _ => (1 + random.below(mib)) << 20,
    }
}

/// Asks for a new budget. A child just forked has the agent before it has a control socket: it is
/// given a second for that.
fn change_limit(pagetide: &Path, pid: u32, budget: u64) -> Result<Output> {
    for _ in 0..5 {
        let output = Command::new(pagetide)
            .args(["limit", &pid.to_string(), &budget.to_string()])
            .output()?;
        if output.status.success() || !has_agent(pid) {
            return Ok(output);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Command::new(pagetide)
        .args(["limit", &pid.to_string(), &budget.to_string()])
        .output()
}

/// Soaks; an error says what went wrong and with which seed.
pub fn soak(plan: &Soak) -> Result<()> {
    let pagetide = find_command(plan.pagetide.as_deref())?;
    undo::arm()?;
    let mut command = Command::new(&pagetide);
    command.args(["run", "--resident", "16M"]);
    command.args(plan.store.iter().flat_map(|uri| ["--store", uri]));
    command
        .arg("--")
        .arg(&plan.program)
        .args([plan.mib.to_string(), plan.seconds.to_string()]);
    let mut child = undo::spawn(&mut command)?;
    let mut random = Random::new(plan.seed);
    let (mut changes, mut refusals) = (0u64, 0u64);
    let deadline = Instant::now() + Duration::from_secs(plan.seconds * 3 + 120);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            return Err(Error::other(format!(
                "the program hangs: it should have ended long ago (seed {})",
                plan.seed
            )));
        }
        std::thread::sleep(Duration::from_millis(20 + random.below(700)));
        let processes = governed_processes(child.id());
        if processes.is_empty() {
            continue;
        }
        let pid = processes[random.below(processes.len() as u64) as usize];
        let budget = random_budget(&mut random, plan.mib);
        let limit = change_limit(&pagetide, pid, budget)?;
        changes += 1;
        if !limit.status.success() && has_agent(pid) {
            refusals += 1;
            eprintln!(
                "pagetide limit {pid} {budget}: {}",
                String::from_utf8_lossy(&limit.stderr).trim()
            );
        } else if limit.status.success() {
            let resident = sysfs::status_bytes(pid, "RssAnon").unwrap_or(0);
            let promised = budget + (32 << 20) + (plan.mib << 20) / 50;
            if resident > promised {
                let held = format!(
                    "process {pid} holds {resident} bytes right after its limit became {budget}"
                );
                return Err(Error::other(format!(
                    "{held}: more than {promised} (seed {})",
                    plan.seed
                )));
            }
        }
    };
    undo::forget_process();
    println!("{changes} budget changes, {refusals} refused; the program ended with {status}");
    if !status.success() || refusals > 0 {
        return Err(Error::other(format!(
            "the soak failed (seed {})",
            plan.seed
        )));
    }
    Ok(())
}
