//! The handle of a snapshot that is being taken, and what becomes of it.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use super::error::SnapshotError;
use super::format::SnapshotId;
use crate::threads::Promise;

/// What a complete snapshot was like.
///
/// ```
/// let report = pagetide::track::Report::default();
/// println!("{} bytes, writers were held for {:?}", report.file_bytes, report.pause);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Its name, for good; [`SnapshotId::NONE`] in an empty report.
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

/// How far a snapshot is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub cancelled: AtomicBool,
    pub pages_done: AtomicU64,
    pub pages_total: AtomicU64,
}

/// The right to take the next snapshot: one at a time has it.
pub(crate) struct Claim(Arc<AtomicBool>);

impl Claim {
    /// None while somebody has it.
    pub fn of(taken: &Arc<AtomicBool>) -> Option<Claim> {
        let was = taken.swap(true, SeqCst);
        (!was).then(|| Claim(Arc::clone(taken)))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// What became of a snapshot, for the one who waits.
pub(crate) struct Outcome {
    id: SnapshotId,
    pub result: Promise<Result<Report, SnapshotError>>,
    pub progress: Progress,
    /// Given when the writers were let go: the claim, how long they were held, and how much of that
    /// was arming.
    pub held: Promise<(Claim, Duration, Duration)>,
}

impl Outcome {
    pub fn new(id: SnapshotId) -> Outcome {
        Outcome {
            id,
            result: Promise::default(),
            progress: Progress::default(),
            held: Promise::default(),
        }
    }

    /// The writers were let go: the snapshot is the caller's to wait for.
    pub fn let_go(self: Arc<Outcome>, claim: Claim, pause: Duration, arming: Duration) -> Snapshot {
        self.held.give_with(|| (claim, pause, arming));
        Snapshot {
            id: self.id,
            pause,
            outcome: self,
        }
    }

    /// It has begun and is not wanted: returns when it is over.
    pub fn give_up(&self, claim: Claim) {
        self.progress.cancelled.store(true, SeqCst);
        self.held
            .give_with(|| (claim, Duration::ZERO, Duration::ZERO));
        drop(self.result.wait());
    }
}

/// A snapshot being taken. Dropping this does not stop it, but dropping its snapshotter does: wait.
///
/// ```
/// use pagetide::track::{Mapping, Memory, Plan, SnapshotError, Snapshotter};
///
/// # fn main() -> Result<(), SnapshotError> {
/// # let path = std::env::temp_dir().join(format!("snapshot-{}", std::process::id()));
/// let table = Mapping::new(1 << 20)?;
/// let builder = Snapshotter::builder().memory(Memory::mapping("table", &table)?);
/// if let Ok(snapshotter) = builder.build() { // needs a userfaultfd
///     // No thread writes to the table here, so nothing has to be held.
///     let snapshot = snapshotter.snapshot(&path, Plan::full(), |arm: &mut dyn FnMut()| arm())?;
///     println!("{:?} of pause, {:?} pages", snapshot.pause(), snapshot.progress());
///     println!("complete: {:?}", snapshot.wait()?);
///     # std::fs::remove_file(&path)?;
/// }
/// # Ok(())
/// # }
/// ```
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
        let (done, total) = (&progress.pages_done, &progress.pages_total);
        (done.load(SeqCst), total.load(SeqCst))
    }

    /// Whether it is complete, failed or cancelled.
    pub fn is_finished(&self) -> bool {
        self.outcome.result.look().is_some()
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
        self.outcome.result.take()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
