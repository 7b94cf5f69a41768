//! `pagetide stat`: everything known of one process.
use std::path::Path;
use std::time::Duration;

use pagetide_pager::report::{Request, Statistics};

use crate::bases::Bases;
use crate::control;
use crate::curve::{self, Need};
use crate::exit::{Exit, Failure};
use crate::governed::Governed;
use crate::ledger_file::Reading;
use crate::size::{Bytes, Count};
use crate::text::printable;
use crate::whole::{self, Place};
use crate::{bound, plot, runs, serving};

use super::ps::{self, Listed};

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// In which what was measured comes to be in the ledger.
const PUBLISHING: Duration = Duration::from_millis(200);

/// Shows the statistics of process `pid`, which may be its launcher's: its own answer, or its
/// ledger when it does not answer; or what it says if it serves pages. Or how much memory it needs,
/// measured for so long, also drawn to the file `plot`.
pub fn stat(
    pid: u32,
    json: bool,
    measure_for: Option<Duration>,
    plot: Option<&Path>,
    bases: &Bases,
) -> Result<u8, Failure> {
    bases.check(false)?;
    if let Some(report) = serving::of(pid, bases).filter(|_| measure_for.is_none()) {
        match json {
            true => super::print_json(&report)?,
            false => super::print(&super::served::describe(&report))?,
        }
        return Ok(Exit::Ok.code());
    }
    if let Some(several) = several(pid, bases) {
        if let Some(time) = measure_for {
            return measure_run(&several, json, plot, time, bases);
        }
        match json {
            true => super::print_json(&several.iter().map(Listed::of).collect::<Vec<_>>())?,
            false => super::print(&of_several(pid, several))?,
        }
        return Ok(Exit::Ok.code());
    }
    let process = super::find(pid, bases)?;
    if let Some(time) = measure_for {
        let process = measured(&process, time, bases)?;
        let need = process.reading.measured.as_ref().and_then(Need::of);
        match json {
            true => super::print_json(&need)?,
            false => super::print(&curve::describe(&process))?,
        }
        if let (Some(path), Some(need)) = (plot, &need) {
            draw(&process, need, path)?;
        }
        return Ok(Exit::Ok.code());
    }
    let pid = process.pid;
    let statistics =
        control::ask(&process.socket, &Request::Stat, PATIENCE).unwrap_or_else(|error| {
            super::told(&format!("process {pid}: {error}; showing its ledger"));
            process.reading.statistics.clone()
        });
    if json {
        let reading = Reading {
            statistics,
            ..process.reading.clone()
        };
        super::print_json(&Listed::of(&Governed { reading, ..process }))?;
    } else {
        super::print(&describe(&statistics))?;
    }
    Ok(Exit::Ok.code())
}

/// The processes of the run that launcher `pid` began, where it is not one of several.
fn several(pid: u32, bases: &Bases) -> Option<Vec<Governed>> {
    let found = runs::of_launcher(pid, bases).filter(|found| found.len() > 1)?;
    let is_one = |process: &Governed| process.pid == pid;
    (!runs::all(bases).iter().any(is_one)).then_some(found)
}

/// Shows how much memory the processes of a run need, each and together, measured at one time.
fn measure_run(
    processes: &[Governed],
    json: bool,
    plot: Option<&Path>,
    time: Duration,
    bases: &Bases,
) -> Result<u8, Failure> {
    /// What one of them needs, as `--json` has it.
    #[derive(serde::Serialize)]
    struct Needed {
        pid: u32,
        need: Option<Need>,
    }
    if plot.is_some() {
        let text = "--plot draws one process: name it by its own process ID".to_owned();
        return Err(Failure::new(Exit::Usage, text));
    }
    let measures = |process: &&Governed| !is_measured(process);
    // Who ends meanwhile is left out.
    let begun = processes
        .iter()
        .filter(measures)
        .filter_map(|process| begin_to_measure(process, time).ok());
    if begun.count() > 0 {
        std::thread::sleep(time.saturating_add(PUBLISHING));
    }
    let found = processes
        .iter()
        .filter_map(|process| super::find(process.pid, bases).ok());
    let found: Vec<Governed> = found.collect();
    match json {
        true => {
            let needed = found.iter().map(|process| Needed {
                pid: process.pid,
                need: process.reading.measured.as_ref().and_then(Need::of),
            });
            super::print_json(&needed.collect::<Vec<_>>())?;
        }
        false => match curve::run::describe_run(&found) {
            Some(text) => super::print(&text)?,
            None => {
                let text = "nothing is known yet of what they need: none has had to fetch pages, \
                            or they rest; measure for longer";
                return Err(Failure::new(Exit::Failed, text));
            }
        },
    }
    Ok(Exit::Ok.code())
}

fn is_measured(process: &Governed) -> bool {
    process
        .reading
        .measured
        .as_ref()
        .is_some_and(|measured| measured.on)
}

