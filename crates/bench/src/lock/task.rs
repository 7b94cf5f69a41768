//! What a locking worker is asked to do, and what it finds.
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::strategy::Strategy;

/// The name of the worker's command.
pub const WORKER: &str = "lock-worker";

/// The exit code of a worker whose handler was refused more mappings.
pub const TOO_MANY_MAPPINGS: i32 = 17;

/// What the worker is asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// How.
    pub strategy: Strategy,
    /// The file, which is not written.
    pub file: PathBuf,
    /// Bytes to read.
    pub accesses: u64,
    /// In which order.
    pub order: Order,
}

/// The order of accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Uniformly random bytes of the file.
    Random,
    /// A byte of each page, from the start, again from there after the end.
    Sequential,
}

/// What it found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Findings {
    pub setup_ms: f64,
    pub processing_ms: f64,
    /// Pages of the mapping in the page table after the accesses.
    pub resident_bytes: u64,
    /// Pages that were touched, by the model of the same random numbers.
    pub touched_bytes: u64,
    pub major_faults: u64,
    /// So that no access can be left out; the same for every strategy.
    pub checksum: u64,
}
