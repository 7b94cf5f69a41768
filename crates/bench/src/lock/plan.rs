//! What `lock` can be asked to measure.
use std::path::PathBuf;

use clap::Args;

use super::strategy::Strategy;
use super::task::Order;
use crate::arguments::{bytes, runs};

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Size of the file: bytes, or 512M, 5G
    #[arg(long, default_value = "5G", value_parser = size)]
    pub file_size: u64,
    /// Random accesses of a byte each; several counts, separated by commas, from sparse to dense
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2000,50000,3000000,15000000",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub accesses: Vec<u64>,
    /// Random bytes, or a byte of each page in order
    #[arg(long, value_enum, default_value = "random")]
    pub order: Order,
    /// Only with nothing of the file in the page cache before each run; not together with --warm
    #[arg(long, conflicts_with = "warm")]
    pub cold: bool,
    /// Only with all of the file in the page cache before each run
    #[arg(long)]
    pub warm: bool,
    /// Separated by commas; all of them if not said: none, whole, each-access, handler-1,
    /// handler-8, handler-16, on-fault, on-fault-random, on-fault-exact, adaptive, prefetch
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = Strategy::parse)]
    pub strategies: Vec<Option<Strategy>>,
    /// Each is measured so many times, in turns; the median counts
    #[arg(long, default_value_t = 3, value_parser = runs())]
    pub runs: usize,
    /// Print a JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Draw total time over accesses to this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Where the file is made, and deleted afterwards; the system's directory for temporary files
    /// if not said
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

fn size(text: &str) -> Result<u64, String> {
    let enough = |bytes: &u64| (4096..1 << 46).contains(bytes);
    bytes(text).ok().filter(enough).ok_or_else(|| {
        format!(
            "'{text}' is not a size; expected bytes, or 512M, 5G (powers of 1024); at least a \
             page (4096)"
        )
    })
}