/// What the processes of a run have together, and each.
fn of_several(run: u32, processes: Vec<Governed>) -> String {
    let s = whole::together(&processes);
    let bound = match s.budget_bytes {
        0 => String::new(),
        bytes => format!(" of {}", Bytes(bytes)),
    };
    // Of their times there is each process's in the table; those of different processes cannot be
    // added up. Nor did the most that each had coincide.
    let topics: String = (topics(&s).into_iter())
        .filter(|(name, _)| *name != "latency")
        .map(line)
        .collect();
    let mut lines = whole::lines(processes);
    lines.retain(|line| line.place != Place::Whole);
    format!(
        "run {run}: {}, {}{bound} resident\n{topics}{}",
        s.command,
        Bytes(s.resident_bytes),
        ps::table(&lines)
    )
}

fn of_memory(s: &Statistics) -> String {
    let bound = match s.memory_budget_bytes {
        0 => String::new(),
        bytes => format!(" of {}", Bytes(bytes)),
    };
    format!(
        "{}{bound}, of which {} is neither resident pages nor the store{}",
        Bytes(s.memory_bytes),
        Bytes(s.other_bytes),
        at_most("; ", s.memory_bytes_max)
    )
}

/// The process, once it is measured how much memory it needs: for so long, unless that is done
/// already.
fn measured(process: &Governed, time: Duration, bases: &Bases) -> Result<Governed, Failure> {
    if !is_measured(process) {
        begin_to_measure(process, time)?;
        // What was seen last is published before it ends.
        std::thread::sleep(time.saturating_add(PUBLISHING));
    }
    super::find(process.pid, bases)
}

fn draw(process: &Governed, need: &Need, path: &Path) -> Result<(), Failure> {
    let picture = plot::curve::draw(&process.reading.statistics.command, need);
    std::fs::write(path, format!("{picture}\n")).map_err(|error| {
        let text = format!("--plot {}: cannot be written ({error})", path.display());
        Failure::new(Exit::Failed, text)
    })
}

fn begin_to_measure(process: &Governed, time: Duration) -> Result<(), Failure> {
    let for_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let answer = control::ask(&process.socket, &Request::Measure { for_ms }, PATIENCE);
    answer.map(|_| ()).map_err(|error| {
        let message = format!("process {} cannot be measured: {error}", process.pid);
        Failure::new(Exit::Failed, message)
    })
}

/// The most that something has been; nothing of runs, where the processes' did not coincide.
fn at_most(before: &str, bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!("{before}at most {}", Bytes(bytes)),
    }
}

/// The statistics of a process, a line a topic.
fn describe(s: &Statistics) -> String {
    let first = [
        ("process", format!("{} {}", s.pid, printable(&s.command))),
        ("running", format!("{:.1} s", s.wall_seconds)),
        ("resident", bound::long(s)),
    ];
    first.into_iter().chain(topics(s)).map(line).collect()
}

fn line((name, value): (&str, String)) -> String {
    format!("{name:<13} {value}\n")
}

/// What there is to say of a process, and of several together.
fn topics(s: &Statistics) -> [(&'static str, String); 10] {
    [
        (
            "managed",
            format!(
                "{}{}",
                Bytes(s.managed_bytes),
                at_most(", ", s.managed_bytes_max)
            ),
        ),
        (
            "store",
            format!(
                "{} for {} pages (ratio {:.2}){}",
                Bytes(s.store_bytes),
                Count(s.store_pages as f64),
                s.compression_ratio,
                at_most(", ", s.store_bytes_max)
            ),
        ),
        ("memory in all", of_memory(s)),
        ("faults", of_faults(s)),
        ("of these", of_these(s)),
        ("latency", super::of_latency(&s.fault_latency_ns)),
        ("stalled", of_stalls(s)),
        (
            "evictions",
            format!(
                "{}: {} clean drops, {} written back ({} same-filled)",
                Count(s.evictions as f64),
                Count(s.clean_drops as f64),
                Count(s.writebacks as f64),
                Count(s.same_filled as f64)
            ),
        ),
        (
            "CPU",
            format!(
                "fault thread {:.2} s, evictor {:.2} s",
                s.fault_thread_cpu_seconds, s.evictor_cpu_seconds
            ),
        ),
        ("store errors", s.errors.to_string()),
    ]
}

fn of_faults(s: &Statistics) -> String {
    format!(
        "{}: {} zero-filled, {} fetched ({} pages in all; {} read ahead, {} of them used, {} with \
         their blocks, and {} by pointers)",
        Count(s.faults as f64),
        Count(s.zero_fills as f64),
        Count(s.fetches as f64),
        Count(s.fetched_pages as f64),
        Count(s.stream_pages() as f64),
        Count(s.prefetch_hits as f64),
        Count(s.block_pages as f64),
        Count(s.pointer_pages as f64)
    )
}

fn of_these(s: &Statistics) -> String {
    format!(
        "{} waited for room ({:.2} %), {} taken back on their way out",
        Count(s.faults_waited as f64),
        100.0 * s.faults_waited as f64 / s.faults.max(1) as f64,
        Count(s.faults_taken_back as f64)
    )
}

fn of_stalls(s: &Statistics) -> String {
    format!(
        "{:.2} s of {:.1} s, all threads added up; for pages that had been taken, {:.0} % of the \
         time that they ran or waited",
        s.stall_seconds,
        s.wall_seconds,
        100.0 * s.stalled()
    )
}
