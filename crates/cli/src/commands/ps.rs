//! `pagetide ps`: the governed processes, and those that serve pages.
use pagetide_pager::report::Statistics;
use serde::Serialize;

use crate::bases::Bases;
use crate::exit::{Exit, Failure};
use crate::governed::Governed;
use crate::size::{Bytes, Count, Nanoseconds};
use crate::table::Table;
use crate::text::for_column;
use crate::whole::{self, Place};
use crate::{bound, runs, serving};

use super::served;

/// On a terminal commands are cut to this many characters.
const COMMAND_CHARS_MAX: usize = 40;

/// Lists the living governed processes, unless only those are asked for that serve pages, and
/// those.
pub fn ps(json: bool, only_serving: bool, bases: &Bases) -> Result<u8, Failure> {
    bases.check(false)?;
    if json {
        match only_serving {
            true => super::print_json(&serving::all(bases))?,
            false => {
                let processes = runs::all(bases);
                super::print_json(&processes.iter().map(Listed::of).collect::<Vec<_>>())?;
            }
        }
        return Ok(Exit::Ok.code());
    }
    let servers = serving::all(bases);
    if !only_serving {
        let processes = runs::all(bases);
        if !processes.is_empty() || servers.is_empty() {
            super::print(&table(&whole::lines(processes.clone())).to_string())?;
        }
        if processes.is_empty() && servers.is_empty() {
            // On stderr, so that a script that counts lines counts none.
            super::told(&format!(
                "no governed process that you may see{}; start one: pagetide run --resident 256M \
                 -- PROGRAM",
                bases.place()
            ));
        }
    }
    if only_serving || !servers.is_empty() {
        super::print(&served::table(&servers).to_string())?;
    }
    Ok(Exit::Ok.code())
}

/// A process, as `--json` has it.
#[derive(Debug, Serialize)]
pub struct Listed<'a> {
    #[serde(flatten)]
    statistics: &'a Statistics,
    /// The process ID of the run's launcher.
    run: Option<u32>,
}

impl Listed<'_> {
    /// Of `process`.
    pub fn of(process: &Governed) -> Listed<'_> {
        Listed {
            statistics: &process.reading.statistics,
            run: process.run(),
        }
    }
}

/// The processes, a line each, and one for each run of several, which has no RUN of its own.
pub fn table(lines: &[whole::Line]) -> Table {
    let mut table = Table::new(
        &[
            "PID", "RUN", "RESIDENT", "BUDGET", "OF RUN'S", "MANAGED", "STORE", "IN ALL", "OF",
            "FAULTS", "P99", "COMMAND",
        ],
        &[11],
    );
    let size = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    for whole::Line { process, place } in lines {
        let s = &process.reading.statistics;
        let run = process.run().filter(|_| *place != Place::Whole);
        let command = for_column(&s.command, COMMAND_CHARS_MAX);
        table.push(vec![
            process.pid.to_string(),
            run.map_or("-".into(), |run| run.to_string()),
            Bytes(s.resident_bytes).to_string(),
            bound::short(s),
            size(s.run_budget_bytes),
            Bytes(s.managed_bytes).to_string(),
            Bytes(s.store_bytes).to_string(),
            Bytes(s.memory_bytes).to_string(),
            size(s.memory_budget_bytes),
            Count(s.faults as f64).to_string(),
            Nanoseconds(s.fault_latency_ns.p99).to_string(),
            format!("{}{command}", place.branch()),
        ]);
    }
    table
}
