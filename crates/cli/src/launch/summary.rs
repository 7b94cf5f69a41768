//! After the run: how it went, in a line for a person.
use std::fmt::Write as _;

use pagetide_pager::report::Statistics;

use crate::curve::Need;
use crate::governed::Governed;
use crate::size::{Bytes, Count, Nanoseconds};

/// One line for a person; `None` if nothing was paged.
pub fn line(governed: &[Governed]) -> Option<String> {
    let all: Vec<&Statistics> = governed
        .iter()
        .map(|process| &process.reading.statistics)
        .collect();
    let first = all.first()?;
    let sum = |counter: fn(&Statistics) -> u64| all.iter().map(|s| counter(s)).sum::<u64>();
    let most = |counter: fn(&Statistics) -> u64| all.iter().map(|s| counter(s)).max().unwrap_or(0);
    let mut line = match all.len() {
        1 => "peak".to_owned(),
        several => format!("{several} processes, largest"),
    };
    let of = |bytes: u64| match bytes {
        0 => String::new(),
        bytes => format!(" of {}", Bytes(bytes)),
    };
    let resident_of = match (first.memory_budget_bytes, first.run_budget_bytes) {
        (0, 0) => of(first.budget_bytes),
        (0, run) => of(run),
        _ => String::new(),
    };
    let _ = write!(
        line,
        " {} in all{}: resident {}{resident_of}, stored {}",
        Bytes(most(|s| s.memory_bytes_max)),
        of(first.memory_budget_bytes),
        Bytes(most(|s| s.resident_bytes_max)),
        Bytes(most(|s| s.store_bytes_max)),
    );
    let stalled = all.iter().map(|s| s.stalled()).fold(0.0, f64::max);
    if sum(|s| s.faults) > 0 {
        let _ = write!(
            line,
            "; {:.0} % of the time stalled; {} faults (p99 {}), {} fetches, {} written back",
            100.0 * stalled,
            Count(sum(|s| s.faults) as f64),
            Nanoseconds(most(|s| s.fault_latency_ns.p99)),
            Count(sum(|s| s.fetches) as f64),
            Count(sum(|s| s.writebacks) as f64),
        );
    }
    line.extend(enough(governed));
    Some(line)
}

/// What budget would have been enough for each of the processes, if it was not.
fn enough(governed: &[Governed]) -> Option<String> {
    let readings = || governed.iter().map(|process| &process.reading);
    let measured = readings().filter_map(|reading| Need::of(reading.measured.as_ref()?));
    if let Some(bytes) = measured.map(|need| need.recommended_bytes()).max() {
        return Some(format!(
            "; --resident {}M would be enough",
            bytes.div_ceil(1 << 20)
        ));
    }
    let evicted = readings().filter(|reading| reading.statistics.evictions > 0);
    let most = evicted
        .map(|reading| reading.statistics.managed_bytes_max)
        .max()?;
    Some(format!(
        "; nothing is evicted with {} (--measure tells how much less is enough)",
        Bytes(most)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::process;
    use super::*;

    #[test]
    fn the_summary_is_one_line() {
        let mut governed = vec![process(9, None, "")];
        assert_eq!(
            line(&governed).unwrap(),
            "peak 560 MiB in all: resident 255 MiB of 256 MiB, stored 300 MiB; 60 % of the time \
             stalled; 123 k faults (p99 45 us), 100 k fetches, 5 k written back; nothing is \
             evicted with 1 GiB (--measure tells how much less is enough)"
        );
        governed.push(process(10, None, ""));
        let of_two = line(&governed).unwrap();
        assert!(of_two.starts_with("2 processes, largest 560 MiB in all: resident 255 MiB"));
    }

    #[test]
    fn with_a_bound_on_all_memory_that_is_what_it_is_of() {
        let mut governed = vec![process(9, None, "")];
        let statistics = &mut governed[0].reading.statistics;
        statistics.memory_budget_bytes = 600 << 20;
        (statistics.faults, statistics.evictions) = (0, 0);
        assert_eq!(
            line(&governed).unwrap(),
            "peak 560 MiB in all of 600 MiB: resident 255 MiB, stored 300 MiB"
        );
    }
}
