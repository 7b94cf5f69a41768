//! `wp`: write-protecting untouched memory, four ways: the measurement of 2023, re-made.
//!
//! The memory is private, anonymous and untouched. One `UFFDIO_WRITEPROTECT` over all of it is
//! timed, and with it what has to be done first so that absent pages are protected: nothing, a byte
//! read of each page, `MADV_POPULATE_READ`, or nothing with `WP_UNPOPULATED`.
use std::io::{Error, Result};
use std::time::Instant;

use clap::{Args, ValueEnum};
use pagetide_kernel::uffd::{self, Uffd, feature};
use serde::{Deserialize, Serialize};

use crate::arguments::{at_least_one, size};
use crate::machine::Machine;
use crate::memory::{HugePages, Plain};
use crate::report::{Table, print, say};
use crate::runner::{Measured, System, Systems, in_turns};
use crate::statistics::medians;
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

    fn title(self) -> &'static str {
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

/// What write-protecting took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Took {
    /// From after registration.
    total_us: f64,
    /// Before protecting.
    prefault_us: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    test: &'static str,
    thp: Thp,
    size_bytes: usize,
    #[serde(flatten)]
    took: Took,
}

/// Measures and prints.
pub fn run(plan: &Plan) -> Result<()> {
    set_system(plan.thp)?;
    let has_unpopulated = Uffd::kernel_features(open()?)? & feature::WP_UNPOPULATED != 0;
    if !has_unpopulated {
        say("WP-UNPOPULATE is left out: it needs Linux 6.4");
    }
    let had = |way: &Way| *way != Way::Unpopulated || has_unpopulated;
    let ways: Vec<Way> = Way::ALL.into_iter().filter(had).collect();
    let systems: Systems<'_, Plan, Took> = ways.iter().map(|way| Box::new(*way) as _).collect();
    let all = in_turns(
        systems,
        plan.runs,
        |_| plan.clone(),
        |_, _, took| took.map(Some),
    )?;
    let row = |(way, measured): (&Way, &Measured<Took>)| Row {
        test: way.title(),
        thp: plan.thp,
        size_bytes: plan.size,
        took: medians(&measured.runs),
    };
    let rows: Vec<Row> = ways.iter().zip(&all).map(row).collect();
    print(plan.json, &rows, |rows| text(plan, &ways, rows))
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

impl System<Plan> for Way {
    type Found = Took;

    fn name(&self) -> &str {
        self.title()
    }

    fn run(&mut self, plan: &Plan) -> Result<Took> {
        let huge = match plan.thp {
            Thp::Off => HugePages::Never,
            Thp::Madvise => HugePages::Asked,
            Thp::Always => HugePages::System,
        };
        let memory = Plain::new(plan.size, huge)?;
        let mut features = feature::PAGEFAULT_FLAG_WP;
        if *self == Way::Unpopulated {
            features |= feature::WP_UNPOPULATED;
        }
        let uffd = Uffd::negotiate(open()?, features)?;
        uffd.register_write_protect(memory.range())?;
        let start = Instant::now();
        let us = || start.elapsed().as_nanos() as f64 / 1e3;
        match self {
            Way::PreRead => memory.read_each_page(),
            Way::Madvise => pagetide_kernel::memory::populate(memory.range())?,
            Way::Default | Way::Unpopulated => {}
        }
        let before = us();
        uffd.write_protect(memory.range(), true)
            .map_err(|stop| Error::other(format!("UFFDIO_WRITEPROTECT: {stop:?}")))?;
        Ok(Took {
            total_us: us(),
            prefault_us: match self {
                Way::PreRead | Way::Madvise => before,
                Way::Default | Way::Unpopulated => 0.0,
            },
        })
    }
}

fn text(plan: &Plan, ways: &[Way], rows: &[Row]) -> String {
    let shown = |total: f64, before: f64| match before {
        0.0 => format!("{total:.0}"),
        _ => format!("{total:.0} ({before:.0})"),
    };
    let mut table = Table::new(&["", "here", "published 2023, 10 GiB"]);
    for (way, row) in ways.iter().zip(rows) {
        let published = way.published(plan.thp);
        let published = published.map(|(total, before)| shown(total as f64, before as f64));
        table.row([
            row.test.to_owned(),
            shown(row.took.total_us, row.took.prefault_us),
            published.unwrap_or("-".to_owned()),
        ]);
    }
    let mut out = format!(
        "write-protecting {} bytes of untouched private memory, THP {}, medians of {} runs, us \
         (of it before protecting)\n{}\n\n{table}",
        plan.size,
        format!("{:?}", plan.thp).to_lowercase(),
        plan.runs,
        Machine::here()
    );
    let total = |way: Way| {
        let row = rows.iter().find(|row| row.test == way.title());
        row.map(|row| row.took.total_us)
    };
    if let (Some(pre_read), Some(ours)) = (total(Way::PreRead), total(Way::Unpopulated)) {
        out += &format!("\nPRE-READ over WP-UNPOPULATE: {:.1}\n", pre_read / ours);
    }
    out
}
