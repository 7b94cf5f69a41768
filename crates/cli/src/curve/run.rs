//! How much memory the processes of a run need, each and together.
use super::{Need, bracketed, certainty, describe, described, need_of};
use crate::governed::Governed;
use crate::size::Bytes;
use crate::table::Table;
use crate::text::printable;

/// What was measured of the processes of a run, for people: of several the largest in full, what
/// each needs, and one recommendation, of what all need together.
pub fn describe_run(processes: &[Governed]) -> Option<String> {
    /// The largest get a line each.
    const LINES_MAX: usize = 16;
    let largest = largest(processes)?;
    if processes.len() == 1 {
        return Some(describe(largest));
    }
    let mut table = Table::new(&["PID", "IN USE", "NEEDS", "COMMAND"], &[3]);
    let mut listed: Vec<&Governed> = processes.iter().collect();
    listed.sort_by_key(|process| std::cmp::Reverse(needed_bytes(process)));
    for process in listed.iter().take(LINES_MAX) {
        let s = &process.reading.statistics;
        let needs = need_of(process).map(|need| Bytes(need.recommended_bytes).to_string());
        table.push(vec![
            process.pid.to_string(),
            Bytes(s.resident_bytes_max).to_string(),
            needs.unwrap_or("not known".into()),
            printable(&s.command).chars().take(60).collect(),
        ]);
    }
    let more = match processes.len().saturating_sub(LINES_MAX) {
        0 => String::new(),
        more => format!("and {more} smaller ones\n"),
    };
    let Together {
        bytes,
        processes: n,
    } = together(processes)?;
    let count = processes.len();
    Some(format!(
        "the largest of {count}: {}what each needs to take no more than 10 % longer:\n{table}{more}\
         --resident {}M for the run: what its processes need together, of which {n} ran at a time; \
         of those not known, all that they used{}\n",
        described(largest),
        bytes.div_ceil(1 << 20),
        certainty_of_all(processes)
    ))
}

/// How sure that is.
fn certainty_of_all(processes: &[Governed]) -> String {
    let by = |of: fn(&Need) -> u64| at_a_time(processes, |process| bytes_by(process, of)).bytes;
    let (min, max) = (
        by(|need| need.recommended_bytes_min),
        by(|need| need.recommended_bytes_max),
    );
    // It is the largest that matters most.
    let seconds = largest(processes)
        .and_then(need_of)
        .map(|need| need.seconds);
    bracketed(&certainty(seconds.unwrap_or(0.0), min, max))
}

/// What a process needs: as was measured, or all that it had.
fn needed_bytes(process: &Governed) -> u64 {
    bytes_by(process, |need| need.recommended_bytes)
}

fn bytes_by(process: &Governed, of: impl FnOnce(&Need) -> u64) -> u64 {
    let had = process.reading.statistics.resident_bytes_max;
    need_of(process).map_or(had, |need| of(&need))
}

/// What processes need at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// All of them.
    pub bytes: u64,
    /// So many.
    pub processes: usize,
}

/// The most that processes of a run need at a time; none if nothing is known of any.
pub fn together(processes: &[Governed]) -> Option<Together> {
    processes.iter().find_map(need_of)?;
    Some(at_a_time(processes, needed_bytes))
}

/// The most that processes of a run have at a time of what each has by `bytes_of` as long as it
/// lives.
pub fn at_a_time(processes: &[Governed], bytes_of: impl Fn(&Governed) -> u64) -> Together {
    let mut moments: Vec<(u64, bool, u64)> = Vec::new();
    for process in processes {
        let (reading, bytes) = (&process.reading, bytes_of(process));
        let lasted_ns = (reading.statistics.wall_seconds * 1e9) as u64;
        moments.push((reading.started_ns, true, bytes));
        moments.push((reading.started_ns.saturating_add(lasted_ns), false, bytes));
    }
    // Who has ended makes room for who begins.
    moments.sort_unstable();
    let mut now = Together {
        bytes: 0,
        processes: 0,
    };
    let mut most = now;
    for (_, begins, bytes) in moments {
        now = match begins {
            true => Together {
                bytes: now.bytes.saturating_add(bytes),
                processes: now.processes + 1,
            },
            false => Together {
                bytes: now.bytes.saturating_sub(bytes),
                processes: now.processes.saturating_sub(1),
            },
        };
        if now.bytes > most.bytes {
            most = now;
        }
    }
    most
}

/// Of the processes of a run, that which used most memory.
pub fn largest(processes: &[Governed]) -> Option<&Governed> {
    let in_use = |process: &&Governed| {
        let measured = process.reading.measured.as_ref();
        measured.map_or(0, |measured| measured.pages_max)
    };
    processes.iter().max_by_key(in_use)
}

#[cfg(test)]
mod tests {
    use super::super::tests::process;
    use super::*;

    #[test]
    fn what_processes_need_that_ran_at_a_time_is_added_up() {
        let one = process(1, 0, Some(1000));
        let alone = together(std::slice::from_ref(&one)).unwrap();
        assert_eq!(alone.bytes, need_of(&one).unwrap().recommended_bytes());
        let after = [one.clone(), process(2, 60, Some(1000))];
        assert_eq!(together(&after), Some(alone), "one after the other");
        let beside = [one.clone(), process(2, 30, Some(1000))];
        let both = together(&beside).unwrap();
        assert_eq!((both.bytes, both.processes), (2 * alone.bytes, 2));
        let unknown = [one, process(2, 30, None)];
        assert_eq!(together(&unknown).unwrap().bytes, alone.bytes + (40 << 20));
        assert_eq!(together(&unknown[1..]), None);
    }

    #[test]
    fn of_several_processes_each_has_a_line_and_the_run_the_last() {
        let both = [process(1, 0, Some(1000)), process(2, 30, None)];
        let text = describe_run(&both).unwrap();
        assert!(
            text.starts_with("the largest of 2: process 1 sort\n"),
            "{text}"
        );
        assert_eq!(text.matches("--resident ").count(), 1, "{text}");
        assert!(text.contains("not known  sort"), "{text}");
        let last = text.lines().last().unwrap();
        let bytes = together(&both).unwrap().bytes.div_ceil(1 << 20);
        assert!(
            last.starts_with(&format!("--resident {bytes}M for the run")),
            "{text}"
        );
        let one = describe_run(&both[..1]).unwrap();
        assert!(
            one.starts_with("process 1 sort\n") && one.contains("\n--resident "),
            "{one}"
        );
    }
}
