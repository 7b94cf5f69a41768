//! `pagetide ps`: the governed processes, and those that serve pages.
use crate::bases::Bases;
use crate::exit::{Exit, Failure};
use crate::governed::Governed;
use crate::size::{Bytes, Count, Nanoseconds};
use crate::table::Table;
use crate::text::printable;
use crate::{runs, serving};

use super::served;

/// Commands are cut to this many characters.
const COMMAND_CHARS_MAX: usize = 40;

/// Lists the living governed processes, unless only those are asked for that serve pages, and
/// those.
pub fn ps(json: bool, only_serving: bool, bases: &Bases) -> Result<u8, Failure> {
    if json {
        match only_serving {
            true => super::print_json(&serving::all(bases))?,
            false => {
                let processes = runs::all(bases);
                let statistics = processes.iter().map(|process| &process.reading.statistics);
                super::print_json(&statistics.collect::<Vec<_>>())?;
            }
        }
        return Ok(Exit::Ok.code());
    }
    let servers = serving::all(bases);
    if !only_serving {
        let processes = runs::all(bases);
        if !processes.is_empty() || servers.is_empty() {
            list(&processes)?;
        }
        if processes.is_empty() && servers.is_empty() {
            // On stderr, so that a script that counts lines counts none.
            eprintln!(
                "pagetide: no governed process that you may see; start one: pagetide run \
                 --resident 256M -- PROGRAM"
            );
        }
    }
    if only_serving || !servers.is_empty() {
        super::print(&served::table(&servers).to_string())?;
    }
    Ok(Exit::Ok.code())
}

fn list(processes: &[Governed]) -> Result<(), Failure> {
    let mut table = Table::new(
        &[
            "PID", "RESIDENT", "BUDGET", "OF RUN'S", "MANAGED", "STORE", "IN ALL", "OF", "FAULTS",
            "P99", "COMMAND",
        ],
        &[10],
    );
    let bound = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Bytes(bytes).to_string(),
    };
    for process in processes {
        let s = &process.reading.statistics;
        table.push(vec![
            process.pid.to_string(),
            Bytes(s.resident_bytes).to_string(),
            Bytes(s.budget_bytes).to_string(),
            bound(s.run_budget_bytes),
            Bytes(s.managed_bytes).to_string(),
            Bytes(s.store_bytes).to_string(),
            Bytes(s.memory_bytes).to_string(),
            bound(s.memory_budget_bytes),
            Count(s.faults as f64).to_string(),
            Nanoseconds(s.fault_latency_ns.p99).to_string(),
            printable(&s.command)
                .chars()
                .take(COMMAND_CHARS_MAX)
                .collect(),
        ]);
    }
    super::print(&table.to_string())
}
