//! `snapshot`: live snapshots beside `fork` and a child that writes the same file: same data, same writers, in turns.
use std::io::{Error, Result, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use pagetide::track::snapshot::Plan as SnapshotPlan;
use pagetide::track::{Delivery, ParkThreads, Snapshotter};
use serde::Serialize;

use super::memory::{Child, HugePages, Plain};
use super::writers::{Findings, Writing, write};
use super::{median, plot, size};
use crate::machine::Machine;

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
    #[arg(long, default_value_t = 100_000)]
    pub write_rate: u64,
    /// Writing threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Whom to compare with
    #[arg(long, value_enum, default_value = "fork")]
    pub peer: Peer,
    /// How first writes reach the snapshotter
    #[arg(long, value_enum, default_value = "signal")]
    pub delivery: By,
    /// Times each way is measured, in turns; medians count
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// Where the files are written, and removed again
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
    /// Print JSON rows, one a run
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

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Fork => "fork",
            Way::Full => "pagetide full",
            Way::PreArmed => "pagetide pre-armed",
            Way::Incremental => "pagetide incremental",
        }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub system: &'static str,
    pub run: usize,
    pub size_bytes: usize,
    pub write_rate: u64,
    pub threads: usize,
    pub pause_ms: f64,
    pub write_p50_us: f64,
    pub write_p99_us: f64,
    pub write_p999_us: f64,
    pub write_max_us: f64,
    /// Median of first writes to a page that took a fault.
    pub first_write_p50_us: f64,
    pub writes: u64,
    pub extra_bytes: u64,
    pub file_bytes: u64,
    pub seconds: f64,
}

/// What a way of taking a snapshot told.
struct Taken {
    pause: Duration,
    extra_bytes: u64,
    file_bytes: u64,
}

/// Measures and prints.
pub fn snapshot(plan: &Plan) -> Result<()> {
    if plan.runs == 0 || plan.threads == 0 || plan.write_rate == 0 {
        return Err(Error::other(
            "--runs, --threads and --write-rate must be at least 1",
        ));
    }
    let memory = Plain::new(plan.size, HugePages::Never)?;
    memory.populate(1);
    let mut ways = vec![Way::Full, Way::PreArmed, Way::Incremental];
    if plan.peer == Peer::Fork {
        ways.insert(0, Way::Fork);
    }
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for run in 0..plan.runs {
        curves.clear();
        for way in &ways {
            let (row, findings, origin) = measure(plan, *way, run, &memory)?;
            eprintln!(
                "{:<22} run {}: pause {:.3} ms, write p50 {:.2} p99 {:.1} max {:.0} us, extra {:.1} MiB, {:.2} s",
                row.system,
                run + 1,
                row.pause_ms,
                row.write_p50_us,
                row.write_p99_us,
                row.write_max_us,
                row.extra_bytes as f64 / f64::from(1 << 20),
                row.seconds
            );
            rows.push(row);
            curves.push((way.name(), findings.worst, origin));
        }
    }
    if let Some(path) = &plan.plot {
        std::fs::write(path, plot::draw(&curves))?;
    }
    let text = if plan.json {
        serde_json::to_string_pretty(&rows)? + "\n"
    } else {
        table(plan, &ways, &rows)
    };
    std::io::stdout().write_all(text.as_bytes())
}

