//! The thread that completes snapshots.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::now_ns;

use super::bases::{Base, Bases};
use super::copy_aside::Shared;
use super::error::SnapshotError;
use super::pool::SlotIndex;
use super::sweep::Sweep;
use super::under_way::{Claim, Outcome, Report};
use super::writer::{Writer, Written};
use crate::error::TrackError;
use crate::threads::{self, lock};

/// A snapshot that is to be armed. `faults`, `copies_aside` and `waits` of the report hold the
/// counters before it.
pub(crate) struct Job {
    /// See [`super::start::Start`].
    pub number: u64,
    pub writer: Writer,
    pub name: String,
    /// The directory of its file, where it has one.
    pub directory: Option<PathBuf>,
    /// The sink is one of Pagetide's, and no code of the program's.
    pub own_sink: bool,
    pub report: Report,
    pub started_ns: u64,
}

/// See the module's text.
pub(crate) struct Worker {
    jobs: Option<Sender<(Job, Arc<Outcome>)>>,
    thread: Option<JoinHandle<()>>,
    taken: Arc<AtomicBool>,
    /// Snapshots that later ones can build on.
    pub bases: Arc<Mutex<Bases>>,
    current: Mutex<Option<Arc<Outcome>>>,
}

impl Worker {
    pub fn start(shared: &Arc<Shared>, keep_protected: bool) -> Result<Worker, TrackError> {
        let (jobs, queue) = channel();
        let (shared, bases) = (Arc::clone(shared), Arc::default());
        let known = Arc::clone(&bases);
        let body = move || serve(&shared, keep_protected, &queue, &known);
        Ok(Worker {
            jobs: Some(jobs),
            thread: Some(threads::start("pagetide-sweep", body)?),
            taken: Arc::default(),
            bases,
            current: Mutex::new(None),
        })
    }

    /// The right to take the next snapshot; none while one is being taken.
    pub fn claim(&self) -> Option<Claim> {
        Claim::of(&self.taken)
    }

    /// Queues a snapshot, to begin as [`super::start::Start`] says.
    pub fn queue(&self, job: Job) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome::new(job.report.id));
        *lock(&self.current) = Some(Arc::clone(&outcome));
        let jobs = self
            .jobs
            .as_ref()
            .expect("open until the worker is dropped");
        if jobs.send((job, Arc::clone(&outcome))).is_err() {
            unreachable!("the worker serves until it is dropped");
        }
        outcome
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(current) = lock(&self.current).take() {
            current.progress.cancelled.store(true, SeqCst);
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    shared: &Arc<Shared>,
    keep_protected: bool,
    queue: &Receiver<(Job, Arc<Outcome>)>,
    bases: &Mutex<Bases>,
) {
    while let Ok((job, outcome)) = queue.recv() {
        if !shared.start.wait(job.number) {
            drop(job);
            outcome.result.give_with(|| Err(SnapshotError::Cancelled));
            continue;
        }
        let phase = shared.phase();
        let (report, started_ns) = (job.report, job.started_ns);
        let complete = Base {
            id: report.id,
            name: job.name,
            directory: job.directory,
            base: phase.base.unwrap_or(0),
        };
        let (progress, own) = (&outcome.progress, job.own_sink);
        let sweep = Sweep::new(shared, phase, progress, job.writer, keep_protected, own);
        // A sink that panics is a sink that fails: the writers must not wait for a worker that is
        // no more.
        let panicked = |_| Err(std::io::Error::other("the sink panicked").into());
        let result = catch_unwind(AssertUnwindSafe(|| sweep.run())).unwrap_or_else(panicked);
        if result.is_err() {
            clean_up(shared, keep_protected);
        }
        let (claim, pause, arming) = outcome.held.take();
        let result = result.map(|written| {
            lock(bases).add(phase.epoch, complete);
            let report = Report {
                pause,
                arming,
                ..report
            };
            fill_in(shared, report, written, started_ns)
        });
        shared.pool.reset();
        // The next may be taken before anybody is told of this one.
        drop(claim);
        outcome.result.give_with(|| result);
    }
}

/// A snapshot that will not be: writers go on, and what they put aside for it is dropped.
pub(crate) fn clean_up(shared: &Shared, keep_protected: bool) {
    shared.end();
    let mut batch = [(SlotIndex::default(), 0); 64];
    loop {
        let count = shared.pool.take_filled(&mut batch);
        if count == 0 {
            break;
        }
        batch[..count]
            .iter()
            .for_each(|(slot, _)| shared.pool.give_back(*slot));
    }
    if !keep_protected {
        shared.guard.unprotect_all();
    }
}

fn fill_in(shared: &Shared, before: Report, written: Written, started_ns: u64) -> Report {
    Report {
        duration: Duration::from_nanos(now_ns() - started_ns),
        faults: shared.faults.load(SeqCst) - before.faults,
        copies_aside: shared.copies.load(SeqCst) - before.copies_aside,
        waits: shared.waits.load(SeqCst) - before.waits,
        extra_bytes: (shared.pool.used_max() * PAGE_SIZE) as u64,
        pages: written.pages,
        zero_pages: written.zero_pages,
        file_bytes: written.file_bytes,
        ..before
    }
}
