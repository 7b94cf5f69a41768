//! What `paging` can be asked to measure.
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pagetide_pager::page::policy::Kind;

use super::pattern::Pattern;
use crate::arguments::{bytes, runs, share, size};

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Bytes of data: 512M, 1G
    #[arg(long, default_value = "1G", value_parser = size)]
    pub size: usize,
    /// The most that may be resident: bytes, or a share of the data such as 25%
    #[arg(long, default_value = "25%", value_parser = parse_bound)]
    pub resident: Bound,
    /// Which pages, in which order
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Pattern,
    /// Share of the accesses that write: 0 to 100, a % sign may follow
    #[arg(long, default_value = "0%", value_parser = parse_percent)]
    pub writes: u32,
    /// Threads that access the data
    #[arg(long, default_value_t = 1, value_parser = parse_threads)]
    pub threads: usize,
    /// How faults reach the pager
    #[arg(long, value_enum, default_value = "signal")]
    pub delivery: DeliveryChoice,
    /// Where Pagetide keeps what is not resident
    #[arg(long, value_name = "URI", default_value = "ram:")]
    pub store: String,
    /// Which pages Pagetide evicts first: s3fifo or fifo
    #[arg(long, default_value = Kind::default().name())]
    pub policy: Kind,
    /// Share of every page that compresses away: 0 to 1
    #[arg(long, default_value_t = 0.5, value_parser = parse_ratio)]
    pub compressibility: f64,
    /// What to measure beside: the kernel's swap (needs root), the same memory without any bound,
    /// the bare device, or nothing
    #[arg(long, value_enum, default_value = "zram")]
    pub peer: PeerChoice,
    /// Measure also the least that a fault by signal can take here: a bare handler, with one and
    /// the same page, and with pages of the store
    #[arg(long)]
    pub floor: bool,
    /// Where the swap file is made and deleted afterwards; the system's directory for temporary
    /// files if not said
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
    /// Each is measured so many times, in turns; the median counts
    #[arg(long, default_value_t = 3, value_parser = runs())]
    pub runs: usize,
    /// Timed accesses; as many as there are pages if not said. As many go before, untimed
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: Option<u64>,
    /// Decides contents and order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print a JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw how many accesses take how long, beside the peer's, to this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The pagetide command, for --delivery run; default: the one beside this executable
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
}

/// A resident bound as given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Bytes.
    Bytes(u64),
    /// Hundredths of the data.
    Percent(f64),
}

impl Bound {
    /// Bytes, whole pages, at least one.
    pub fn of(self, size: usize) -> u64 {
        let bytes = match self {
            Bound::Bytes(bytes) => bytes,
            Bound::Percent(percent) => (size as f64 * percent / 100.0) as u64,
        };
        (bytes / 4096 * 4096).max(4096)
    }
}

/// How faults reach the pager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeliveryChoice {
    /// A Region, served in the faulting thread
    Signal,
    /// A Region, served by its thread
    Thread,
    /// An unmodified program under `pagetide run`
    Run,
}

/// What is measured beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PeerChoice {
    /// Kernel swap on zram with LZ4
    Zram,
    /// Kernel swap on a file
    Swapfile,
    /// Plain memory, no bound, no pager
    Plain,
    /// The device of a file: store, one page read at a time
    Device,
    /// Nothing
    None,
}

fn parse_bound(text: &str) -> Result<Bound, String> {
    match text.ends_with('%') {
        true => share(text).map(Bound::Percent),
        false => bytes(text).map(Bound::Bytes),
    }
}

fn parse_percent(text: &str) -> Result<u32, String> {
    match text.strip_suffix('%').unwrap_or(text).parse() {
        Ok(percent) if percent <= 100 => Ok(percent),
        _ => Err(format!("'{text}' is not a share; expected 0% to 100%")),
    }
}

fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=256).contains(&threads) => Ok(threads),
        _ => Err(format!(
            "'{text}' is no number of threads; expected 1 to 256"
        )),
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(format!(
            "'{text}' is not a share of a page; expected 0 (random bytes) to 1 (nothing but one \
             repeated word)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_bytes_or_shares_and_anything_else_is_named() {
        assert_eq!(parse_bound("25%").unwrap().of(1 << 30), 256 << 20);
        assert_eq!(parse_bound("8M").unwrap().of(1 << 30), 8 << 20);
        assert_eq!(parse_bound("0.0001%").unwrap().of(1 << 20), 4096);
        for wrong in ["0%", "101%", "x%", "5X", ""] {
            assert!(parse_bound(wrong).unwrap_err().contains(wrong));
        }
        assert_eq!(parse_percent("50"), Ok(50));
        assert!(parse_percent("101%").is_err());
        assert!(parse_ratio("1.5").is_err());
        assert!(parse_threads("0").is_err());
    }
}
