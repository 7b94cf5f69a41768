//! Simulates the policies on traces and prints their misses.
use std::io::{Error, Result};
use std::path::PathBuf;

use clap::Args;
use pagetide_pager::page::policy;
use serde::Serialize;

use super::cache::Cache;
use super::classic::{Clock, Fifo, Lru, Min};
use super::generate::{self, Kind};
use super::pager::Pager;
use super::s3fifo::S3Fifo;
use super::sieve::Sieve;
use super::trace::{self, Trace};
use crate::report::{Table, cell, print};

/// What to simulate.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Traces written by `pagetide run --trace` or `record-accesses`, or text with one page number
    /// a line
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Generated traces, separated by commas; all of them if no trace is named
    #[arg(long, value_enum, value_delimiter = ',')]
    pub generate: Vec<Kind>,
    /// Memory as shares of the pages a trace touches, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,25,50",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub resident: Vec<u32>,
    /// Pages of a generated trace
    #[arg(
        long,
        default_value_t = 16384,
        value_parser = clap::value_parser!(u64).range(256..=1 << 24)
    )]
    pub pages: u64,
    /// Accesses of a generated trace; eight times the pages if not said
    #[arg(long)]
    pub accesses: Option<u64>,
    /// Decides the generated traces
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print numbers of misses instead of misses in a hundred accesses
    #[arg(long)]
    pub counts: bool,
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Makes a cache of so many pages for a trace.
type Maker = fn(&Trace, usize) -> Box<dyn Cache>;

const POLICIES: [(&str, Maker); 9] = [
    ("fifo", |trace, pages| Box::new(Fifo::new(trace, pages))),
    ("lru", |trace, pages| Box::new(Lru::new(trace, pages))),
    ("clock", |trace, pages| Box::new(Clock::new(trace, pages))),
    ("s3fifo", |trace, pages| Box::new(S3Fifo::new(trace, pages))),
    ("sieve", |trace, pages| Box::new(Sieve::new(trace, pages))),
    ("pager-fifo", |trace, pages| {
        Box::new(Pager::new(trace, pages, policy::Kind::Fifo))
    }),
    ("pager-s3fifo", |trace, pages| {
        Box::new(Pager::new(trace, pages, policy::Kind::S3Fifo))
    }),
    ("pager-accessed", |trace, pages| {
        Box::new(Pager::new(trace, pages, policy::Kind::Accessed))
    }),
    ("min", |trace, pages| Box::new(Min::new(trace, pages))),
];

/// Misses of one policy on one trace with so much memory.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub trace: String,
    pub pages: usize,
    pub accesses: usize,
    pub resident_percent: u32,
    pub resident_pages: usize,
    pub policy: &'static str,
    pub misses: u64,
    pub soft_faults: u64,
    pub miss_ratio: f64,
}

/// Misses and soft faults of the policy `make` makes; the first access of a page is a miss,
/// whatever the policy.
fn faults(trace: &Trace, resident: usize, make: Maker) -> (u64, u64) {
    let mut cache = make(trace, resident);
    let accesses = trace.accesses.iter();
    let misses = accesses.map(|page| u64::from(!cache.access(*page))).sum();
    (misses, cache.soft_faults())
}

fn traces(plan: &Plan) -> Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for path in &plan.traces {
        traces.push(trace::read(path)?);
    }
    let all = plan.traces.is_empty() && plan.generate.is_empty();
    let kinds = if all {
        Kind::ALL.to_vec()
    } else {
        plan.generate.clone()
    };
    let accesses = plan.accesses.unwrap_or(8 * plan.pages);
    for kind in kinds {
        traces.push(generate::generate(kind, plan.pages, accesses, plan.seed)?);
    }
    Ok(traces)
}

