//! `snapshot`: live snapshots beside `fork` and a child that writes the same file: same data, same
//! writers, in turns.
use std::collections::BTreeMap;
use std::io::{Error, Result, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use pagetide::Delivery;
use pagetide::track::snapshot::Plan as SnapshotPlan;
use pagetide::track::{ParkThreads, Snapshotter};
use serde::Serialize;

use super::memory::{Child, HugePages, Plain};
use super::writers::{Findings, Writing, write};
use super::{at_least_one, check_plot, median, named, plot, scratch_file, size};
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

/// One run. Times of writes are missing where there were none.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub system: &'static str,
    pub run: usize,
    pub size_bytes: usize,
    pub write_rate: u64,
    pub threads: usize,
    pub pause_ms: f64,
    pub write_p50_us: Option<f64>,
    pub write_p99_us: Option<f64>,
    pub write_p999_us: Option<f64>,
    pub write_max_us: Option<f64>,
    /// Median of first writes to a page that took a fault.
    pub first_write_p50_us: Option<f64>,
    pub writes: u64,
    pub extra_bytes: u64,
    pub file_bytes: u64,
    pub seconds: f64,
}

/// Medians over fork's; missing where there is nothing to compare with.
#[derive(Debug, Clone, Serialize)]
struct Ratio {
    pause_ms: Option<f64>,
    write_p99_us: Option<f64>,
    write_max_us: Option<f64>,
    extra_bytes: Option<f64>,
    seconds: Option<f64>,
}

impl Ratio {
    fn over_fork(way: Way, rows: &[Row]) -> Ratio {
        let over = |of: fn(&Row) -> Option<f64>| {
            let over = middle(rows, way, of).zip(middle(rows, Way::Fork, of));
            let over = over.filter(|(_, fork)| *fork > 0.0);
            over.map(|(ours, fork)| ours / fork)
        };
        Ratio {
            pause_ms: over(|r| Some(r.pause_ms)),
            write_p99_us: over(|r| r.write_p99_us),
            write_max_us: over(|r| r.write_max_us),
            extra_bytes: over(|r| Some(r.extra_bytes as f64)),
            seconds: over(|r| Some(r.seconds)),
        }
    }
}

/// The median of a way's runs; none where none has a value.
fn middle(rows: &[Row], way: Way, of: fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows
        .iter()
        .filter(|row| row.system == way.name())
        .filter_map(of)
        .collect();
    (!values.is_empty()).then(|| median(&values))
}

/// By system; empty where fork was not measured.
fn ratios(ways: &[Way], rows: &[Row]) -> BTreeMap<&'static str, Ratio> {
    let ours = ways.iter().filter(|way| **way != Way::Fork);
    ours.filter(|_| ways.contains(&Way::Fork))
        .map(|way| (way.name(), Ratio::over_fork(*way, rows)))
        .collect()
}

/// All of it, as JSON.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    machine: Machine,
    runs: &'a [Row],
    ratio: BTreeMap<&'static str, Ratio>,
}

/// What a way of taking a snapshot told.
struct Taken {
    pause: Duration,
    extra_bytes: u64,
    file_bytes: u64,
}

/// Measures and prints. Files may stay: call [`crate::undo::all`] afterwards, whatever came out.
pub fn snapshot(plan: &Plan) -> Result<()> {
    if let Some(path) = &plan.plot {
        check_plot(path)?;
    }
    let path = scratch_file(&plan.directory)?;
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
            let (row, findings, origin) = measure(plan, *way, run, &memory, &path)?;
            eprintln!(
                "{:<22} run {}: pause {:.3} ms, write p50 {} p99 {} max {} us, extra {:.1} MiB, \
                 {:.2} s",
                row.system,
                run + 1,
                row.pause_ms,
                cell(row.write_p50_us, 2),
                cell(row.write_p99_us, 1),
                cell(row.write_max_us, 0),
                row.extra_bytes as f64 / f64::from(1 << 20),
                row.seconds
            );
            rows.push(row);
            curves.push((way.name(), findings.worst, origin));
        }
    }
    let text = if plan.json {
        serde_json::to_string(&Outcome {
            machine: Machine::here(),
            ratio: ratios(&ways, &rows),
            runs: &rows,
        })? + "\n"
    } else {
        table(plan, &ways, &rows)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    match &plan.plot {
        Some(path) => std::fs::write(path, plot::draw(&curves)).map_err(|error| named(path, error)),
        None => Ok(()),
    }
}

