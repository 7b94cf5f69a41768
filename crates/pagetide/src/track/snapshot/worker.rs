//! The thread that completes snapshots, and the handle of the one under way.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::now_ns;

use super::SnapshotError;
use super::copy_aside::Shared;
use super::format::SnapshotId;
use super::pages::Phase;
use super::pool::SlotIndex;
use super::sweep::{Progress, Stopped, Sweep};
use super::writer::{Writer, Written};
use crate::track::memory::TrackError;
use crate::track::threads;

/// What a complete snapshot was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Its name, for good.
    pub id: SnapshotId,
    /// How long the writers were held, parking them included.
    pub pause: Duration,
    /// How much of that was arming.
    pub arming: Duration,
    /// From the beginning of the pause until the file was complete and durable.
    pub duration: Duration,
    /// Pages that the arming had to protect.
    pub open_pages_before: u64,
    /// Faults on protected pages during it.
    pub faults: u64,
    /// Pages whose old bytes were put aside.
    pub copies_aside: u64,
    /// Times a writer waited because the extra memory was used up.
    pub waits: u64,
    /// Most bytes of pages put aside at a time.
    pub extra_bytes: u64,
    /// Pages in the file with bytes.
    pub pages: u64,
    /// Pages that were zeros.
    pub zero_pages: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl Default for Report {
    fn default() -> Report {
        Report {
            id: SnapshotId::NONE,
            pause: Duration::ZERO,
            arming: Duration::ZERO,
            duration: Duration::ZERO,
            open_pages_before: 0,
            faults: 0,
            copies_aside: 0,
            waits: 0,
            extra_bytes: 0,
            pages: 0,
            zero_pages: 0,
            file_bytes: 0,
        }
    }
}

/// A snapshot that was armed. `faults`, `copies_aside` and `waits` of the report hold the counters before it.
pub(crate) struct Job {
    pub writer: Writer,
    pub phase: Phase,
    pub epoch: u32,
    pub name: String,
    pub report: Report,
    pub started_ns: u64,
}

/// What became of a snapshot, for the one who waits.
struct Outcome {
    result: Mutex<Option<Result<Report, SnapshotError>>>,
    told: Condvar,
    progress: Progress,
}

/// A snapshot that later ones can build on.
struct Base {
    id: SnapshotId,
    name: String,
    /// The epoch it builds on itself; 0: none.
    base: u32,
}

/// Snapshots that later ones can build on, by epoch.
type Complete = Mutex<BTreeMap<u32, Base>>;
/// The last so many of them are known.
pub(crate) const BASES_MAX: usize = 1024;