/// Does what the plan says and prints it.
pub fn run(plan: &Plan) -> Result<()> {
    let mut rows = Vec::new();
    for trace in traces(plan)? {
        if trace.accesses.is_empty() {
            return Err(Error::other(format!("{}: holds no accesses", trace.name)));
        }
        for percent in &plan.resident {
            let resident = (trace.pages * *percent as usize / 100).max(2);
            for (policy, make) in POLICIES {
                let (misses, soft_faults) = faults(&trace, resident, make);
                rows.push(Row {
                    trace: trace.name.clone(),
                    pages: trace.pages,
                    accesses: trace.accesses.len(),
                    resident_percent: *percent,
                    resident_pages: resident,
                    policy,
                    misses,
                    soft_faults,
                    miss_ratio: misses as f64 / trace.accesses.len() as f64,
                });
            }
        }
    }
    print(plan.json, &rows, |rows| text(rows, plan.counts))
}

fn text(rows: &[Row], counts: bool) -> String {
    let names = POLICIES.map(|(name, _)| name);
    let heads = ["trace", "pages", "accesses", "resident"];
    let mut table = Table::new(&[&heads[..], &names[..]].concat());
    for group in rows.chunks(POLICIES.len()) {
        let first = &group[0];
        let mut cells = vec![
            first.trace.clone(),
            first.pages.to_string(),
            first.accesses.to_string(),
            format!("{} %", first.resident_percent),
        ];
        cells.extend(group.iter().map(|row| match counts {
            true if row.soft_faults > 0 => format!("{} + {}", row.misses, row.soft_faults),
            true => row.misses.to_string(),
            false => cell(row.miss_ratio * 100.0, 2),
        }));
        table.row(cells);
    }
    let what = match counts {
        true => "misses, and after + soft faults",
        false => "misses in a hundred accesses",
    };
    format!("{what}\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(accesses: &[u32]) -> Trace {
        Trace::new("test".to_owned(), accesses.iter().map(|a| u64::from(*a)))
    }

    fn of(policy: &str, trace: &Trace, pages: usize) -> u64 {
        let (_, make) = POLICIES.iter().find(|(name, _)| *name == policy).unwrap();
        faults(trace, pages, *make).0
    }

    /// The reference string of Belady's anomaly (Belady, Nelson and Shedler, 1969), and its
    /// published counts.
    #[test]
    fn beladys_reference_string_gives_the_published_misses() {
        let string = trace(&[1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]);
        for name in ["fifo", "pager-fifo"] {
            assert_eq!(of(name, &string, 3), 9, "{name}");
            assert_eq!(of(name, &string, 4), 10, "{name}");
        }
        assert_eq!(of("lru", &string, 3), 10);
        assert_eq!(of("lru", &string, 4), 8);
        assert_eq!(of("min", &string, 3), 7);
        assert_eq!(of("min", &string, 4), 6);
    }

    /// By hand: 1 is visited when the hand passes it, so 2 goes.
    #[test]
    fn clock_and_sieve_spare_what_was_touched() {
        let string = trace(&[1, 2, 3, 1, 4, 1, 2]);
        assert_eq!(of("clock", &string, 3), 5);
        assert_eq!(of("sieve", &string, 3), 5);
        assert_eq!(of("fifo", &string, 3), 6);
    }

    /// By hand, with room for 32 pages and one of them held: 33 has 1 evicted and 2 held, where it
    /// is accessed, and so outlives those that came later.
    #[test]
    fn a_page_accessed_while_it_is_held_costs_no_miss() {
        let string: Vec<u32> = (1..=33).chain([2]).chain(34..=60).chain([2]).collect();
        let string = trace(&string);
        let mut pager = Pager::new(&string, 32, policy::Kind::S3Fifo);
        let accesses = string.accesses.iter();
        let misses = accesses.filter(|page| !pager.access(**page)).count();
        assert_eq!((misses, pager.soft_faults()), (60, 1));
    }

    #[test]
    fn nobody_misses_less_than_min_nor_without_need() {
        for kind in Kind::ALL {
            let trace = generate::generate(kind, 1024, 8192, 3).unwrap();
            for resident in [64, 256, trace.pages] {
                let least = of("min", &trace, resident);
                for (name, make) in POLICIES {
                    let (count, _) = faults(&trace, resident, make);
                    assert!(count >= least, "{name} beats MIN on {kind:?}");
                    assert!(
                        resident < trace.pages || count == trace.pages as u64,
                        "{name} misses with room for all of {kind:?}"
                    );
                }
            }
        }
    }
}
