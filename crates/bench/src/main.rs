//! `pagetide-bench`: measures Pagetide beside its peers.
#![deny(unsafe_code)]
use std::io::{Error, ErrorKind, Result};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use pagetide_bench::arguments::Usage;
use pagetide_bench::{
    launch, lock, paging, policy, programs, report, serve, soak, stores, track, tree, undo,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Measures Pagetide beside its peers.
#[derive(Parser)]
#[command(version = env!("PAGETIDE_VERSION"))]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// The task of a worker process.
#[derive(Args)]
struct Worker {
    /// As JSON
    task: String,
}

#[derive(Subcommand)]
enum Task {
    /// Kernel swap on zram under a memory cgroup against `pagetide run` and a Region: random reads,
    /// then writes, every access timed.
    FirstNumbers(paging::first_numbers::Plan),
    /// Paging against kernel swap: a pattern of accesses, each timed as the program sees it, hits
    /// included.
    Paging(paging::plan::Plan),
    /// Eviction policies on recorded traces and on generated ones: misses of FIFO, LRU,
    /// CLOCK, S3-FIFO, SIEVE, the pager and MIN.
    Policy(policy::Plan),
    /// Runs a program under valgrind and writes down which pages it accesses, for `policy`.
    RecordAccesses(policy::record::Plan),
    /// Real programs alone, under `pagetide run` and under kernel swap on zram, in a share of the
    /// memory each takes alone.
    Programs(programs::plan::Plan),
    /// A verifying program under `pagetide run` while its budget is changed at random.
    Soak(soak::Soak),
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
    /// Pages for other processes: a fault beside a handler that only copies, a recorded working
    /// set, the memory of many clients.
    Serve(serve::Plan),
    /// A large file of which a part is used: ways to keep that part in memory, sparse to dense,
    /// cold and warm (the experiment of 2015).
    Lock(lock::plan::Plan),
    /// One budget for all processes of a run against an eighth of it for each of eight, and what a
    /// start in such a run costs.
    Tree(tree::experiment::Plan),
    /// What locking costs a program: STREAM, and a compile job.
    Overhead(lock::overhead::Plan),
    /// The process measured by `paging`; prints its times as JSON.
    #[command(hide = true)]
    PagingWorker(Worker),
    /// The handler that `serve` is compared with.
    #[command(hide = true, name = serve::BARE)]
    ServeBareWorker(Worker),
    /// The process measured by `lock`; prints its times as JSON.
    #[command(hide = true)]
    LockWorker(Worker),
    /// A process of a run measured by `tree`; prints its time as JSON.
    #[command(hide = true)]
    TreeWorker(Worker),
    /// The process measured by `overhead`.
    #[command(hide = true)]
    StreamWorker(Worker),
    /// The program of many threads measured by `overhead`.
    #[command(hide = true)]
    ThreadsWorker(Worker),
}

impl Worker {
    fn run<T: DeserializeOwned, F: Serialize>(
        &self,
        work: impl Fn(&T) -> std::result::Result<F, String>,
    ) -> Result<()> {
        let found = launch::task(&self.task).and_then(|task| work(&task));
        report::print(true, &found.map_err(Error::other)?, |_| String::new())
    }
}

impl Task {
    fn run(&self) -> Result<()> {
        match self {
            Task::FirstNumbers(plan) => paging::first_numbers::run(plan),
            Task::Paging(plan) => paging::experiment::run(plan),
            Task::Policy(plan) => policy::run(plan),
            Task::RecordAccesses(plan) => policy::record::run(plan),
            Task::Programs(plan) => programs::experiment::run(plan),
            Task::Soak(plan) => soak::soak(plan),
            Task::Stores(plan) => stores::run(plan),
            Task::Wp(plan) => track::wp::run(plan),
            Task::Dirty(plan) => track::dirty::run(plan),
            Task::Snapshot(plan) => track::snapshot::run(plan),
            Task::Restore(plan) => track::restore::run(plan),
            Task::Serve(plan) => serve::run(plan),
            Task::Lock(plan) => lock::experiment::run(plan),
            Task::Tree(plan) => tree::experiment::run(plan),
            Task::Overhead(plan) => lock::overhead::run(plan),
            Task::PagingWorker(worker) => worker.run(paging::worker::work),
            Task::ServeBareWorker(worker) => worker.run(serve::bare),
            Task::LockWorker(worker) => worker.run(lock::worker::work),
            Task::TreeWorker(worker) => worker.run(tree::worker::work),
            Task::StreamWorker(worker) => worker.run(lock::programs::stream),
            Task::ThreadsWorker(worker) => worker.run(lock::programs::threads),
        }
    }
}

fn main() -> ExitCode {
    let result = Arguments::parse().task.run();
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
        Err(error) if Usage::is_cause_of(&error) => ExitCode::from(2),
        // Exit code 3, as everywhere: this system cannot do it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    }
}
