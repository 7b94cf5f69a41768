//! `snapshot`: live snapshots beside `fork` and a child that writes the same file: same data, same
//! writers, in turns.
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use pagetide::Delivery;
use pagetide::track::snapshot::Plan as SnapshotPlan;
use pagetide::track::{ParkThreads, Snapshotter};

use super::fork::Child;
use super::scratch::{check_plot, scratch_file};
use super::snapshot_report::{Curve, FORK, Outcome, Row, draw};
use super::writers::{Findings, Writing, write};
use crate::arguments::{at_least_one, size};
use crate::memory::{HugePages, Plain};
use crate::report::{cell, mib, print, save, say};
use crate::runner::{System, Systems, in_turns};
use crate::sysfs;

/// Writers run so long before a snapshot.
const WARM_UP: Duration = Duration::from_millis(500);
/// They may take so long to make up for what held them, before a snapshot and after it.
const PATIENCE: Duration = Duration::from_secs(10);
/// And have so long, at least, for what was due before its end.
const LAST_WRITES: Duration = Duration::from_millis(50);

/// Against whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// `fork`, and a child that writes the file.
    Fork,
    /// Nobody.
    None,
}

/// How first writes reach the snapshotter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// SIGBUS in the writing thread.
    Signal,
    /// A handler thread.
    Thread,
}

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Memory to snapshot, all of it populated
    #[arg(long, default_value = "1G", value_parser = size)]
    pub size: usize,
    /// Writes a second, all threads together, each to a uniformly random page
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub write_rate: u64,
    /// Writing threads
    #[arg(long, default_value_t = 1, value_parser = at_least_one().range(1..=256))]
    pub threads: usize,
    /// Whom to compare with
    #[arg(long, value_enum, default_value = "fork")]
    pub peer: Peer,
    /// How first writes reach the snapshotter
    #[arg(long, value_enum, default_value = "signal")]
    pub delivery: By,
    /// Times each way is measured, in turns; medians count
    #[arg(long, default_value_t = 3, value_parser = at_least_one())]
    pub runs: usize,
    /// Where the files are written, and removed again
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
    /// Print JSON: the machine, a row for each run, medians over fork's
    #[arg(long)]
    pub json: bool,
    /// Draw the lateness of writes over time in the last runs, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Fork,
    Full,
    PreArmed,
    Incremental,
}

/// What a way of taking a snapshot told.
struct Taken {
    pause: Duration,
    extra_bytes: u64,
    file_bytes: u64,
}

/// Measures and prints. Files may stay: call [`crate::undo::all`] afterwards, whatever came out.
pub fn run(plan: &Plan) -> Result<()> {
    if let Some(path) = &plan.plot {
        check_plot(path)?;
    }
    let path = scratch_file(&plan.directory)?;
    let memory = Plain::new(plan.size, HugePages::Never)?;
    memory.populate(1);
    let ways = [Way::Fork, Way::Full, Way::PreArmed, Way::Incremental];
    let systems: Systems<'_, usize, (Row, Curve)> = ways[usize::from(plan.peer == Peer::None)..]
        .iter()
        .map(|way| {
            Box::new(Snapshots {
                plan,
                way: *way,
                memory: &memory,
                path: &path,
            }) as _
        })
        .collect();
    let all = in_turns(
        systems,
        plan.runs,
        |turn| turn + 1,
        |name, _, found| {
            let (row, curve) = found?;
            say(&format!(
                "{name:<22} run {}: pause {:.3} ms, write p50 {} p99 {} max {} us, extra {}, {:.2} \
                 s",
                row.run,
                row.pause_ms,
                cell(row.write_p50_us, 2),
                cell(row.write_p99_us, 1),
                cell(row.write_max_us, 0),
                mib(row.extra_bytes as f64),
                row.seconds
            ));
            Ok(Some((row, curve)))
        },
    )?;
    let outcome = Outcome::of(&all);
    print(plan.json, &outcome, |outcome| outcome.text(&heading(plan)))?;
    match &plan.plot {
        Some(path) => save(path, &draw(&all)),
        None => Ok(()),
    }
}

fn heading(plan: &Plan) -> String {
    format!(
        "snapshots of {} bytes, populated, THP off, {} writes a second to random pages by {} \
         thread(s), delivery by {}, medians of {} runs",
        plan.size,
        plan.write_rate,
        plan.threads,
        format!("{:?}", plan.delivery).to_lowercase(),
        plan.runs
    )
}

/// A way of taking a snapshot of memory that is being written.
struct Snapshots<'a> {
    plan: &'a Plan,
    way: Way,
    memory: &'a Plain,
    path: &'a Path,
}

