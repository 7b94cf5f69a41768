//! What `programs` can be asked to measure.
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Serialize, Serializer};

use super::catalogue::{PROGRAMS, Program};
use super::services::SERVICES;
use crate::arguments::{bytes, runs, share};

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Memory each program may have, in percent of the most it takes alone; or `fits`, a budget so
    /// large that nothing leaves. Several, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "60%,40%", value_parser = Bound::parse)]
    pub share: Vec<Bound>,
    /// Each is measured so many times, in turns; the median counts
    #[arg(long, default_value_t = 3, value_parser = runs())]
    pub runs: usize,
    /// Instead of the programs, six services, which keep values and answer requests: most of what
    /// they keep is seldom asked for
    #[arg(long)]
    pub services: bool,
    /// Only these programs, separated by commas; --list names them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Name the programs and do nothing else
    #[arg(long)]
    pub list: bool,
    /// The work of each program as a multiple of the usual: less for a trial, such as 0.25
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,
    /// The most that swap's cgroup may hold besides anonymous pages and page tables: the kernel's
    /// own memory and the program's files, which Pagetide does not bound
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = bytes)]
    pub allowance: u64,
    /// Do not measure under the kernel's swap, which needs root
    #[arg(long)]
    pub no_swap: bool,
    /// Leave the kernel's reclaim alone, which then calls its OOM killer with most of the swap
    /// free. Else its counters are kept up to date, and whom it would end goes on and is counted
    #[arg(long)]
    pub plain_swap: bool,
    /// Also measure how much memory each program needs, and compare the times expected with less
    /// with those found
    #[arg(long)]
    pub measure: bool,
    /// Also run each program with a budget that follows it, `--resident auto:PERCENT`, and compare
    /// its time and the memory that it had in the mean with those alone
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub auto: Option<f64>,
    /// Install nothing: skip a program that lacks something
    #[arg(long)]
    pub no_install: bool,
    /// Seconds after which a run is ended and counts as not survived
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    pub timeout: Duration,
    /// Where inputs are made, and deleted afterwards
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Where Python's modules are installed, and kept; pagetide-bench in $XDG_CACHE_HOME or
    /// ~/.cache if not said
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Write every run and the medians to FILE as JSON, or to stdout instead of the tables for -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Draw the ratios to FILE, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The pagetide command; default: the one beside this executable
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
}

impl Plan {
    /// What there is to choose from.
    pub fn catalogue(&self) -> &'static [Program] {
        match self.services {
            true => &SERVICES,
            false => &PROGRAMS,
        }
    }
}

/// The memory a program may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Percent of what it takes alone.
    Percent(f64),
    /// More than it needs.
    Fits,
}

impl Bound {
    fn parse(text: &str) -> Result<Bound, String> {
        match text {
            "fits" => Ok(Bound::Fits),
            _ => share(text)
                .map(Bound::Percent)
                .map_err(|error| format!("{error}, or `fits`")),
        }
    }

    /// Bytes, whole pages, for a program that takes `peak` alone.
    pub fn of(self, peak: u64) -> u64 {
        match self {
            Bound::Fits => (peak * 2).max(8 << 30),
            Bound::Percent(percent) => {
                let bytes = (peak as f64 * percent / 100.0) as u64;
                (bytes / 4096 * 4096).max(4096)
            }
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Percent(percent) => write!(f, "{percent} %"),
            Bound::Fits => f.write_str("fits"),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Bound::Percent(percent) => to.serialize_f64(percent / 100.0),
            Bound::Fits => to.serialize_str("fits"),
        }
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if (0.001..=100.0).contains(&scale) => Ok(scale),
        _ => Err(format!(
            "'{text}' is no scale; expected 0.001 to 100, where 1 is the usual work"
        )),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "'{text}' is no number of seconds; expected 1 to 86400, which is a day"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_shares_of_the_peak_or_more_than_all_of_it() {
        assert_eq!(Bound::parse("60%").unwrap().of(100 << 20), 60 << 20);
        assert_eq!(Bound::parse("0.001").unwrap().of(1 << 20), 4096);
        assert_eq!(Bound::parse("fits").unwrap().of(1 << 20), 8 << 30);
        assert_eq!(Bound::Fits.of(5 << 30), 10 << 30);
        for wrong in ["0%", "101%", "fit", ""] {
            let error = Bound::parse(wrong).unwrap_err();
            assert!(error.contains(wrong) && error.contains("fits"), "{error}");
        }
        assert!(scale("0").is_err() && scale("nan").is_err());
        assert!(seconds("0").is_err());
    }
}