/// The only one that may submit a job.
pub(crate) struct Claim(Arc<AtomicBool>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// See the module's text.
pub(crate) struct Worker {
    jobs: Option<Sender<(Claim, Job, Arc<Outcome>)>>,
    thread: Option<JoinHandle<()>>,
    taken: Arc<AtomicBool>,
    complete: Arc<Complete>,
    current: Mutex<Option<Arc<Outcome>>>,
}

/// Whether somebody panicked meanwhile or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

impl Worker {
    pub fn start(shared: &Arc<Shared>, keep_protected: bool) -> Result<Worker, TrackError> {
        let (jobs, queue) = channel();
        let (shared, complete) = (Arc::clone(shared), Arc::new(Complete::default()));
        let known = Arc::clone(&complete);
        let body = move || serve(&shared, keep_protected, &queue, &known);
        let thread = threads::start("pagetide-sweep", body)?;
        Ok(Worker {
            jobs: Some(jobs),
            thread: Some(thread),
            taken: Arc::new(AtomicBool::new(false)),
            complete,
            current: Mutex::new(None),
        })
    }

    /// The right to take the next snapshot; none while one is being taken.
    pub fn claim(&self) -> Option<Claim> {
        let was = self.taken.swap(true, SeqCst);
        (!was).then(|| Claim(Arc::clone(&self.taken)))
    }

    /// Epoch and file name of a complete snapshot.
    pub fn base(&self, id: SnapshotId) -> Option<(u32, String)> {
        let complete = lock(&self.complete);
        let found = complete.iter().find(|(_, base)| base.id == id);
        found.map(|(epoch, base)| (*epoch, base.name.clone()))
    }

    /// Whether `name` is that of the snapshot of epoch `from`, or of one that it builds on.
    pub fn chain_has(&self, from: u32, name: &str) -> bool {
        let complete = lock(&self.complete);
        let chain = std::iter::successors(complete.get(&from), |base| complete.get(&base.base));
        chain.into_iter().any(|base| base.name == name)
    }

    pub fn submit(&self, claim: Claim, job: Job) -> Snapshot {
        let outcome = Arc::new(Outcome {
            result: Mutex::new(None),
            told: Condvar::new(),
            progress: Progress::default(),
        });
        let (id, pause) = (job.report.id, job.report.pause);
        *lock(&self.current) = Some(Arc::clone(&outcome));
        let jobs = self
            .jobs
            .as_ref()
            .expect("open until the worker is dropped");
        if jobs.send((claim, job, Arc::clone(&outcome))).is_err() {
            unreachable!("the worker serves until it is dropped");
        }
        Snapshot { id, pause, outcome }
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
    queue: &Receiver<(Claim, Job, Arc<Outcome>)>,
    complete: &Complete,
) {
    while let Ok((claim, job, outcome)) = queue.recv() {
        let (epoch, name, report, started_ns) = (job.epoch, job.name, job.report, job.started_ns);
        let base = job.phase.base;
        let sweep = Sweep::new(
            shared,
            job.phase,
            &outcome.progress,
            job.writer,
            keep_protected,
        );
        // A sink that panics is a sink that fails: the writers must not wait for a worker that is no more.
        let swept = AssertUnwindSafe(|| sweep.run());
        let result = catch_unwind(swept)
            .unwrap_or_else(|_| Err(Stopped::Sink(std::io::Error::other("the sink panicked"))));
        if result.is_err() {
            clean_up(shared, keep_protected);
        }
        let result = match result {
            Ok(written) => {
                let mut complete = lock(complete);
                let (id, base) = (report.id, base.unwrap_or(0));
                complete.insert(epoch, Base { id, name, base });
                if complete.len() > BASES_MAX {
                    complete.pop_first();
                }
                drop(complete);
                Ok(fill_in(shared, report, written, started_ns))
            }
            Err(Stopped::Cancelled) => Err(SnapshotError::Cancelled),
            Err(Stopped::Sink(error)) => Err(SnapshotError::Sink(error)),
            Err(Stopped::Lost(what)) => Err(SnapshotError::Lost(what)),
        };
        shared.pool.reset();
        // The next may be taken before anybody is told of this one.
        drop(claim);
        *lock(&outcome.result) = Some(result);
        outcome.told.notify_all();
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
        shared.guard.open_everything();
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

/// A snapshot being taken. Dropping this does not stop it.
#[must_use = "whether the snapshot succeeds is told by `wait`"]
pub struct Snapshot {
    id: SnapshotId,
    pause: Duration,
    outcome: Arc<Outcome>,
}

impl Snapshot {
    /// Its name, for good.
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// How long the writers were held.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Pages done, and how many there are.
    pub fn progress(&self) -> (u64, u64) {
        let progress = &self.outcome.progress;
        (
            progress.pages_done.load(SeqCst),
            progress.pages_total.load(SeqCst),
        )
    }

    /// Whether it is complete, failed or cancelled.
    pub fn is_finished(&self) -> bool {
        lock(&self.outcome.result).is_some()
    }

    /// Gives it up: nothing of it remains. Returns at once; [`Snapshot::wait`] tells when it is over. A snapshot that is just being made durable
    /// may be completed all the same.
    pub fn cancel(&self) {
        self.outcome.progress.cancelled.store(true, SeqCst);
    }

    /// Waits until the file is complete and durable.
    ///
    /// # Errors
    /// The sink's error, or [`SnapshotError::Cancelled`]. No file is left under the snapshot's name then.
    pub fn wait(self) -> Result<Report, SnapshotError> {
        let mut result = lock(&self.outcome.result);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self
                .outcome
                .told
                .wait(result)
                .unwrap_or_else(|held| held.into_inner());
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