fn measure(plan: &Plan, way: Way, run: usize, memory: &Plain) -> Result<(Row, Findings, Duration)> {
    let path = plan
        .directory
        .join(format!("pagetide-bench-{}.snapshot", std::process::id()));
    let base_path = path.with_extension("base");
    let writing = Writing {
        memory,
        rate: plan.write_rate,
        start: Instant::now(),
        from_ns: AtomicU64::new(u64::MAX),
        until_ns: AtomicU64::new(u64::MAX),
        behind_ns: (0..plan.threads).map(|_| AtomicU64::new(0)).collect(),
        stop: AtomicBool::new(false),
    };
    let mut all: Vec<Findings> = (0..plan.threads).map(|_| Findings::new()).collect();
    let delivery = match plan.delivery {
        By::Signal => Delivery::Signal,
        By::Thread => Delivery::Thread,
    };
    let snapshotter = match way {
        Way::Fork => None,
        way => {
            let builder = Snapshotter::builder()
                .memory(memory.memory().map_err(Error::other)?)
                .delivery(delivery)
                .incremental(way == Way::Incremental);
            Some(builder.build().map_err(Error::other)?)
        }
    };
    let mut origin = Duration::ZERO;
    let taken = std::thread::scope(|scope| {
        for (number, findings) in all.iter_mut().enumerate() {
            let writing = &writing;
            scope.spawn(move || write(writing, number, plan.threads, findings));
        }
        let taken = (|| {
            let mut snapshot_plan = SnapshotPlan::full();
            if let (Way::Incremental, Some(snapshotter)) = (way, &snapshotter) {
                let base = snapshotter.snapshot(&base_path, snapshot_plan, ParkThreads::default());
                let base = base.and_then(|base| base.wait()).map_err(Error::other)?;
                snapshot_plan = SnapshotPlan::since(base.id);
            }
            std::thread::sleep(WARM_UP);
            writing.catch_up(PATIENCE);
            let _ = std::fs::write("/proc/self/clear_refs", "5");
            let before = peak_bytes();
            origin = writing.start.elapsed();
            writing.from_ns.store(origin.as_nanos() as u64, SeqCst);
            let mut taken = match &snapshotter {
                None => by_fork(memory, &path)?,
                Some(snapshotter) => {
                    if way != Way::Full {
                        snapshot_plan = snapshot_plan.pre_armed();
                    }
                    let snapshot =
                        snapshotter.snapshot(&path, snapshot_plan, ParkThreads::default());
                    let report = snapshot.and_then(|s| s.wait()).map_err(Error::other)?;
                    Taken {
                        pause: report.pause,
                        extra_bytes: report.extra_bytes,
                        file_bytes: report.file_bytes,
                    }
                }
            };
            if snapshotter.is_some() {
                taken.extra_bytes = taken.extra_bytes.max(peak_bytes().saturating_sub(before));
            }
            Ok::<Taken, Error>(taken)
        })();
        writing
            .until_ns
            .store(writing.start.elapsed().as_nanos() as u64, SeqCst);
        // What was due before is to be counted, however late.
        std::thread::sleep(LAST_WRITES);
        writing.catch_up(PATIENCE);
        writing.stop.store(true, SeqCst);
        taken
    });
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(&base_path);
    let taken = taken?;
    let mut findings = Findings::new();
    all.iter().for_each(|one| findings.add(one));
    let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let late = &findings.late;
    let seconds = (writing.until_ns.load(SeqCst) - writing.from_ns.load(SeqCst)) as f64 / 1e9;
    let row = Row {
        system: way.name(),
        run: run + 1,
        size_bytes: plan.size,
        write_rate: plan.write_rate,
        threads: plan.threads,
        pause_ms: us(taken.pause.as_nanos() as u64) / 1e3,
        write_p50_us: us(late.value_at_quantile(0.5)),
        write_p99_us: us(late.value_at_quantile(0.99)),
        write_p999_us: us(late.value_at_quantile(0.999)),
        write_max_us: us(late.max()),
        first_write_p50_us: us(findings.first.value_at_quantile(0.5)),
        writes: late.len(),
        extra_bytes: taken.extra_bytes,
        file_bytes: taken.file_bytes,
        seconds,
    };
    Ok((row, findings, origin))
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
    crate::sysfs::status_bytes(std::process::id(), "VmHWM").unwrap_or(0)
}

fn table(plan: &Plan, ways: &[Way], rows: &[Row]) -> String {
    let machine = Machine::here();
    let mut text = format!(
        "snapshots of {} bytes, populated, THP off, {} writes a second to random pages by {} thread(s), delivery by {}, medians of {} runs\n{}, {} cores, Linux {}\n\n{:<22}{:>10}{:>9}{:>10}{:>10}{:>10}{:>11}{:>11}{:>9}\n",
        plan.size,
        plan.write_rate,
        plan.threads,
        format!("{:?}", plan.delivery).to_lowercase(),
        plan.runs,
        machine.processor,
        machine.cores,
        machine.kernel,
        "",
        "pause ms",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "first us",
        "extra MiB",
        "seconds"
    );
    let middle = |way: &Way, of: fn(&Row) -> f64| {
        let values: Vec<f64> = rows
            .iter()
            .filter(|row| row.system == way.name())
            .map(of)
            .collect();
        median(&values)
    };
    let columns: [fn(&Row) -> f64; 8] = [
        |r| r.pause_ms,
        |r| r.write_p50_us,
        |r| r.write_p99_us,
        |r| r.write_p999_us,
        |r| r.write_max_us,
        |r| r.first_write_p50_us,
        |r| r.extra_bytes as f64 / f64::from(1 << 20),
        |r| r.seconds,
    ];
    for way in ways {
        let v = columns.map(|of| middle(way, of));
        text.push_str(&format!(
            "{:<22}{:>10.3}{:>9.2}{:>10.1}{:>10.1}{:>10.0}{:>11.2}{:>11.1}{:>9.2}\n",
            way.name(),
            v[0],
            v[1],
            v[2],
            v[3],
            v[4],
            v[5],
            v[6],
            v[7]
        ));
    }
    if ways.contains(&Way::Fork) {
        text.push_str("\nover fork (below 1 is better)\n");
        for way in ways.iter().filter(|way| **way != Way::Fork) {
            let ratio = |of: fn(&Row) -> f64| middle(way, of) / middle(&Way::Fork, of);
            text.push_str(&format!(
                "{:<22}pause {:.3}, p99 {:.3}, max {:.3}, extra memory {:.3}, seconds {:.2}\n",
                way.name(),
                ratio(|r| r.pause_ms),
                ratio(|r| r.write_p99_us),
                ratio(|r| r.write_max_us),
                ratio(|r| r.extra_bytes as f64),
                ratio(|r| r.seconds)
            ));
        }
    }
    text
}
