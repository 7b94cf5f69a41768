//! The program that is measured: it maps memory, fills it, and times every single access. It knows
//! of no pager, unless it is asked to work in a region.
#![allow(unsafe_code)] // maps anonymous memory and reads it through raw pointers, as any program does
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::time::Instant;

use clap::Args;
use hdrhistogram::Histogram;
use pagetide::{Delivery, Region};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use serde::{Deserialize, Serialize};

use crate::content::{self, COUNTER_WORD, PAGE_BYTES, PAGE_WORDS, Random};
use crate::sysfs;

/// What the worker is asked to do.
#[derive(Debug, Clone, Args)]
pub struct Parameters {
    /// Bytes of anonymous memory to work on.
    #[arg(long, default_value_t = 1 << 30)]
    pub bytes: usize,
    /// Timed accesses of each kind: so many reads, then so many writes.
    #[arg(long, default_value_t = 400_000)]
    pub accesses: u64,
    /// Reads before the clock runs.
    #[arg(long, default_value_t = 100_000)]
    pub warmup: u64,
    /// Decides the contents and the order of accesses.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A cgroup directory to enter before any memory is used.
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Work in a `pagetide::Region` with at most so many bytes resident, rather than in plain
    /// memory.
    #[arg(long)]
    pub region: Option<u64>,
    /// Serve the region's faults in the faulting thread.
    #[arg(long, requires = "region")]
    pub region_signal: bool,
    /// The region's store.
    #[arg(long, requires = "region", default_value = "ram:")]
    pub region_store: String,
}

impl Parameters {
    /// The same parameters as command-line words.
    pub fn to_words(&self) -> Vec<String> {
        let mut words = vec![
            format!("--bytes={}", self.bytes),
            format!("--accesses={}", self.accesses),
            format!("--warmup={}", self.warmup),
            format!("--seed={}", self.seed),
        ];
        words.extend(
            self.cgroup
                .iter()
                .map(|path| format!("--cgroup={}", path.display())),
        );
        if let Some(resident) = self.region {
            words.push(format!("--region={resident}"));
            words.push(format!("--region-store={}", self.region_store));
            words.extend(self.region_signal.then(|| "--region-signal".to_owned()));
        }
        words
    }
}

/// Times of one kind of access, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Times {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// What the worker prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Findings {
    /// Reads of one word of a random page.
    pub read: Times,
    /// Read-modify-writes of one word of a random page.
    pub write: Times,
    /// Median cost of reading the clock, contained in every time above.
    pub clock_ns: f64,
    /// Seconds to fill the memory, to do the timed accesses, and to verify everything at the end.
    pub fill_seconds: f64,
    #[allow(missing_docs)]
    pub access_seconds: f64,
    #[allow(missing_docs)]
    pub verify_seconds: f64,
    /// Major faults during the timed accesses (the kernel's swap-ins; a pager's fetches are not
    /// among them).
    pub major_faults: u64,
    /// RssAnon before the memory was mapped: the worker's own.
    pub own_bytes: u64,
    /// RssAnon after the timed accesses.
    pub resident_bytes: u64,
    /// Whether the kernel was told not to use huge pages for this process.
    pub thp_disabled: bool,
    /// The most bytes of its region that were resident, if it worked in one.
    pub region_bytes_max: Option<u64>,
    /// Of all words at the end: the same for every system, or something was lost.
    pub checksum: String,
}

/// The mapped memory, as pages of words.
struct Memory {
    start: *mut u64,
    pages: usize,
    /// Owns the memory, if it is a region's.
    region: Option<Region>,
}

impl Memory {
    fn new(parameters: &Parameters) -> Result<Memory, String> {
        match parameters.region {
            None => Memory::map(parameters.bytes),
            Some(resident) => {
                let region = Region::builder()
                    .length(parameters.bytes)
                    .resident(resident)
                    .store_uri(&parameters.region_store)
                    .delivery(match parameters.region_signal {
                        true => Delivery::Signal,
                        false => Delivery::Thread,
                    })
                    .build()
                    .map_err(|error| error.to_string())?;
                Ok(Memory {
                    start: region.as_ptr().cast(),
                    pages: parameters.bytes / PAGE_BYTES,
                    region: Some(region),
                })
            }
        }
    }

