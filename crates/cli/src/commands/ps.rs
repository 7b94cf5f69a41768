//! `pagetide ps`: the governed processes.
use crate::bases::Bases;
use crate::exit::{Exit, Failure};
use crate::governed::printable;
use crate::runs;
use crate::size::{Bytes, Count, Nanoseconds};
use crate::table::Table;

/// Commands are cut to this many characters.
const COMMAND_CHARS_MAX: usize = 40;

/// Lists the living governed processes.
pub fn ps(json: bool, bases: &Bases) -> Result<u8, Failure> {
    let processes = runs::all(bases);
    if json {
        let all: Vec<_> = processes
            .iter()
            .map(|process| &process.reading.statistics)
            .collect();
        super::print_json(&all)?;
        return Ok(Exit::Ok.code());
    }
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
    for process in &processes {
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
    super::print(&table.to_string())?;
    if processes.is_empty() {
        // On stderr, so that a script that counts lines counts none.
        eprintln!(
            "pagetide: no governed process that you may see; start one: pagetide run --resident \
             256M -- PROGRAM"
        );
    }
    Ok(Exit::Ok.code())
}
