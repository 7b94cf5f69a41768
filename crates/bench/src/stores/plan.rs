//! What `stores` can be asked to measure.
use std::path::PathBuf;

use clap::Args;

use crate::arguments::{bytes, runs};

/// What to measure.
#[derive(Debug, Args)]
pub struct Plan {
    /// Bytes of the set
    #[arg(long, default_value = "1G", value_parser = bytes)]
    pub size: u64,
    /// Bytes of it that may be resident
    #[arg(long, default_value = "256M", value_parser = bytes)]
    pub resident: u64,
    /// Timed reads of random pages, for each system; a quarter as many go before, untimed
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: u64,
    /// Each system is measured so many times, in turns; the run with the median mean counts
    #[arg(long, default_value_t = 3, value_parser = runs())]
    pub runs: usize,
    /// Measure only systems whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Where `file:` and the swap file keep their pages: a directory on a disk
    #[arg(long, default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Write one JSON object a system to FILE, or to stdout for -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Draw the means to FILE, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The pagetide command; default: the one beside this executable
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
}
