//! `pagetide stat`: everything known of one process.
use std::time::Duration;

use pagetide_pager::report::{Latency, Request, Statistics};

use crate::bases::Bases;
use crate::control;
use crate::exit::{Exit, Failure};
use crate::governed::printable;
use crate::size::{Bytes, Count, Nanoseconds};

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shows the statistics of process `pid`, which may be its launcher's: its own answer, or its
/// ledger when it does not answer.
pub fn stat(pid: u32, json: bool, bases: &Bases) -> Result<u8, Failure> {
    let process = super::find(pid, bases)?;
    let pid = process.pid;
    let statistics =
        control::ask(&process.socket, &Request::Stat, PATIENCE).unwrap_or_else(|error| {
            eprintln!("pagetide: process {pid}: {error}; showing its ledger");
            process.reading.statistics
        });
    if json {
        super::print_json(&statistics)?;
    } else {
        super::print(&describe(&statistics))?;
    }
    Ok(Exit::Ok.code())
}

/// The statistics, a line a topic.
fn describe(s: &Statistics) -> String {
    let share = 100.0 * s.resident_bytes as f64 / s.budget_bytes.max(1) as f64;
    let lines = [
        ("process", format!("{} {}", s.pid, printable(&s.command))),
        ("running", format!("{:.1} s", s.wall_seconds)),
        (
            "resident",
            format!(
                "{} of {} ({share:.0} %), at most {}",
                Bytes(s.resident_bytes),
                Bytes(s.budget_bytes),
                Bytes(s.resident_bytes_max)
            ),
        ),
        (
            "managed",
            format!(
                "{}, at most {}",
                Bytes(s.managed_bytes),
                Bytes(s.managed_bytes_max)
            ),
        ),
        (
            "store",
            format!(
                "{} for {} pages (ratio {:.2}), at most {}",
                Bytes(s.store_bytes),
                Count(s.store_pages as f64),
                s.compression_ratio,
                Bytes(s.store_bytes_max)
            ),
        ),
        (
            "memory in all",
            format!(
                "{}, at most {}",
                Bytes(s.memory_bytes),
                Bytes(s.memory_bytes_max)
            ),
        ),
        ("faults", of_faults(s)),
        ("of these", of_these(s)),
        ("latency", of_latency(&s.fault_latency_ns)),
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
    ];
    lines
        .iter()
        .map(|(name, value)| format!("{name:<13} {value}\n"))
        .collect()
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
        "{:.2} s of {:.1} s, all threads added up",
        s.stall_seconds, s.wall_seconds
    )
}

fn of_latency(latency: &Latency) -> String {
    format!(
        "mean {}, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
        Nanoseconds(latency.mean),
        Nanoseconds(latency.p50),
        Nanoseconds(latency.p90),
        Nanoseconds(latency.p99),
        Nanoseconds(latency.p999),
        Nanoseconds(latency.max)
    )
}
