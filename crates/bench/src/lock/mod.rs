//! `lock`: the experiment of 2015 made again. A large file, of which a part is used in random
//! order, and must stay in memory once it is: what the ways to get that cost in setup and in
//! processing. `overhead`: whether locking costs a program anything.
pub mod data;
pub mod experiment;
mod handler;
pub mod overhead;
mod plot;
mod published;
mod registry;
mod report;
pub mod strategy;
pub mod threads;
pub mod worker;

use std::path::PathBuf;

use clap::Args;

use strategy::Strategy;

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
    pub order: worker::Order,
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
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
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

/// Reads a size such as 5G.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; expected bytes, or 512M, 5G (powers of 1024)");
    let shift = match text.chars().last().map(|c| c.to_ascii_uppercase()) {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        Some('0'..='9') => 0,
        _ => return Err(wrong()),
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    match number.checked_shl(shift) {
        Some(bytes) if bytes >> shift == number && (4096..1 << 46).contains(&bytes) => Ok(bytes),
        _ => Err(format!("{}; at least a page (4096)", wrong())),
    }
}
