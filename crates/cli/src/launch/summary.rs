//! After the run: how it went, in a line for a person.
use std::fmt::Write as _;

use pagetide_pager::report::Statistics;

use crate::bound;
use crate::curve::run::{Together, at_a_time, together};
use crate::governed::Governed;
use crate::size::{Bytes, Count, Nanoseconds, PAGE_BYTES};

/// One line for a person; `None` if nothing was paged.
pub fn line(governed: &[Governed]) -> Option<String> {
    let all: Vec<&Statistics> = governed
        .iter()
        .map(|process| &process.reading.statistics)
        .collect();
    let first = all.first()?;
    let sum = |counter: fn(&Statistics) -> u64| all.iter().map(|s| counter(s)).sum::<u64>();
    let most = |counter: fn(&Statistics) -> u64| all.iter().map(|s| counter(s)).max().unwrap_or(0);
    // Nobody saw them together. Each had its most at some time of its own.
    let peak = |counter: fn(&Statistics) -> u64| {
        at_a_time(governed, |process| counter(&process.reading.statistics)).bytes
    };
    let several = all.len() > 1;
    let mut line = match all.len() {
        1 => "peak".to_owned(),
        count => format!("run of {count} processes: together at most"),
    };
    let each = if several { " each" } else { "" };
    let of = |bytes: u64| match bytes {
        0 => String::new(),
        bytes => format!(" of {}{each}", Bytes(bytes)),
    };
    let resident_max = most(|s| s.resident_bytes_max);
    let resident_of = resident_of(&all, each);
    let _ = write!(
        line,
        " {} in all{}: resident {}{resident_of}, stored {}",
        Bytes(peak(|s| s.memory_bytes_max)),
        of(first.memory_budget_bytes),
        Bytes(within(
            peak(|s| s.resident_bytes_max),
            most(|s| s.run_budget_bytes),
            resident_max
        )),
        Bytes(peak(|s| s.store_bytes_max)),
    );
    if several {
        let _ = write!(
            line,
            "; the largest {}",
            Bytes(most(|s| s.memory_bytes_max))
        );
    }
    let stalled = Statistics::stalled_together(all.iter().copied());
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

/// What the resident part is of, if it is bounded by itself.
fn resident_of(all: &[&Statistics], each: &str) -> String {
    let most = |of: fn(&Statistics) -> u64| all.iter().map(|s| of(s)).max().unwrap_or(0);
    let own = most(|s| s.budget_bytes);
    let run = most(|s| s.run_budget_bytes);
    let automatic = all.first().and_then(|first| bound::automatic(first));
    let (budget, each) = match (most(|s| s.memory_budget_bytes), run, automatic) {
        (_, 0, Some(automatic)) => {
            return format!(" of at most {}{each} ({automatic})", Bytes(own));
        }
        (0, 0, None) => (own, each),
        (0, run, _) => (run, ""),
        _ => return String::new(),
    };
    // Where one had more than that, the budget was more on the way, or new memory was found late.
    match Bytes(budget) {
        _ if budget == 0 => String::new(),
        bytes if most(|s| s.resident_bytes_max) > budget => {
            format!(" (above the budget of {bytes}{each} at the end)")
        }
        bytes => format!(" of {bytes}{each}"),
    }
}

/// What was resident of the run's budget, where there is one: that was kept. Unless a process alone
/// had more, before the budget became less.
fn within(bytes: u64, run_budget_bytes: u64, of_one: u64) -> u64 {
    match run_budget_bytes {
        0 => bytes,
        budget => bytes.min(budget.max(of_one)),
    }
}

/// What budget would have been enough, if it was not. Of several processes that ran at a time it is
/// known only that what each had at most is enough for all, unless it was measured. Of one that its
/// pager has ended on the way nobody knows what it would have needed.
fn enough(governed: &[Governed]) -> Option<String> {
    if governed
        .iter()
        .any(|process| process.reading.loss.is_some())
    {
        return None;
    }
    if let Some(Together { bytes, .. }) = together(governed) {
        let whom = match governed.len() {
            1 => "",
            _ => " for all",
        };
        return Some(format!(
            "; --resident {}M would be enough{whom}",
            bytes.div_ceil(1 << 20)
        ));
    }
    let all = || governed.iter().map(|process| &process.reading.statistics);
    let most = |of: fn(&Statistics) -> u64| all().map(of).max().unwrap_or(0);
    // With a budget that follows it, pages leave that had room.
    let follows = all().any(|s| s.automatic_slowdown > 0.0);
    let run_budget = most(|s| s.run_budget_bytes);
    let (needed, budget, whom) = match (governed.len(), run_budget) {
        (1, run) => (most(came_to), most(|s| s.budget_bytes).max(run), ""),
        (_, 0) => (most(came_to), most(|s| s.budget_bytes), " each"),
        (_, run) => {
            let of = |process: &Governed| came_to(&process.reading.statistics);
            (at_a_time(governed, of).bytes, run, " for all")
        }
    };
    (!follows && most(|s| s.evictions) > 0 && needed > budget).then(|| {
        format!(
            "; nothing is evicted with {}{whom} (--measure tells how much less is enough)",
            Bytes(needed)
        )
    })
}

/// The most that a process's pages can have come to: a page that was there once was evicted, if it
/// is not resident. Of what is mapped and never touched there may be any amount.
fn came_to(s: &Statistics) -> u64 {
    let seen = s.evictions.saturating_mul(PAGE_BYTES);
    s.managed_bytes_max
        .min(s.resident_bytes_max.saturating_add(seen))
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::process;
    use super::*;
    use pagetide_pager::protocol::loss::Loss;

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
        let start = "run of 2 processes: together at most 1.09 GiB in all: resident 510 MiB of \
                     256 MiB each, stored 600 MiB; the largest 560 MiB; 60 % of the time";
        assert!(of_two.starts_with(start), "{of_two}");
        let end = "10 k written back; nothing is evicted with 1 GiB each (--measure tells how much \
                   less is enough)";
        assert!(of_two.ends_with(end), "{of_two}");
    }

    #[test]
    fn a_budget_that_became_less_is_that_of_the_end() {
        let mut governed = vec![process(9, None, "")];
        governed[0].reading.statistics.budget_bytes = 20 << 20;
        let said = "resident 255 MiB (above the budget of 20 MiB at the end), stored";
        let own = line(&governed).unwrap();
        assert!(own.contains(said), "{own}");
        governed[0].reading.statistics.run_budget_bytes = 20 << 20;
        let of_run = line(&governed).unwrap();
        assert!(of_run.contains(said), "{of_run}");
    }

    #[test]
    fn of_several_processes_all_time_counts_and_nothing_is_said_of_a_budget_that_was_not_used_up() {
        let mut governed = vec![process(9, None, ""), process(10, None, "")];
        let second = &mut governed[1].reading.statistics;
        (second.refault_seconds, second.fetches) = (0.0, 0);
        let both = Statistics::stalled_together(governed.iter().map(|p| &p.reading.statistics));
        let first = governed[0].reading.statistics.stalled();
        assert!(0.3 * first < both && both < 0.9 * first, "{both}, {first}");
        let stalled = format!("{:.0} % of the time", 100.0 * both);
        assert!(line(&governed).unwrap().contains(&stalled));
        let statistics = &mut governed[0].reading.statistics;
        statistics.budget_bytes = statistics.managed_bytes_max;
        let of_one = line(&governed[..1]).unwrap();
        assert!(!of_one.contains("nothing is evicted"), "{of_one}");
    }

    #[test]
    fn what_is_mapped_and_never_touched_is_not_needed() {
        let mut governed = vec![process(9, None, "")];
        let statistics = &mut governed[0].reading.statistics;
        (statistics.managed_bytes_max, statistics.evictions) = (1 << 40, 10 << 8);
        let line = line(&governed).unwrap();
        assert!(line.contains("nothing is evicted with 265 MiB"), "{line}");
    }

    #[test]
    fn of_one_that_was_ended_on_the_way_nobody_knows_what_is_enough() {
        let ended = process(9, Some(Loss::Pager), "the store has taken no page for 10 s");
        let line = line(&[ended]).unwrap();
        assert!(line.ends_with("5 k written back"), "{line}");
    }

    #[test]
    fn of_a_run_with_one_budget_that_is_what_its_processes_have_of_it_together() {
        let mut governed = vec![process(9, None, ""), process(10, None, "")];
        for process in &mut governed {
            process.reading.statistics.run_budget_bytes = 300 << 20;
        }
        let together = line(&governed).unwrap();
        assert!(
            together.contains("resident 300 MiB of 300 MiB, stored"),
            "{together}"
        );
        assert!(
            together.contains("; nothing is evicted with 2 GiB for all (--measure"),
            "{together}"
        );
        // One after the other.
        governed[1].reading.started_ns = 20_000_000_000;
        let one_by_one = line(&governed).unwrap();
        let start = "run of 2 processes: together at most 560 MiB in all: resident 255 MiB of 300";
        assert!(one_by_one.starts_with(start), "{one_by_one}");
    }

    #[test]
    fn a_budget_that_follows_the_program_is_said_to_and_is_no_size_that_would_do() {
        let mut governed = vec![process(9, None, "")];
        governed[0].reading.statistics.automatic_slowdown = 0.1;
        let line = line(&governed).unwrap();
        let resident = "resident 255 MiB of at most 256 MiB (auto:10%), stored";
        assert!(
            line.contains(resident) && !line.contains("evicted with"),
            "{line}"
        );
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
