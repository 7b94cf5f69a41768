//! What a worker counts around its timed part: the pager's statistics, the kernel's swap, the
//! process itself.
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use hdrhistogram::Histogram;
use pagetide_kernel::residency::major_faults;
use pagetide_pager::report::{Reply, Request, Statistics};
use rustix::time::{ClockId, clock_gettime};

use super::floor::Floor;
use super::memory::Memory;
use super::task::{Findings, Task};
use crate::statistics::{Spread, histogram};
use crate::sysfs;

/// An access slower than this was not a hit; the same line for every system.
const FAULT_NS: u64 = 1000;

/// Counters of the kernel's swap on the whole machine, in pages.
struct SwapCounters {
    written: u64,
    read_ahead: u64,
    read_ahead_hits: u64,
}

impl SwapCounters {
    fn now() -> SwapCounters {
        let text = sysfs::read("/proc/vmstat").unwrap_or_default();
        let field = |name: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
            let value = pairs.find(|(found, _)| *found == name);
            value.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        SwapCounters {
            written: field("pswpout"),
            read_ahead: field("swap_ra"),
            read_ahead_hits: field("swap_ra_hit"),
        }
    }
}

/// Bytes the swap device of `name` holds: of a zram device its memory, of a file what this process
/// has there.
fn swap_bytes(name: &str) -> u64 {
    let stat = sysfs::read(format!("/sys/block/{name}/mm_stat")).ok();
    let used = stat.and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    used.or_else(|| own_bytes("VmSwap")).unwrap_or(0)
}

fn own_bytes(field: &str) -> Option<u64> {
    sysfs::status_bytes(std::process::id(), field)
}

/// Anonymous memory of this process.
pub fn anonymous_bytes() -> u64 {
    own_bytes("RssAnon").unwrap_or(0)
}

/// Processor time of this process.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The pager's statistics, if there is a pager: the region's, or under `pagetide run` the agent's
/// by its control socket.
fn statistics(memory: &Memory) -> Option<Statistics> {
    if let Some(region) = memory.as_region() {
        return Some(region.stats());
    }
    let directory = PathBuf::from(std::env::var_os("PAGETIDE_RUN_DIR")?);
    let mut socket =
        UnixStream::connect(directory.join(format!("{}.sock", std::process::id()))).ok()?;
    let request = serde_json::to_string(&Request::Stat).ok()? + "\n";
    socket.write_all(request.as_bytes()).ok()?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).ok()?;
    match serde_json::from_str(&line).ok()? {
        Reply::Ok { statistics } => Some(*statistics),
        Reply::Error { .. } => None,
    }
}

/// Counters before the timed part.
pub struct Before {
    statistics: Option<Statistics>,
    swap: SwapCounters,
    major_faults: u64,
    floor_faults: u64,
    cpu: f64,
    clock: Instant,
}

impl Before {
    /// Counts.
    pub fn now(memory: &Memory) -> Before {
        Before {
            statistics: statistics(memory),
            swap: SwapCounters::now(),
            major_faults: major_faults(),
            floor_faults: memory.as_floor().map_or(0, Floor::faults),
            cpu: cpu_seconds(),
            clock: Instant::now(),
        }
    }

    /// What happened since; `times` are of each thread, of each phase.
    pub fn findings(
        &self,
        task: &Task,
        memory: &Memory,
        times: &[Vec<Histogram<u64>>],
    ) -> Findings {
        let seconds = self.clock.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds() - self.cpu;
        let major_faults = major_faults() - self.major_faults;
        let resident_bytes = anonymous_bytes();
        let mut findings = Findings {
            seconds,
            cpu_seconds,
            faults: major_faults,
            major_faults,
            resident_bytes,
            resident_max_bytes: resident_bytes,
            ..Findings::default()
        };
        if let Some(name) = &task.swap {
            self.add_swap(&mut findings, name);
        }
        if let Some(floor) = memory.as_floor() {
            findings.faults = floor.faults() - self.floor_faults;
            findings.store_bytes = floor.store_bytes();
        }
        if let (Some(before), Some(now)) = (&self.statistics, statistics(memory)) {
            add_pager(&mut findings, before, &now);
            let region = memory.as_region();
            findings.region_bytes_max = region.map(|_| now.resident_bytes_max);
        }
        // At last, as it uses memory: that is not to count.
        spread(&mut findings, times);
        findings
    }

    fn add_swap(&self, findings: &mut Findings, device: &str) {
        let now = SwapCounters::now();
        let hits = now
            .read_ahead_hits
            .saturating_sub(self.swap.read_ahead_hits);
        let read = now.read_ahead.saturating_sub(self.swap.read_ahead);
        findings.store_bytes = swap_bytes(device);
        findings.store_writes = now.written.saturating_sub(self.swap.written);
        findings.prefetch_coverage = share(hits, hits + findings.faults);
        findings.prefetch_accuracy = share(hits, read);
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn add_pager(findings: &mut Findings, before: &Statistics, now: &Statistics) {
    findings.faults = now.faults - before.faults;
    findings.resident_max_bytes = now.resident_bytes_max;
    findings.store_bytes = now.store_bytes;
    findings.store_writes = now.writebacks - before.writebacks;
    let hits = now.prefetch_hits - before.prefetch_hits;
    findings.prefetch_coverage = share(hits, hits + now.fetches - before.fetches);
    // A stream under way at the start may be settled by its first miss in the timed part.
    let prefetched = now.stream_pages().saturating_sub(before.stream_pages());
    findings.prefetch_accuracy = share(hits, prefetched).map(|accuracy| accuracy.min(1.0));
}

fn spread(findings: &mut Findings, times: &[Vec<Histogram<u64>>]) {
    let (mut all, mut slow) = (histogram(), histogram());
    for phase in 0..times.first().map_or(0, Vec::len) {
        let mut sum = histogram();
        times.iter().for_each(|thread| sum += &thread[phase]);
        findings.phases.push(Spread::of(&sum));
        all += sum;
    }
    for value in all.iter_recorded() {
        let (time, count) = (
            value.value_iterated_to(),
            value.count_since_last_iteration(),
        );
        if time > FAULT_NS {
            slow.saturating_record_n(time, count);
        }
        match findings.distribution.last_mut() {
            // Two in a hundred apart is as fine as can be drawn.
            Some((last, sum)) if time * 50 < *last * 51 => *sum += count,
            _ => findings.distribution.push((time, count)),
        }
    }
    findings.all = Spread::of(&all);
    findings.slow = Spread::of(&slow);
}