fn measure(
    plan: &Plan,
    way: Way,
    run: usize,
    memory: &Plain,
    path: &Path,
) -> Result<(Row, Findings, Duration)> {
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
                None => by_fork(memory, path)?,
                Some(snapshotter) => {
                    if way != Way::Full {
                        snapshot_plan = snapshot_plan.pre_armed();
                    }
                    let snapshot =
                        snapshotter.snapshot(path, snapshot_plan, ParkThreads::default());
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
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(&base_path);
    let taken = taken?;
    let mut findings = Findings::new();
    all.iter().for_each(|one| findings.add(one));
    let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let late = &findings.late;
    let quantile =
        |of: &Histogram<u64>, share: f64| (!of.is_empty()).then(|| us(of.value_at_quantile(share)));
    let seconds = (writing.until_ns.load(SeqCst) - writing.from_ns.load(SeqCst)) as f64 / 1e9;
    let row = Row {
        system: way.name(),
        run: run + 1,
        size_bytes: plan.size,
        write_rate: plan.write_rate,
        threads: plan.threads,
        pause_ms: us(taken.pause.as_nanos() as u64) / 1e3,
        write_p50_us: quantile(late, 0.5),
        write_p99_us: quantile(late, 0.99),
        write_p999_us: quantile(late, 0.999),
        write_max_us: (!late.is_empty()).then(|| us(late.max())),
        first_write_p50_us: quantile(&findings.first, 0.5),
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

/// A number with so many decimals, or a dash where there is none.
fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A column of the table: its head, its width, decimals, and what is in it.
type Column = (&'static str, usize, usize, fn(&Row) -> Option<f64>);

const COLUMNS: [Column; 8] = [
    ("pause ms", 9, 3, |r| Some(r.pause_ms)),
    ("p50 us", 8, 2, |r| r.write_p50_us),
    ("p99 us", 9, 1, |r| r.write_p99_us),
    ("p99.9 us", 9, 1, |r| r.write_p999_us),
    ("max us", 9, 0, |r| r.write_max_us),
    ("first us", 10, 2, |r| r.first_write_p50_us),
    ("extra MiB", 10, 1, |r| {
        Some(r.extra_bytes as f64 / f64::from(1 << 20))
    }),
    ("seconds", 8, 2, |r| Some(r.seconds)),
];

fn table(plan: &Plan, ways: &[Way], rows: &[Row]) -> String {
    let machine = Machine::here();
    let mut text = format!(
        "snapshots of {} bytes, populated, THP off, {} writes a second to random pages by {} \
         thread(s), delivery by {}, medians of {} runs\n{}, {} cores, Linux {}\n\n{:<21}",
        plan.size,
        plan.write_rate,
        plan.threads,
        format!("{:?}", plan.delivery).to_lowercase(),
        plan.runs,
        machine.processor,
        machine.cores,
        machine.kernel,
        "",
    );
    // A value wider than its column takes more, but never the space before it.
    for (head, width, ..) in COLUMNS {
        text.push_str(&format!(" {head:>width$}"));
    }
    text.push('\n');
    for way in ways {
        text.push_str(&format!("{:<21}", way.name()));
        for (_, width, decimals, of) in COLUMNS {
            let value = cell(middle(rows, *way, of), decimals);
            text.push_str(&format!(" {value:>width$}"));
        }
        text.push('\n');
    }
    if ways.contains(&Way::Fork) {
        text.push_str("\nover fork (below 1 is better)\n");
        for way in ways.iter().filter(|way| **way != Way::Fork) {
            let ratio = Ratio::over_fork(*way, rows);
            text.push_str(&format!(
                "{:<21} pause {}, p99 {}, max {}, extra memory {}, seconds {}\n",
                way.name(),
                cell(ratio.pause_ms, 3),
                cell(ratio.write_p99_us, 3),
                cell(ratio.write_max_us, 3),
                cell(ratio.extra_bytes, 3),
                cell(ratio.seconds, 2)
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        plan: Plan,
    }

    fn row(system: &'static str, us: Option<f64>) -> Row {
        Row {
            system,
            run: 1,
            size_bytes: 4096,
            write_rate: 1,
            threads: 1,
            pause_ms: 123_456_789.0,
            write_p50_us: us,
            write_p99_us: us,
            write_p999_us: us,
            write_max_us: us,
            first_write_p50_us: us,
            writes: 1,
            extra_bytes: 0,
            file_bytes: 4096,
            seconds: 123_456_789.0,
        }
    }

    #[test]
    fn columns_stay_apart_and_what_was_not_measured_is_a_dash() {
        let plan = Arguments::parse_from(["snapshot"]).plan;
        let rows = [
            row("fork", Some(60_000_000_000.0)),
            row("pagetide full", None),
        ];
        let text = table(&plan, &[Way::Fork, Way::Full], &rows);
        let words = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line[start.len()..].split_whitespace().count()
        };
        assert_eq!(words("fork "), COLUMNS.len(), "{text}");
        assert_eq!(words("pagetide full "), COLUMNS.len(), "{text}");
        assert!(text.contains("p99 -, max -, extra memory -,"), "{text}");
    }
}
