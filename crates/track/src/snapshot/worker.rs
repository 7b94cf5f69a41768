//! The thread that completes snapshots, and the handle of the one under way.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
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
use super::pool::SlotIndex;
use super::sweep::{Progress, Stopped, Sweep};
use super::writer::{Writer, Written};
use crate::memory::TrackError;
use crate::threads;

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

/// What became of a snapshot, for the one who waits.
pub(crate) struct Outcome {
    id: SnapshotId,
    result: Mutex<Option<Result<Report, SnapshotError>>>,
    told: Condvar,
    progress: Progress,
    /// Told when the writers were let go: the claim, how long they were held, and how much of that
    /// was arming.
    held: Mutex<Option<(Claim, Duration, Duration)>>,
    let_go: Condvar,
}

/// A snapshot that later ones can build on.
struct Base {
    id: SnapshotId,
    name: String,
    directory: Option<PathBuf>,
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
    jobs: Option<Sender<(Job, Arc<Outcome>)>>,
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

    /// Epoch, file name and directory of a complete snapshot.
    pub fn base(&self, id: SnapshotId) -> Option<(u32, String, Option<PathBuf>)> {
        let complete = lock(&self.complete);
        let found = complete.iter().find(|(_, base)| base.id == id);
        found.map(|(epoch, base)| (*epoch, base.name.clone(), base.directory.clone()))
    }

    /// Whether `name` is that of the snapshot of epoch `from`, or of one that it builds on.
    pub fn chain_has(&self, from: u32, name: &str) -> bool {
        let complete = lock(&self.complete);
        let chain = std::iter::successors(complete.get(&from), |base| complete.get(&base.base));
        chain.into_iter().any(|base| base.name == name)
    }

    /// Queues a snapshot, to begin as [`super::start::Start`] says.
    pub fn queue(&self, job: Job) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome {
            id: job.report.id,
            result: Mutex::new(None),
            told: Condvar::new(),
            progress: Progress::default(),
            held: Mutex::new(None),
            let_go: Condvar::new(),
        });
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

impl Outcome {
    /// The writers were let go: the snapshot is the caller's to wait for.
    pub fn let_go(self: Arc<Outcome>, claim: Claim, pause: Duration, arming: Duration) -> Snapshot {
        *lock(&self.held) = Some((claim, pause, arming));
        self.let_go.notify_all();
        Snapshot {
            id: self.id,
            pause,
            outcome: self,
        }
    }

    fn tell(&self, result: Result<Report, SnapshotError>) {
        *lock(&self.result) = Some(result);
        self.told.notify_all();
    }

    /// It has begun and is not wanted: returns when it is over.
    pub fn give_up(&self, claim: Claim) {
        self.progress.cancelled.store(true, SeqCst);
        *lock(&self.held) = Some((claim, Duration::ZERO, Duration::ZERO));
        self.let_go.notify_all();
        self.wait_until_over();
    }

    /// Nothing of it is left then.
    pub fn wait_until_over(&self) {
        let mut result = lock(&self.result);
        while result.is_none() {
            result = self
                .told
                .wait(result)
                .unwrap_or_else(|held| held.into_inner());
        }
    }

    /// Waits for [`Outcome::let_go`].
    fn wait_until_let_go(&self) -> (Claim, Duration, Duration) {
        let mut held = lock(&self.held);
        loop {
            if let Some(told) = held.take() {
                return told;
            }
            held = self
                .let_go
                .wait(held)
                .unwrap_or_else(|held| held.into_inner());
        }
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
    complete: &Complete,
) {
    while let Ok((job, outcome)) = queue.recv() {
        if !shared.start.wait(job.number) {
            drop(job);
            outcome.tell(Err(SnapshotError::Cancelled));
            continue;
        }
        let phase = shared.phase();
        let (name, directory) = (job.name, job.directory);
        let (report, started_ns) = (job.report, job.started_ns);
        let sweep = Sweep::new(
            shared,
            phase,
            &outcome.progress,
            job.writer,
            keep_protected,
            job.own_sink,
        );
        // A sink that panics is a sink that fails: the writers must not wait for a worker that is
        // no more.
        let swept = AssertUnwindSafe(|| sweep.run());
        let result = catch_unwind(swept)
            .unwrap_or_else(|_| Err(Stopped::Sink(std::io::Error::other("the sink panicked"))));
        if result.is_err() {
            clean_up(shared, keep_protected);
        }
        let (claim, pause, arming) = outcome.wait_until_let_go();
        let report = Report {
            pause,
            arming,
            ..report
        };
        let result = match result {
            Ok(written) => {
                let mut complete = lock(complete);
                forget_replaced(&mut complete, &name, &directory);
                let base = Base {
                    id: report.id,
                    name,
                    directory,
                    base: phase.base.unwrap_or(0),
                };
                complete.insert(phase.epoch, base);
                if complete.len() > BASES_MAX {
                    complete.pop_first();
                }
                drop(complete);
                Ok(fill_in(shared, report, written, started_ns))
            }
            Err(Stopped::Cancelled) => Err(SnapshotError::Cancelled),
            Err(Stopped::Sink(error)) => Err(SnapshotError::Sink(error)),
            Err(Stopped::Spoiled) => Err(SnapshotError::Spoiled),
            Err(Stopped::Lost(what)) => Err(SnapshotError::Lost(what)),
        };
        shared.pool.reset();
        // The next may be taken before anybody is told of this one.
        drop(claim);
        outcome.tell(result);
    }
}

/// A file has taken the place of a snapshot's: that one is no more, and those that build on it are
/// of no use.
fn forget_replaced(complete: &mut BTreeMap<u32, Base>, name: &str, directory: &Option<PathBuf>) {
    if directory.is_none() {
        return;
    }
    let mut gone = Vec::new();
    complete.retain(|epoch, base| {
        // Whatever builds on another was taken after it.
        let lost = (base.name == name && base.directory == *directory) || gone.contains(&base.base);
        if lost {
            gone.push(*epoch);
        }
        !lost
    });
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

    /// Gives it up: nothing of it remains. Returns at once; [`Snapshot::wait`] tells when it is
    /// over. A snapshot that is just being made durable may be completed all the same.
    pub fn cancel(&self) {
        self.outcome.progress.cancelled.store(true, SeqCst);
    }

    /// Waits until the file is complete and durable.
    ///
    /// # Errors
    /// The sink's error, or [`SnapshotError::Cancelled`]. No file is left under the snapshot's name
    /// then.
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
