//! The process that is measured: fills its memory, warms up, times every access, and checks at the
//! end that nothing was lost.
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use pagetide::Delivery;
use pagetide_pager::page::policy::Kind;
use pagetide_pager::report::{Reply, Request, Statistics};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::device;
use super::floor::Floor;
use super::graph::{Answer, Graph, Shape};
use super::machine_counters::{SwapCounters, major_faults, swap_bytes};
use super::memory::Memory;
use super::pattern::{Pattern, Sequence, Space};
use crate::content::{self, COUNTER_WORD, PAGE_BYTES, PAGE_WORDS};
use crate::sysfs;

/// An access slower than this was not a hit; the same line for every system.
pub const FAULT_NS: u64 = 1000;

/// Where the data live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Home {
    /// Plain memory, whatever happens to it from outside
    Plain,
    /// A region, faults served by its thread
    Thread,
    /// A region, faults served in the faulting thread
    Signal,
    /// A bare handler that installs one and the same page
    Floor,
    /// A bare handler that installs pages of the store
    FloorStore,
    /// No memory at all: a file on the device, read page by page
    Device,
}

/// What the worker is asked to do.
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct Task {
    #[arg(long)]
    pub bytes: usize,
    #[arg(long)]
    pub resident: u64,
    #[arg(long, value_enum)]
    pub pattern: Pattern,
    #[arg(long, default_value_t = 0)]
    pub writes: u32,
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    #[arg(long)]
    pub accesses: u64,
    #[arg(long)]
    pub warmup: u64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[arg(long, default_value_t = 0.5)]
    pub compressibility: f64,
    #[arg(long, value_enum, default_value = "plain")]
    pub home: Home,
    #[arg(long, default_value = "ram:")]
    pub store: String,
    #[arg(long, default_value = Kind::default().name())]
    pub policy: Kind,
    /// A cgroup directory to enter before any memory is used
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// The swap device, such as zram0
    #[arg(long)]
    pub swap: Option<String>,
    /// The graph, as a file; or the file on the device
    #[arg(long)]
    pub graph: Option<PathBuf>,
}

impl Task {
    /// The same as command-line words.
    pub fn to_words(&self) -> Vec<String> {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map_or(String::new(), |value| value.get_name().to_owned())
        };
        let mut words = vec![
            "paging-worker".to_owned(),
            format!("--bytes={}", self.bytes),
            format!("--resident={}", self.resident),
            format!("--pattern={}", name(&|| self.pattern.to_possible_value())),
            format!("--writes={}", self.writes),
            format!("--threads={}", self.threads),
            format!("--accesses={}", self.accesses),
            format!("--warmup={}", self.warmup),
            format!("--seed={}", self.seed),
            format!("--compressibility={}", self.compressibility),
            format!("--home={}", name(&|| self.home.to_possible_value())),
            format!("--store={}", self.store),
            format!("--policy={}", self.policy.name()),
        ];
        let paths = [("cgroup", &self.cgroup), ("graph", &self.graph)];
        for (name, path) in paths {
            words.extend(path.iter().map(|p| format!("--{name}={}", p.display())));
        }
        words.extend(self.swap.iter().map(|name| format!("--swap={name}")));
        words
    }
}

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Spread {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// What the worker prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Findings {
    /// Of every access (of every vertex, on a graph), hits included.
    pub all: Spread,
    /// Of those slower than [`FAULT_NS`].
    pub slow: Spread,
    /// Upper bounds in nanoseconds and how many accesses took so long.
    pub distribution: Vec<(u64, u64)>,
    /// Of the timed part.
    pub seconds: f64,
    /// Processor time of the whole process, the pager's threads included, in the timed part.
    pub cpu_seconds: f64,
    /// Faults: of the pager, or major ones of the kernel, in the timed part.
    pub faults: u64,
    /// The most bytes resident; in plain memory, those at the end.
    pub resident_max_bytes: u64,
    /// Bytes held by the store, or by the swap device, at the end of the timed part.
    pub store_bytes: u64,
    /// Pages written to the store, or to swap, in the timed part.
    pub store_writes: u64,
    /// Of the pages needed, the share that prefetch had brought; and of those it brought, the share
    /// needed.
    pub prefetch_coverage: Option<f64>,
    #[allow(missing_docs)]
    pub prefetch_accuracy: Option<f64>,
    /// Of all words at the end.
    pub checksum: Option<String>,
    /// Of a graph.
    pub answer: Option<Answer>,
    /// The kernel was told not to use huge pages for this process.
    pub thp_disabled: bool,
}

/// Fixed range (1 ns to 60 s) and precision, so that recording never allocates.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

