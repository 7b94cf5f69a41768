//! `wp`: write-protecting untouched memory, four ways: the measurement of 2023, re-made.
//!
//! The memory is private, anonymous and untouched. One `UFFDIO_WRITEPROTECT` over all of it is
//! timed, and with it what has to be done first so that absent pages are protected: nothing, a byte
//! read of each page, `MADV_POPULATE_READ`, or nothing with `WP_UNPOPULATED`.
use std::io::{Error, Result, Write as _};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use pagetide_kernel::uffd::{self, Uffd, feature};
use serde::Serialize;

use super::memory::{HugePages, Plain};
use super::{at_least_one, median, microseconds, size};
use crate::machine::Machine;
use crate::{sysfs, undo};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Transparent huge pages for the memory that is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// None.
    Off,
    /// Asked for with `MADV_HUGEPAGE`; the system's setting must not be `never`.
    Madvise,
    /// The system's setting is made `always` for the measurement (needs root).
    Always,
}

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Memory to protect
    #[arg(long, default_value = "10G", value_parser = size)]
    pub size: usize,
    /// Transparent huge pages
    #[arg(long, value_enum, default_value = "off")]
    pub thp: Thp,
    /// Times each way is measured, in turns; medians count
    #[arg(long, default_value_t = 5, value_parser = at_least_one())]
    pub runs: usize,
    /// Print JSON rows, in bytes and microseconds
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Default,
    PreRead,
    Madvise,
    Unpopulated,
}

impl Way {
    const ALL: [Way; 4] = [Way::Default, Way::PreRead, Way::Madvise, Way::Unpopulated];

