//! After the run: how it went, in a line for a person.
use std::fmt::Write as _;

use pagetide_pager::report::Statistics;

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
    let _ = write!(
        line,
        " resident {} of {}, managed {}; {} faults",
        Bytes(most(|s| s.resident_bytes_max)),
        Bytes(match first.run_budget_bytes {
            0 => first.budget_bytes,
            of_all => of_all,
        }),
        Bytes(most(|s| s.managed_bytes_max)),
        Count(sum(|s| s.faults) as f64),
    );
    if sum(|s| s.faults) > 0 {
        let _ = write!(
            line,
            " (p99 {})",
            Nanoseconds(most(|s| s.fault_latency_ns.p99))
        );
    }
    let _ = write!(
        line,
        ", {} fetches, {} written back; store at most {}; in all at most {}",
        Count(sum(|s| s.fetches) as f64),
        Count(sum(|s| s.writebacks) as f64),
        Bytes(most(|s| s.store_bytes_max)),
        Bytes(most(|s| s.memory_bytes_max)),
    );
    let advice = all.iter().find_map(|s| advice(s));
    line.extend(advice.map(|advice| format!("; {advice}")));
    Some(line)
}

/// What the figures of one process suggest, if anything.
fn advice(s: &Statistics) -> Option<String> {
    /// Less stored in memory is not worth a word.
    const STORED_BYTES: u64 = 16 << 20;
    /// Pages that compress to more than five sixths hardly do.
    const RATIO: f64 = 1.2;
    /// Seconds that threads waited for pages, for each second that passed.
    const STALLED: f64 = 0.5;
    let stored = s.memory_bytes_max.saturating_sub(s.resident_bytes_max);
    if stored >= STORED_BYTES && s.compression_ratio < RATIO {
        Some(format!(
            "little memory was saved, as its pages hardly compress (ratio {:.2}): \
             --store file:DIR keeps them on a disk",
            s.compression_ratio
        ))
    } else if s.stall_seconds > STALLED * s.wall_seconds && s.evictions > 0 {
        Some(format!(
            "threads waited {:.1} s for pages in {:.1} s: a larger --resident makes it faster",
            s.stall_seconds, s.wall_seconds
        ))
    } else {
        None
    }
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
            "peak resident 255 MiB of 256 MiB, managed 1 GiB; 123 k faults (p99 45 us), 100 k \
             fetches, 5 k written back; \
             store at most 300 MiB; in all at most 560 MiB"
        );
        governed.push(process(10, None, ""));
        let of_two = line(&governed).unwrap();
        assert!(of_two.starts_with("2 processes, largest resident 255 MiB of 256 MiB"));
    }

    #[test]
    fn the_summary_ends_with_what_would_be_better() {
        let mut governed = vec![process(9, None, "")];
        governed[0].reading.statistics.stall_seconds = 6.0;
        let summary = line(&governed).unwrap();
        let slow =
            "; threads waited 6.0 s for pages in 10.0 s: a larger --resident makes it faster";
        assert!(summary.ends_with(slow), "{summary}");
        governed[0].reading.statistics.compression_ratio = 1.1;
        let summary = line(&governed).unwrap();
        let packed = "hardly compress (ratio 1.10)";
        assert!(summary.contains(packed), "{summary}");
        // With the store elsewhere, pages that do not compress take no memory.
        let statistics = &mut governed[0].reading.statistics;
        (statistics.memory_bytes_max, statistics.stall_seconds) = (256 << 20, 1.0);
        let summary = line(&governed).unwrap();
        assert!(summary.ends_with("in all at most 256 MiB"), "{summary}");
    }
}
