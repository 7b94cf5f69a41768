//! The environments a program runs in: alone, under `pagetide run`, under the kernel's swap.
use std::ffi::OsString;
use std::io::{Error, Result};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use pagetide_pager::report::Statistics;

use super::expectation::Need;
use super::findings::{Failure, Findings};
use super::inputs::Ready;
use super::kernel_swap::KernelSwap;
use super::process::{self, Ended, Order};
use super::relief::Room;
use super::watch::Seen;
use crate::runner::System;

/// An environment.
pub struct Environment {
    name: String,
    home: Home,
    limit: Duration,
}

/// What bounds the program.
pub enum Home {
    /// Nothing.
    Alone,
    /// The budget of `pagetide run`, the command, in bytes.
    Pagetide(PathBuf, u64),
    /// The same, with room for all, while it is measured how much it needs.
    Measuring(PathBuf, u64),
    /// A budget that follows the program, which may lose so many percent of its time.
    Following(PathBuf, f64),
    /// A memory cgroup that may hold so much.
    Swap(Rc<KernelSwap>, Room),
}

impl Environment {
    /// One whose runs are ended after `limit`.
    pub fn new(name: String, home: Home, limit: Duration) -> Environment {
        Environment { name, home, limit }
    }

    /// Runs the program; `looks` says how often to look at its anonymous memory, if at all. What
    /// was seen of that is returned as well.
    pub fn run_once(&self, ready: &Ready, looks: Option<Duration>) -> Result<(Findings, Seen)> {
        ready.clear()?;
        let errors = ready.directory.join("errors");
        let stats = ready.directory.join("stats");
        let before: Vec<OsString> = match &self.home {
            Home::Alone => Vec::new(),
            Home::Pagetide(pagetide, budget) => words(pagetide, &budget.to_string(), &stats, &[]),
            Home::Measuring(pagetide, budget) => {
                words(pagetide, &budget.to_string(), &stats, &["--measure"])
            }
            Home::Following(pagetide, percent) => {
                words(pagetide, &format!("auto:{percent}%"), &stats, &[])
            }
            Home::Swap(swap, _) => swap.words(),
        };
        let own = ready.command.iter().map(OsString::from);
        let order = Order {
            command: command(before.into_iter().chain(own))?,
            client: match ready.client.is_empty() {
                true => None,
                false => Some(command(ready.client.iter().map(OsString::from))?),
            },
            errors: &errors,
            limit: self.limit,
            looks,
        };
        let counted = match &self.home {
            Home::Swap(swap, room) => Some((swap, swap.begin(*room)?)),
            _ => None,
        };
        let ended = process::run(order)?;
        let mut findings = findings(&ended, &errors);
        if looks.is_some() {
            findings.resident_bytes_mean = Some(ended.seen.mean_bytes);
        }
        if let Home::Pagetide(..) | Home::Measuring(..) | Home::Following(..) = self.home {
            let counted = count(&mut findings, &stats);
            // One that was refused counts nothing, and says why.
            if findings.failure.is_none() {
                counted?;
            }
        }
        if let Some((swap, before)) = counted {
            let after = swap.end(before)?;
            findings.held_off = after.held_off;
            findings.demand_pages = Some(after.swapped_in);
            findings.written_pages = Some(after.swapped_out);
            findings.memory_bytes = Some(after.memory_bytes);
            if after.killed {
                findings.failure = Some(Failure::OutOfMemory);
            }
        }
        Ok((findings, ended.seen))
    }
}

impl System<Ready> for Environment {
    type Found = Findings;

    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, ready: &Ready) -> Result<Findings> {
        // Seldom, where times count.
        let looks = match self.home {
            Home::Following(..) => Some(Duration::from_millis(10)),
            _ => None,
        };
        self.run_once(ready, looks).map(|(findings, _)| findings)
    }
}

/// Before a program's own: `pagetide run`, with `options` besides the usual ones.
fn words(pagetide: &Path, resident: &str, stats: &Path, options: &[&str]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![pagetide.into()];
    words.extend(["run", "--quiet", "--resident", resident].map(OsString::from));
    words.extend(options.iter().map(OsString::from));
    words.extend(["--stats".into(), stats.into(), "--".into()]);
    words
}

fn command(mut words: impl Iterator<Item = OsString>) -> Result<Command> {
    let program = words.next().ok_or_else(|| Error::other("no program"))?;
    let mut command = Command::new(program);
    command.args(words);
    Ok(command)
}

fn findings(ended: &Ended, errors: &Path) -> Findings {
    let last_words = || {
        let text = std::fs::read(errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().rfind(|line| !line.trim().is_empty());
        line.unwrap_or("it said nothing").trim().to_owned()
    };
    let failure = match (ended.status.code(), ended.status.signal()) {
        _ if ended.seen.late => Some(Failure::Late),
        (Some(0), _) => None,
        // What a shell, and `pagetide run`, make of a signal.
        (Some(code @ 129..=192), _) => Some(Failure::Signal(code - 128)),
        (Some(code), _) => Some(Failure::Exit(code, last_words())),
        (None, signal) => Some(Failure::Signal(signal.unwrap_or(0))),
    };
    Findings {
        wall_seconds: ended.wall_seconds,
        cpu_seconds: ended.cpu_seconds,
        output: ended.output.clone(),
        failure,
        ..Findings::default()
    }
}

/// What a line of `--stats` has beside the counters.
#[derive(serde::Deserialize)]
struct WithNeed {
    need: Option<Need>,
}

/// Adds what the pager says of all processes of the run, in the file of `--stats`.
fn count(findings: &mut Findings, stats: &Path) -> Result<()> {
    let text = std::fs::read_to_string(stats)
        .map_err(|error| Error::new(error.kind(), format!("{}: {error}", stats.display())))?;
    let processes = text
        .lines()
        .map(|line| serde_json::from_str(line).map_err(Error::other))
        .collect::<Result<Vec<Statistics>>>()?;
    let needs: Vec<Need> = (text.lines())
        .filter_map(|line| serde_json::from_str::<WithNeed>(line).ok()?.need)
        .collect();
    let sum = |field: fn(&Statistics) -> u64| Some(processes.iter().map(field).sum());
    findings.demand_pages = sum(|s| s.fetched_pages.saturating_sub(s.prefetched_pages));
    findings.ahead_pages = sum(|s| s.prefetched_pages);
    findings.written_pages = sum(|s| s.writebacks);
    findings.evicted_pages = sum(|s| s.evictions);
    let memory = processes
        .iter()
        .map(|s| s.resident_bytes_max + s.store_bytes_max);
    findings.memory_bytes = memory.max();
    findings.need = needs
        .into_iter()
        .max_by(|a, b| a.in_use_bytes_max.total_cmp(&b.in_use_bytes_max));
    Ok(())
}
