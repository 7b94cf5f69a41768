//! The small commands, one a file.
pub(crate) mod background;
pub mod bench;
pub mod completions;
pub mod limit;
pub mod lock;
pub mod locks;
pub mod metrics;
pub mod pack;
pub mod pages;
pub mod ps;
pub mod residency;
pub mod serve;
pub(crate) mod served;
pub mod snapshot;
pub mod stat;
pub mod store;
mod volumes;

use std::io::Write as _;

use pagetide_pager::report::Latency;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;

use crate::bases::Bases;
use crate::exit::{Exit, Failure};
use crate::governed::Governed;
use crate::size::Nanoseconds;
use crate::text::{printable, printable_lines};
use crate::{descendants, runs, serving};

/// The living governed process `pid`, or the one that launcher `pid` has; otherwise an error that
/// says how to list them.
pub fn find(pid: u32, bases: &Bases) -> Result<Governed, Failure> {
    let failure = |message: String| Failure::new(Exit::Failed, message);
    let all = runs::all(bases);
    if let Some(process) = all.iter().find(|process| process.pid == pid) {
        return Ok(process.clone());
    }
    if serving::of(pid, bases).is_some() {
        return Err(failure(format!(
            "process {pid} serves pages of other processes (`pagetide serve`), and has no budget; \
             `pagetide stat {pid}` tells of it"
        )));
    }
    match runs::of_launcher(pid, bases).as_deref() {
        None => Err(failure(format!(
            "process {pid} is not one of Pagetide's that you may see{}; list them with `pagetide \
             ps`",
            bases.place()
        ))),
        Some([]) => Err(failure(match &runs::apart(pid, bases)[..] {
            [] => format!(
                "process {pid} is a `pagetide run` that governs no process yet or any more; list \
                 those there are with `pagetide ps`"
            ),
            apart => format!("run {pid}: {}", descendants::told(apart)),
        })),
        Some([process]) => Ok(process.clone()),
        Some(several) => {
            let named: Vec<String> = several
                .iter()
                .map(|process| {
                    let command = printable(&process.reading.statistics.command);
                    format!("{} ({command})", process.pid)
                })
                .collect();
            Err(failure(format!(
                "run {pid} has several processes; name one of them: {}",
                named.join(", ")
            )))
        }
    }
}

/// A distribution of times, on a line.
fn of_latency(latency: &Latency) -> String {
    format!(
        "mean {}, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
        Nanoseconds(latency.mean),
        Nanoseconds(latency.p50),
        Nanoseconds(latency.p90),
        Nanoseconds(latency.p99),
        Nanoseconds(latency.p999),
        Nanoseconds(latency.max)
    )
}

/// Prints a value as JSON on a line of its own.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Prints to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    printed(std::io::stdout().write_all(text.as_bytes()))
}

/// Whether what was written to stdout has got there. Nothing else writes what is buffered: this
/// process has not Rust's entry point, whose end would.
pub fn printed(written: std::io::Result<()>) -> Result<(), Failure> {
    written
        .and_then(|()| std::io::stdout().flush())
        .map_err(|error| Failure::new(Exit::Failed, format!("stdout cannot be written ({error})")))
}

/// The failure with the code of any file that cannot be written, for those of whom 1 says something
/// else.
pub fn as_of_a_file(failure: Failure) -> Failure {
    Failure::new(Exit::Store, failure.message)
}

/// Says something to whoever watches.
pub fn told(text: &str) {
    let text = printable_lines(text);
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "pagetide: {text}");
}

/// As many descriptors as this process may ask for.
pub fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