    fn map(bytes: usize) -> Result<Memory, String> {
        let pages = bytes / PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                pages * PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }
        .map_err(|error| format!("mapping {bytes} bytes: {error}"))?;
        Ok(Memory {
            start: start.cast(),
            pages,
            region: None,
        })
    }

    fn word(&self, page: u64, index: usize) -> *mut u64 {
        assert!((page as usize) < self.pages && index < PAGE_WORDS);
        // SAFETY: the assertion keeps the pointer inside the mapping, which lives as long as the
        // process.
        unsafe { self.start.add(page as usize * PAGE_WORDS + index) }
    }

    fn page(&mut self, page: usize) -> &mut [u64] {
        let start = self.word(page as u64, 0);
        // SAFETY: `word` checked the page; `&mut self` makes this the only reference into the
        // mapping.
        unsafe { std::slice::from_raw_parts_mut(start, PAGE_WORDS) }
    }

    fn read(&self, page: u64, index: usize) -> u64 {
        // SAFETY: `word` gives a pointer into the mapping; nothing else writes there, the process
        // has one thread.
        unsafe { self.word(page, index).read_volatile() }
    }

    fn count_up(&self, page: u64) -> u64 {
        let word = self.word(page, COUNTER_WORD);
        // SAFETY: as in `read`.
        unsafe {
            let before = word.read_volatile();
            word.write_volatile(before.wrapping_add(1));
            before
        }
    }
}

/// Fixed range (1 ns to 60 s) and precision, so that recording never allocates.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

fn times(histogram: &Histogram<u64>) -> Times {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64;
    Times {
        mean: histogram.mean(),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max() as f64,
    }
}

fn clock_cost() -> f64 {
    let mut costs: Vec<u64> = (0..10_000)
        .map(|_| Instant::now().elapsed().as_nanos() as u64)
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2] as f64
}

fn major_faults() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(9)?.parse().ok())
        .unwrap_or(0)
}

/// Does what `parameters` ask; an error says which word was wrong or which call failed.
pub fn work(parameters: &Parameters) -> Result<Findings, String> {
    if let Some(directory) = &parameters.cgroup {
        let procs = directory.join("cgroup.procs");
        fs::write(&procs, "0").map_err(|error| format!("entering {}: {error}", procs.display()))?;
    }
    let thp_disabled = rustix::thread::disable_transparent_huge_pages(true).is_ok();
    let (mut reads, mut writes) = (histogram(), histogram());
    let clock_ns = clock_cost();
    let own_bytes = sysfs::status_bytes(std::process::id(), "RssAnon").unwrap_or(0);
    let seed = parameters.seed;
    let mut memory = Memory::new(parameters)?;
    let pages = memory.pages as u64;

    let filling = Instant::now();
    (0..memory.pages).for_each(|page| content::fill(seed, page, memory.page(page)));
    let fill_seconds = filling.elapsed().as_secs_f64();

    let mut random = Random::new(seed);
    for _ in 0..parameters.warmup {
        memory.read(random.below(pages), COUNTER_WORD);
    }
    let accessing = Instant::now();
    let faults_before = major_faults();
    for _ in 0..parameters.accesses {
        let (page, index) = (
            random.below(pages),
            1 + random.below(PAGE_WORDS as u64 - 1) as usize,
        );
        let start = Instant::now();
        let word = memory.read(page, index);
        reads.saturating_record(start.elapsed().as_nanos() as u64);
        let expected = content::initial_word(seed, page as usize, index);
        if word != expected {
            return Err(format!(
                "word {index} of page {page} is {word:#x}, not {expected:#x}"
            ));
        }
    }
    for done in 0..parameters.accesses {
        let page = random.below(pages);
        let start = Instant::now();
        let before = memory.count_up(page);
        writes.saturating_record(start.elapsed().as_nanos() as u64);
        let counted = before.wrapping_sub(content::initial_word(seed, page as usize, COUNTER_WORD));
        if counted > done {
            return Err(format!(
                "the counter of page {page} is {before:#x}: {counted} counts after {done} writes"
            ));
        }
    }
    let access_seconds = accessing.elapsed().as_secs_f64();
    let major_faults = major_faults() - faults_before;
    let resident_bytes = sysfs::status_bytes(std::process::id(), "RssAnon").unwrap_or(0);

    let verifying = Instant::now();
    let (mut counted, mut checksum) = (0, 0u64);
    for page in 0..memory.pages {
        let words = memory.page(page);
        counted += content::verify(seed, page, words)?;
        checksum = words.iter().fold(checksum, |sum, word| {
            sum.rotate_left(5)
                .wrapping_add(*word)
                .wrapping_mul(0x9e37_79b9)
        });
    }
    if counted != parameters.accesses {
        return Err(format!(
            "{} writes were done and {counted} were kept",
            parameters.accesses
        ));
    }
    Ok(Findings {
        read: times(&reads),
        write: times(&writes),
        clock_ns,
        fill_seconds,
        access_seconds,
        verify_seconds: verifying.elapsed().as_secs_f64(),
        major_faults,
        own_bytes,
        resident_bytes,
        thp_disabled,
        region_bytes_max: memory
            .region
            .as_ref()
            .map(|region| region.stats().resident_bytes_max),
        checksum: format!("{checksum:016x}"),
    })
}
