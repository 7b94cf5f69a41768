//! What a paging worker is asked to do, and what it finds.
use std::path::PathBuf;

use pagetide_pager::page::policy::Kind;
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::shape::Answer;
use crate::content::{Content, PAGE_WORDS};
use crate::statistics::Spread;

/// The name of the worker's command.
pub const WORKER: &str = "paging-worker";

/// Where the data live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// Timed accesses of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// So many, of all threads together.
    pub accesses: u64,
    /// Percent of them that write.
    pub writes: u32,
}

/// What the worker is asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Bytes of data.
    pub bytes: usize,
    /// The most bytes of them resident.
    pub resident: u64,
    /// Which pages, in which order.
    pub pattern: Pattern,
    /// Threads that share the accesses.
    pub threads: usize,
    /// Untimed accesses before, as those of the first phase.
    pub warmup: u64,
    /// One after another.
    pub phases: Vec<Phase>,
    /// Decides contents and order.
    pub seed: u64,
    /// Share of every page that compresses away.
    pub compressibility: f64,
    /// Where the data live.
    pub home: Home,
    /// The store of a region or of a bare handler.
    pub store: String,
    /// The region's policy, by its name.
    pub policy: String,
    /// A cgroup directory to enter before any memory is used.
    pub cgroup: Option<PathBuf>,
    /// The swap device, such as zram0.
    pub swap: Option<String>,
    /// The graph, as a file; or the file on the device.
    pub file: Option<PathBuf>,
}

impl Task {
    /// One phase of random reads by one thread, in plain memory.
    pub fn random_reads(bytes: u64, resident: u64, accesses: u64) -> Task {
        Task {
            bytes: bytes as usize,
            resident,
            pattern: Pattern::Random,
            threads: 1,
            warmup: 0,
            phases: vec![Phase {
                accesses,
                writes: 0,
            }],
            seed: 1,
            compressibility: 0.5,
            home: Home::Plain,
            store: "ram:".to_owned(),
            policy: Kind::default().name().to_owned(),
            cgroup: None,
            swap: None,
            file: None,
        }
    }

    /// What the pages are to hold.
    pub fn content(&self) -> Content {
        Content {
            seed: self.seed,
            random_words: (PAGE_WORDS as f64 * (1.0 - self.compressibility)).round() as usize,
        }
    }
}

/// What the worker prints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Of every access (of every vertex, on a graph), hits included.
    pub all: Spread,
    /// Of those slower than a hit can be.
    pub slow: Spread,
    /// Of every access of each phase.
    pub phases: Vec<Spread>,
    /// Upper bounds in nanoseconds and how many accesses took so long.
    pub distribution: Vec<(u64, u64)>,
    /// Of the timed part.
    pub seconds: f64,
    /// To fill the memory, and to check everything at the end.
    pub fill_seconds: f64,
    #[allow(missing_docs)]
    pub verify_seconds: f64,
    /// Processor time of the whole process, the pager's threads included, in the timed part.
    pub cpu_seconds: f64,
    /// Median cost of reading the clock, contained in every time above.
    pub clock_ns: f64,
    /// Faults: of the pager, or major ones of the kernel, in the timed part.
    pub faults: u64,
    /// Major faults of the kernel in the timed part; a pager's fetches are not among them.
    pub major_faults: u64,
    /// The process's anonymous memory before the data was mapped, and after the timed part.
    pub own_bytes: u64,
    #[allow(missing_docs)]
    pub resident_bytes: u64,
    /// The most bytes resident; in plain memory, those at the end.
    pub resident_max_bytes: u64,
    /// The same of a region, if the worker worked in one.
    pub region_bytes_max: Option<u64>,
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
