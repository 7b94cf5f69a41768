//! Threads that write at a fixed rate, and how late each write was: from the time it was due, so
//! that a stall counts in full.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::content::Random;
use crate::memory::Plain;
use crate::statistics::histogram;

/// Length of a slot of [`Findings::worst`].
pub const SLOT: Duration = Duration::from_millis(2);
const SLOTS: usize = 15_000;

/// What the writers do, and when it counts.
pub struct Writing<'a> {
    /// Where they write.
    pub memory: &'a Plain,
    /// Writes a second, all threads together.
    pub rate: u64,
    /// When it began; all times count from here.
    pub start: Instant,
    /// Nanoseconds after `start` between which writes count.
    pub from_ns: AtomicU64,
    #[allow(missing_docs)]
    pub until_ns: AtomicU64,
    /// How late the last write of each thread was, in nanoseconds.
    pub behind_ns: Vec<AtomicU64>,
    /// Ends the writers.
    pub stop: AtomicBool,
}

/// A writer less late than this has caught up.
const CAUGHT_UP_NS: u64 = 1_000_000;

impl Writing<'_> {
    /// Waits until no writer is behind any more, at most `patience`.
    pub fn catch_up(&self, patience: Duration) {
        let late = |behind: &AtomicU64| behind.load(Relaxed) > CAUGHT_UP_NS;
        let since = Instant::now();
        while self.behind_ns.iter().any(late) && since.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What one writer found.
pub struct Findings {
    /// Nanoseconds from when a write was due until it was done.
    pub late: Histogram<u64>,
    /// Nanoseconds of the writes that took a fault, first ones to their page since the counting
    /// began.
    pub first: Histogram<u64>,
    /// The latest in each [`SLOT`] since `start`, counted or not, in nanoseconds.
    pub worst: Vec<u64>,
}

impl Findings {
    /// Nothing found yet.
    pub fn new() -> Findings {
        Findings {
            late: histogram(),
            first: histogram(),
            worst: vec![0; SLOTS],
        }
    }

    /// Adds what another writer found.
    pub fn add(&mut self, other: &Findings) {
        self.late.add(&other.late).expect("same bounds");
        self.first.add(&other.first).expect("same bounds");
        for (mine, theirs) in self.worst.iter_mut().zip(&other.worst) {
            *mine = (*mine).max(*theirs);
        }
    }
}

impl Default for Findings {
    fn default() -> Findings {
        Findings::new()
    }
}

/// A write that takes longer than this took a fault.
const FAULT_NS: u64 = 1_000;

/// Writes uniformly random pages as thread `number` of `threads` until told to stop.
pub fn write(writing: &Writing<'_>, number: usize, threads: usize, findings: &mut Findings) {
    let pages = writing.memory.pages();
    let mut random = Random::new(number as u64 + 4711);
    let mut written = vec![false; pages];
    let step_ns = 1e9 * threads as f64 / writing.rate as f64;
    let mut due_ns = number as f64 / threads as f64 * step_ns;
    let now_ns = || writing.start.elapsed().as_nanos() as u64;
    while !writing.stop.load(SeqCst) {
        let due = due_ns as u64;
        due_ns += step_ns;
        let mut begun = now_ns();
        while begun < due {
            std::hint::spin_loop();
            begun = now_ns();
        }
        let page = random.below(pages as u64) as usize;
        writing.memory.write(page, due);
        let done = now_ns();
        let late = done - due;
        writing.behind_ns[number].store(late, Relaxed);
        if let Some(worst) = findings
            .worst
            .get_mut((due / SLOT.as_nanos() as u64) as usize)
        {
            *worst = (*worst).max(late);
        }
        if done < writing.from_ns.load(SeqCst) || due > writing.until_ns.load(SeqCst) {
            continue;
        }
        findings.late.saturating_record(late);
        if !std::mem::replace(&mut written[page], true) && done - begun > FAULT_NS {
            findings.first.saturating_record(done - begun);
        }
    }
}
