//! `pagetide-bench`: measures Pagetide beside its peers.
#![deny(unsafe_code)]
use std::io::{Result, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pagetide_bench::comparison::{self, Plan};
use pagetide_bench::lock;
use pagetide_bench::soak::{self, Soak};
use pagetide_bench::stores;
use pagetide_bench::worker::{self, Parameters};
use pagetide_bench::{paging, policy};
use pagetide_bench::{report, track, undo};

/// Measures Pagetide beside its peers.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Kernel swap on zram under a memory cgroup against `pagetide run` and a Region: random reads,
    /// then writes, every access timed.
    FirstNumbers(Plan),
    /// Paging against kernel swap: a pattern of accesses, each timed as the program sees it, hits
    /// included.
    Paging(paging::Plan),
    /// Eviction policies on recorded fault traces and on generated ones: misses of FIFO, LRU,
    /// CLOCK, S3-FIFO, SIEVE, the pager and MIN.
    Policy(policy::Plan),
    /// The process measured by `paging`; prints its times as JSON.
    #[command(hide = true)]
    PagingWorker(paging::worker::Task),
    /// The program that is measured; prints its times as JSON.
    Worker(Parameters),
    /// A verifying program under `pagetide run` while its budget is changed at random.
    Soak(Soak),
    /// Random reads over every store and over kernel swap, beside the published figures of 2019
    Stores(stores::Plan),
    /// Write-protecting untouched memory, four ways, beside the published figures of 2023.
    Wp(track::wp::Plan),
    /// What dirty tracking costs.
    Dirty(track::dirty::Plan),
    /// Live snapshots beside fork: pause, lateness of writes, extra memory.
    Snapshot(track::snapshot::Plan),
    /// Bringing a snapshot back: lazily beside eagerly, and with a working set replayed.
    Restore(track::restore::Plan),
    /// A large file of which a part is used: ways to keep that part in memory, sparse to dense,
    /// cold and warm (the experiment of 2015).
    Lock(lock::Plan),
    /// What locking costs a program: STREAM, and a compile job.
    Overhead(lock::overhead::Plan),
    /// The process measured by `lock`; prints its times as JSON.
    #[command(hide = true)]
    LockWorker(lock::worker::Task),
    /// The process measured by `overhead`.
    #[command(hide = true)]
    StreamWorker(lock::overhead::Stream),
    /// The program of many threads measured by `overhead`.
    #[command(hide = true)]
    ThreadsWorker(lock::threads::Threads),
}

fn first_numbers(plan: &Plan) -> Result<()> {
    let results = comparison::compare(plan)?;
    let to_stdout = plan
        .json
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-");
    let json = serde_json::to_string_pretty(&results)?;
    if let Some(path) = plan.json.as_ref().filter(|_| !to_stdout) {
        std::fs::write(path, &json)?;
    }
    let text = if to_stdout {
        json + "\n"
    } else {
        report::table(&results)
    };
    std::io::stdout().write_all(text.as_bytes())
}

fn work(parameters: &Parameters) -> Result<()> {
    let findings = worker::work(parameters).map_err(std::io::Error::other)?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&findings)?)
}

fn print(findings: &impl serde::Serialize) -> Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(findings)?)
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::FirstNumbers(plan) => first_numbers(&plan),
        Task::Paging(plan) => paging::experiment::run(&plan),
        Task::Policy(plan) => policy::run(&plan),
        Task::PagingWorker(task) => paging::worker::work(&task)
            .map_err(std::io::Error::other)
            .and_then(|findings| print(&findings)),
        Task::Worker(parameters) => work(&parameters),
        Task::Soak(plan) => soak::soak(&plan),
        Task::Stores(plan) => stores::stores(&plan),
        Task::Wp(plan) => track::wp::wp(&plan),
        Task::Dirty(plan) => track::dirty::dirty(&plan),
        Task::Snapshot(plan) => track::snapshot::snapshot(&plan),
        Task::Restore(plan) => track::restore::restore(&plan),
        Task::Lock(plan) => lock::experiment::run(&plan),
        Task::Overhead(plan) => lock::overhead::run(&plan),
        Task::LockWorker(task) => lock::worker::work(&task)
            .map_err(std::io::Error::other)
            .and_then(|findings| print(&findings)),
        Task::ThreadsWorker(task) => lock::threads::work(&task).and_then(|sizes| print(&sizes)),
        Task::StreamWorker(task) => lock::overhead::stream(&task).and_then(|rates| print(&rates)),
    };
    // A failure while a signal has all undone is the signal's doing, and its exit code counts: that
    // thread ends the process.
    if result.is_err() && undo::has_begun() {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let restored = undo::all();
    if let Err(error) = &result {
        eprintln!("error: {error}");
    }
    match result {
        Ok(()) if restored => ExitCode::SUCCESS,
        Err(error) if track::Usage::is_cause_of(&error) => ExitCode::from(2),
        // Exit code 3, as everywhere: this system cannot do it.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    }
}