fn spread(histogram: &Histogram<u64>) -> Spread {
    if histogram.is_empty() {
        return Spread::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64;
    Spread {
        count: histogram.len(),
        mean: histogram.mean(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max() as f64,
    }
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

/// Faults so far: the kernel's count of major ones, unless a bare handler serves them.
fn faults(memory: &Memory) -> u64 {
    memory.as_floor().map_or_else(major_faults, Floor::faults)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Counters before the timed part.
struct Before {
    statistics: Option<Statistics>,
    swap: SwapCounters,
    faults: u64,
    cpu: f64,
    clock: Instant,
}

impl Before {
    fn now(memory: &Memory) -> Before {
        Before {
            statistics: statistics(memory),
            swap: SwapCounters::now(),
            faults: faults(memory),
            cpu: cpu_seconds(),
            clock: Instant::now(),
        }
    }

    /// What happened since.
    fn findings(
        &self,
        task: &Task,
        memory: &Memory,
        times: &[Histogram<u64>],
        thp_disabled: bool,
    ) -> Findings {
        let seconds = self.clock.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds() - self.cpu;
        let faults = faults(memory) - self.faults;
        let swap = SwapCounters::now().since(self.swap);
        let (mut all, mut slow) = (histogram(), histogram());
        let mut distribution: Vec<(u64, u64)> = Vec::new();
        times.iter().for_each(|times| all += times);
        for value in all.iter_recorded() {
            let (time, count) = (
                value.value_iterated_to(),
                value.count_since_last_iteration(),
            );
            if time > FAULT_NS {
                slow.saturating_record_n(time, count);
            }
            match distribution.last_mut() {
                // Two in a hundred apart is as fine as can be drawn.
                Some((last, sum)) if time * 50 < *last * 51 => *sum += count,
                _ => distribution.push((time, count)),
            }
        }
        let mut findings = Findings {
            all: spread(&all),
            slow: spread(&slow),
            distribution,
            seconds,
            cpu_seconds,
            faults,
            resident_max_bytes: sysfs::status_bytes(std::process::id(), "RssAnon").unwrap_or(0),
            store_bytes: task.swap.as_deref().map_or(0, swap_bytes),
            store_writes: if task.swap.is_some() { swap.written } else { 0 },
            prefetch_coverage: None,
            prefetch_accuracy: None,
            checksum: None,
            answer: None,
            thp_disabled,
        };
        if let Some(floor) = memory.as_floor() {
            findings.store_bytes = floor.store_bytes();
        }
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        if task.swap.is_some() {
            findings.prefetch_coverage = share(swap.read_ahead_hits, swap.read_ahead_hits + faults);
            findings.prefetch_accuracy = share(swap.read_ahead_hits, swap.read_ahead);
        }
        if let (Some(before), Some(now)) = (&self.statistics, statistics(memory)) {
            findings.faults = now.faults - before.faults;
            findings.resident_max_bytes = now.resident_bytes_max;
            findings.store_bytes = now.store_bytes;
            findings.store_writes = now.writebacks - before.writebacks;
            let hits = now.prefetch_hits - before.prefetch_hits;
            let fetches = now.fetches - before.fetches;
            findings.prefetch_coverage = share(hits, hits + fetches);
            // A stream under way at the start may be settled by its first miss in the timed part.
            findings.prefetch_accuracy =
                share(hits, now.prefetched_pages - before.prefetched_pages).map(|a| a.min(1.0));
        }
        findings
    }
}

/// Does what `task` asks; an error says what was wrong or lost.
pub fn work(task: &Task) -> Result<Findings, String> {
    if let Some(directory) = &task.cgroup {
        let procs = directory.join("cgroup.procs");
        fs::write(&procs, "0").map_err(|error| format!("entering {}: {error}", procs.display()))?;
    }
    let thp_disabled = rustix::thread::disable_transparent_huge_pages(true).is_ok();
    let memory = match task.home {
        Home::Plain => Memory::plain(task.bytes)?,
        Home::Thread => Memory::region(task, Delivery::Thread)?,
        Home::Signal => Memory::region(task, Delivery::Signal)?,
        Home::Floor => Memory::floor(task, false, &content(task))?,
        Home::FloorStore => Memory::floor(task, true, &content(task))?,
        Home::Device => return read_device(task, thp_disabled),
    };
    match task.pattern {
        Pattern::Graph => walk_graph(task, &memory, thp_disabled),
        _ => access_pages(task, &memory, thp_disabled),
    }
}

fn read_device(task: &Task, thp_disabled: bool) -> Result<Findings, String> {
    let path = task.graph.as_ref().ok_or("the device needs --graph FILE")?;
    let space = Space {
        pages: (task.bytes / PAGE_BYTES) as u64,
        resident: task.resident / PAGE_BYTES as u64,
        threads: 1,
    };
    let mut sequence = Sequence::new(task.pattern, space, 0, task.seed);
    let (clock, cpu) = (Instant::now(), cpu_seconds());
    let all = device::read(path, || sequence.page(), task.accesses)?;
    Ok(Findings {
        all: spread(&all),
        slow: spread(&all),
        distribution: Vec::new(),
        seconds: clock.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu,
        faults: task.accesses,
        resident_max_bytes: 0,
        store_bytes: 0,
        store_writes: 0,
        prefetch_coverage: None,
        prefetch_accuracy: None,
        checksum: None,
        answer: None,
        thp_disabled,
    })
}

fn walk_graph(task: &Task, memory: &Memory, thp_disabled: bool) -> Result<Findings, String> {
    let path = task.graph.as_ref().ok_or("a graph needs --graph FILE")?;
    let shape = Shape::filling(task.bytes as u64);
    File::open(path)
        .and_then(|mut file| Graph::read_from(memory, shape, &mut file))
        .map_err(|error| format!("reading {}: {error}", path.display()))?;
    let graph = Graph::in_memory(memory, shape);
    let mut times: Vec<_> = (0..task.threads).map(|_| histogram()).collect();
    let before = Before::now(memory);
    graph.run(task.threads, &mut times);
    let mut findings = before.findings(task, memory, &times, thp_disabled);
    findings.answer = Some(graph.answer());
    Ok(findings)
}

/// What the pages are to hold.
fn content(task: &Task) -> content::Content {
    content::Content {
        seed: task.seed,
        random_words: (PAGE_WORDS as f64 * (1.0 - task.compressibility)).round() as usize,
    }
}

fn access_pages(task: &Task, memory: &Memory, thp_disabled: bool) -> Result<Findings, String> {
    let content = content(task);
    let floor = memory.as_floor();
    let has_contents = floor.is_none_or(Floor::has_contents);
    if floor.is_none() {
        for page in 0..memory.pages() {
            for (index, word) in memory.page(page).iter().enumerate() {
                word.store(content.word(page, index), Relaxed);
            }
        }
    }
    let space = Space {
        pages: memory.pages() as u64,
        resident: task.resident / PAGE_BYTES as u64,
        threads: task.threads as u64,
    };
    let mut times: Vec<_> = (0..task.threads).map(|_| histogram()).collect();
    let (warm, go) = (
        Barrier::new(task.threads + 1),
        Barrier::new(task.threads + 1),
    );
    let (mut before, mut written) = (None, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = times
            .iter_mut()
            .enumerate()
            .map(|(thread, times)| {
                let (warm, go, content) = (&warm, &go, &content);
                let mut accessor = Accessor {
                    memory,
                    sequence: Sequence::new(task.pattern, space, thread as u64, task.seed),
                    writes: task.writes,
                    content: has_contents.then_some(content),
                    written: 0,
                };
                scope.spawn(move || {
                    let share = |count: u64| count / task.threads as u64;
                    let mut unused = histogram();
                    let warmed = accessor.access(share(task.warmup), &mut unused);
                    drop(unused);
                    warm.wait();
                    go.wait();
                    warmed.and_then(|()| accessor.access(share(task.accesses), times))?;
                    Ok::<u64, String>(accessor.written)
                })
            })
            .collect();
        warm.wait();
        before = Some(Before::now(memory));
        go.wait();
        for thread in threads {
            written += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok::<(), String>(())
    })?;
    let before = before.ok_or("the timed part never began")?;
    let mut findings = before.findings(task, memory, &times, thp_disabled);
    if has_contents {
        findings.checksum = Some(verify(memory, &content, written)?);
    }
    Ok(findings)
}

/// One thread's accesses.
struct Accessor<'a> {
    memory: &'a Memory,
    sequence: Sequence,
    writes: u32,
    /// What is to be found, if anything is.
    content: Option<&'a content::Content>,
    written: u64,
}

impl Accessor<'_> {
    fn access(&mut self, count: u64, times: &mut Histogram<u64>) -> Result<(), String> {
        for _ in 0..count {
            let page = self.sequence.page() as usize;
            let random = self.sequence.random();
            let write = self.writes > 0 && random.below(100) < u64::from(self.writes);
            if write {
                let counter = self.memory.word(page, COUNTER_WORD);
                let start = Instant::now();
                counter.fetch_add(1, Relaxed);
                times.saturating_record(start.elapsed().as_nanos() as u64);
                self.written += 1;
                continue;
            }
            let index = 1 + random.below(PAGE_WORDS as u64 - 1) as usize;
            let word = self.memory.word(page, index);
            let start = Instant::now();
            let found = word.load(Relaxed);
            times.saturating_record(start.elapsed().as_nanos() as u64);
            let expected = self.content.map(|content| content.word(page, index));
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                return Err(format!(
                    "word {index} of page {page} is {found:#x}, not {expected:#x}"
                ));
            }
        }
        Ok(())
    }
}

/// Compares every word with what it must be; returns the checksum of all.
fn verify(memory: &Memory, content: &content::Content, written: u64) -> Result<String, String> {
    let (mut counted, mut checksum) = (0u64, 0u64);
    for page in 0..memory.pages() {
        for (index, word) in memory.page(page).iter().enumerate() {
            let (found, expected) = (word.load(Relaxed), content.word(page, index));
            if index == COUNTER_WORD {
                counted += found.wrapping_sub(expected);
            } else if found != expected {
                return Err(format!(
                    "at the end word {index} of page {page} is {found:#x}, not {expected:#x}"
                ));
            }
            checksum = (checksum.rotate_left(5) ^ found).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    if counted != written {
        return Err(format!(
            "{written} writes were done and {counted} were kept"
        ));
    }
    Ok(format!("{checksum:016x}"))
}