    fn name(self) -> &'static str {
        match self {
            Way::Default => "DEFAULT",
            Way::PreRead => "PRE-READ",
            Way::Madvise => "MADVISE",
            Way::Unpopulated => "WP-UNPOPULATE",
        }
    }

    /// Microseconds published in 2023 for 10 GiB, pre-fault part second: without huge pages, and
    /// with them always.
    fn published(self, thp: Thp) -> Option<(u64, u64)> {
        match (self, thp) {
            (Way::Default, Thp::Off | Thp::Always) => Some((4, 0)),
            (Way::PreRead, Thp::Off) => Some((1_111_453, 1_101_011)),
            (Way::PreRead, Thp::Always) => Some((22_521, 22_348)),
            (Way::Madvise, Thp::Off) => Some((278_276, 266_378)),
            (Way::Madvise, Thp::Always) => Some((4_909, 4_743)),
            (Way::Unpopulated, Thp::Off) => Some((11_712, 0)),
            (Way::Unpopulated, Thp::Always) => Some((14_448, 0)),
            (_, Thp::Madvise) => None,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    test: &'static str,
    thp: Thp,
    size_bytes: usize,
    total_us: f64,
    prefault_us: f64,
}

/// Measures and prints.
pub fn wp(plan: &Plan) -> Result<()> {
    set_system(plan.thp)?;
    let has = Uffd::kernel_features(open()?)?;
    if has & feature::WP_UNPOPULATED == 0 {
        eprintln!("WP-UNPOPULATE is left out: it needs Linux 6.4");
    }
    let ways: Vec<Way> = Way::ALL
        .into_iter()
        .filter(|way| *way != Way::Unpopulated || has & feature::WP_UNPOPULATED != 0)
        .collect();
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..plan.runs {
        for (way, times) in ways.iter().zip(&mut times) {
            times.push(measure(*way, plan)?);
        }
    }
    let rows = ways.iter().zip(&times).map(|(way, times)| {
        let middle = |of: fn(&(Duration, Duration)) -> Duration| {
            median(
                &times
                    .iter()
                    .map(|t| microseconds(of(t)))
                    .collect::<Vec<_>>(),
            )
        };
        Row {
            test: way.name(),
            thp: plan.thp,
            size_bytes: plan.size,
            total_us: middle(|t| t.0),
            prefault_us: middle(|t| t.1),
        }
    });
    let rows: Vec<Row> = rows.collect();
    let text = if plan.json {
        serde_json::to_string(&rows)? + "\n"
    } else {
        table(plan, &ways, &rows)
    };
    std::io::stdout().write_all(text.as_bytes())
}

fn open() -> Result<std::os::fd::OwnedFd> {
    uffd::open(None).map_err(Error::other)
}

fn set_system(thp: Thp) -> Result<()> {
    let modes = sysfs::read(THP)?;
    let now = modes.split(['[', ']']).nth(1).unwrap_or("").to_owned();
    match thp {
        Thp::Off => Ok(()),
        Thp::Madvise if now == "never" => Err(Error::other(format!(
            "--thp madvise: the system's setting is never; change it with: echo madvise > {THP}"
        ))),
        Thp::Madvise => Ok(()),
        Thp::Always => {
            undo::arm()?;
            undo::change(
                "transparent huge pages",
                || sysfs::write(THP, "always"),
                move || sysfs::write(THP, now),
            )
        }
    }
}

/// The whole time from after registration, and the part before protecting.
fn measure(way: Way, plan: &Plan) -> Result<(Duration, Duration)> {
    let huge = match plan.thp {
        Thp::Off => HugePages::Never,
        Thp::Madvise => HugePages::Asked,
        Thp::Always => HugePages::System,
    };
    let memory = Plain::new(plan.size, huge)?;
    let mut features = feature::PAGEFAULT_FLAG_WP;
    if way == Way::Unpopulated {
        features |= feature::WP_UNPOPULATED;
    }
    let uffd = Uffd::negotiate(open()?, features)?;
    uffd.register_write_protect(memory.range())?;
    let start = Instant::now();
    match way {
        Way::PreRead => memory.read_each_page(),
        Way::Madvise => pagetide_kernel::memory::populate(memory.range())?,
        Way::Default | Way::Unpopulated => {}
    }
    let prefault = start.elapsed();
    uffd.write_protect(memory.range(), true)
        .map_err(|stop| Error::other(format!("UFFDIO_WRITEPROTECT: {stop:?}")))?;
    let total = start.elapsed();
    let prefault = if matches!(way, Way::PreRead | Way::Madvise) {
        prefault
    } else {
        Duration::ZERO
    };
    Ok((total, prefault))
}

fn table(plan: &Plan, ways: &[Way], rows: &[Row]) -> String {
    let machine = Machine::here();
    let mut text = format!(
        "write-protecting {} bytes of untouched private memory, THP {}, medians of {} runs, us \
         (of it before protecting)\n{}, {} cores, Linux {}\n\n{:<14} {:>23} {:>27}\n",
        plan.size,
        format!("{:?}", plan.thp).to_lowercase(),
        plan.runs,
        machine.processor,
        machine.cores,
        machine.kernel,
        "",
        "here",
        "published 2023, 10 GiB"
    );
    let shown = |total: f64, before: f64| {
        if before > 0.0 {
            format!("{total:.0} ({before:.0})")
        } else {
            format!("{total:.0}")
        }
    };
    for (way, row) in ways.iter().zip(rows) {
        let published = way
            .published(plan.thp)
            .map_or("-".to_owned(), |(total, before)| {
                shown(total as f64, before as f64)
            });
        text.push_str(&format!(
            "{:<14} {:>23} {published:>27}\n",
            row.test,
            shown(row.total_us, row.prefault_us)
        ));
    }
    let total = |name: &str| {
        rows.iter()
            .find(|row| row.test == name)
            .map(|row| row.total_us)
    };
    if let (Some(pre_read), Some(ours)) = (total("PRE-READ"), total("WP-UNPOPULATE")) {
        text.push_str(&format!(
            "\nPRE-READ over WP-UNPOPULATE: {:.1}\n",
            pre_read / ours
        ));
    }
    text
}