impl System<usize> for Snapshots<'_> {
    type Found = (Row, Curve);

    fn name(&self) -> &str {
        match self.way {
            Way::Fork => FORK,
            Way::Full => "pagetide full",
            Way::PreArmed => "pagetide pre-armed",
            Way::Incremental => "pagetide incremental",
        }
    }

    fn run(&mut self, run: &usize) -> Result<(Row, Curve)> {
        let threads = self.plan.threads;
        let writing = Writing {
            memory: self.memory,
            rate: self.plan.write_rate,
            start: Instant::now(),
            from_ns: AtomicU64::new(u64::MAX),
            until_ns: AtomicU64::new(u64::MAX),
            behind_ns: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
        };
        let mut all: Vec<Findings> = (0..threads).map(|_| Findings::new()).collect();
        let snapshotter = self.snapshotter()?;
        let taken = std::thread::scope(|scope| {
            for (number, findings) in all.iter_mut().enumerate() {
                let writing = &writing;
                scope.spawn(move || write(writing, number, threads, findings));
            }
            let taken = self.take(snapshotter.as_ref(), &writing);
            writing
                .until_ns
                .store(writing.start.elapsed().as_nanos() as u64, SeqCst);
            // What was due before is to be counted, however late.
            std::thread::sleep(LAST_WRITES);
            writing.catch_up(PATIENCE);
            writing.stop.store(true, SeqCst);
            taken
        });
        let _ = std::fs::remove_file(self.path);
        let _ = std::fs::remove_file(self.base_path());
        let mut findings = Findings::new();
        all.iter().for_each(|one| findings.add(one));
        let origin = Duration::from_nanos(writing.from_ns.load(SeqCst));
        let row = self.row(*run, &taken?, &writing, &findings);
        Ok((
            row,
            Curve {
                worst: findings.worst,
                origin,
            },
        ))
    }
}

impl Snapshots<'_> {
    fn base_path(&self) -> PathBuf {
        self.path.with_extension("base")
    }

    /// None for fork, which needs none.
    fn snapshotter(&self) -> Result<Option<Snapshotter>> {
        if self.way == Way::Fork {
            return Ok(None);
        }
        let builder = Snapshotter::builder()
            .memory(self.memory.memory().map_err(Error::other)?)
            .delivery(match self.plan.delivery {
                By::Signal => Delivery::Signal,
                By::Thread => Delivery::Thread,
            })
            .incremental(self.way == Way::Incremental);
        builder.build().map(Some).map_err(Error::other)
    }

    /// Waits for the writers and takes the snapshot; writes count from there.
    fn take(&self, snapshotter: Option<&Snapshotter>, writing: &Writing<'_>) -> Result<Taken> {
        let mut plan = SnapshotPlan::full();
        if let (Way::Incremental, Some(snapshotter)) = (self.way, snapshotter) {
            let base = snapshotter.snapshot(self.base_path(), plan, ParkThreads::default());
            let base = base.and_then(|base| base.wait()).map_err(Error::other)?;
            plan = SnapshotPlan::since(base.id);
        }
        if matches!(self.way, Way::PreArmed | Way::Incremental) {
            plan = plan.pre_armed();
        }
        std::thread::sleep(WARM_UP);
        writing.catch_up(PATIENCE);
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let before = peak_bytes();
        writing
            .from_ns
            .store(writing.start.elapsed().as_nanos() as u64, SeqCst);
        let Some(snapshotter) = snapshotter else {
            return by_fork(self.memory, self.path);
        };
        let snapshot = snapshotter.snapshot(self.path, plan, ParkThreads::default());
        let report = snapshot
            .and_then(|snapshot| snapshot.wait())
            .map_err(Error::other)?;
        Ok(Taken {
            pause: report.pause,
            extra_bytes: report.extra_bytes.max(peak_bytes().saturating_sub(before)),
            file_bytes: report.file_bytes,
        })
    }

    fn row(&self, run: usize, taken: &Taken, writing: &Writing<'_>, found: &Findings) -> Row {
        let quantile = |of: &Histogram<u64>, share| {
            (!of.is_empty()).then(|| of.value_at_quantile(share) as f64 / 1e3)
        };
        let counted = writing.until_ns.load(SeqCst) - writing.from_ns.load(SeqCst);
        let late = &found.late;
        Row {
            system: self.name().to_owned(),
            run,
            size_bytes: self.plan.size,
            write_rate: self.plan.write_rate,
            threads: self.plan.threads,
            pause_ms: taken.pause.as_nanos() as f64 / 1e6,
            write_p50_us: quantile(late, 0.5),
            write_p99_us: quantile(late, 0.99),
            write_p999_us: quantile(late, 0.999),
            write_max_us: (!late.is_empty()).then(|| late.max() as f64 / 1e3),
            first_write_p50_us: quantile(&found.first, 0.5),
            writes: late.len(),
            extra_bytes: taken.extra_bytes,
            file_bytes: taken.file_bytes,
            seconds: counted as f64 / 1e9,
        }
    }
}

/// The same hold, then `fork`.
fn by_fork(memory: &Plain, path: &Path) -> Result<Taken> {
    let start = Instant::now();
    let parked =
        pagetide_kernel::park::park_others(Duration::from_secs(1)).map_err(Error::other)?;
    let child = Child::start(memory, path);
    drop(parked);
    let pause = start.elapsed();
    let (file_bytes, extra_bytes) = child?.wait()?;
    Ok(Taken {
        pause,
        extra_bytes,
        file_bytes,
    })
}

fn peak_bytes() -> u64 {
    sysfs::status_bytes(std::process::id(), "VmHWM").unwrap_or(0)
}
