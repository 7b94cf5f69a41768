//! How much memory a process needs, as it was measured: a table for people, an object for programs.
use std::fmt::Write as _;

use pagetide_pager::measure::forecast::Forecast;
use pagetide_pager::protocol::measured::Measured;
use serde::Serialize;

use crate::governed::Governed;
use crate::size::{Bytes, Count, Nanoseconds, PAGE_BYTES};
use crate::table::Table;
use crate::text::printable;

/// Memory is recommended with which a program takes so much of its time.
const SLOWDOWN: f64 = 1.1;
/// Shares of what is in use, in hundredths.
const SHARES: [u64; 10] = [100, 95, 90, 80, 70, 60, 50, 40, 30, 20];

/// What is expected with so much memory.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
pub struct Point {
    /// Memory in bytes.
    pub bytes: u64,
    /// Over what was in use at most.
    pub share: f64,
    /// Expected time over that with all.
    pub expected_time: f64,
    /// Pages missed in all the time measured.
    pub misses: f64,
    /// Pages missed in a second.
    pub misses_per_second: f64,
}

/// How much memory a process needs.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct Need {
    /// How long was measured.
    seconds: f64,
    /// The most in use.
    in_use_bytes_max: u64,
    /// One page in so many was looked at.
    one_page_in: u64,
    /// What a page costs that is missed.
    miss_ns: u64,
    points: Vec<Point>,
    /// Where the curve bends most, if it does.
    knee_bytes: Option<u64>,
    /// The least with which the program is expected to take a tenth longer.
    recommended_bytes: u64,
    /// What is expected with that.
    recommended: Point,
}

impl Need {
    /// From what was measured; none if that is too little to tell anything.
    pub fn of(measured: &Measured) -> Option<Need> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let forecast = Forecast::of(measured, processors)?;
        let pages_max = forecast.pages_max();
        let point = |pages: u64| Point {
            bytes: pages * PAGE_BYTES,
            share: pages as f64 / pages_max as f64,
            expected_time: forecast.slowdown(pages),
            misses: forecast.misses(pages),
            misses_per_second: forecast.misses_per_second(pages),
        };
        let least = forecast.least_for(SLOWDOWN);
        Some(Need {
            seconds: forecast.seconds(),
            in_use_bytes_max: pages_max * PAGE_BYTES,
            one_page_in: measured.one_in,
            miss_ns: forecast.miss_ns as u64,
            points: SHARES.map(|share| point(pages_max * share / 100)).to_vec(),
            knee_bytes: forecast.knee().map(|pages| pages * PAGE_BYTES),
            recommended_bytes: least * PAGE_BYTES,
            recommended: point(least),
        })
    }

    /// The least with which the program is expected to take a tenth longer, in bytes.
    pub fn recommended_bytes(&self) -> u64 {
        self.recommended_bytes
    }

    /// What is expected with shares of what is in use.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// With these points (bytes, expected time, misses a second), and so much recommended.
    #[cfg(test)]
    pub fn for_tests(points: &[(u64, f64, f64)], recommended_bytes: u64) -> Need {
        let point = |&(bytes, expected_time, misses_per_second)| Point {
            bytes,
            share: 1.0,
            expected_time,
            misses: misses_per_second,
            misses_per_second,
        };
        let points: Vec<Point> = points.iter().map(point).collect();
        Need {
            seconds: 1.0,
            in_use_bytes_max: points[0].bytes,
            one_page_in: 1,
            miss_ns: 1,
            recommended: points[0],
            points,
            knee_bytes: None,
            recommended_bytes,
        }
    }

    /// A table, and the line to take, which begins with `option`.
    fn describe(&self, option: &str) -> String {
        let mut table = Table::new(&["MEMORY", "SHARE", "EXPECTED TIME", "MISSES/S"], &[]);
        for point in &self.points {
            table.push(vec![
                Bytes(point.bytes).to_string(),
                format!("{:.0} %", 100.0 * point.share),
                format!("{:.2}", point.expected_time),
                Count(point.misses_per_second).to_string(),
            ]);
        }
        let mut text = table.to_string();
        let _ = writeln!(
            text,
            "measured for {:.1} s; {} in use at most; a missed page costs {}",
            self.seconds,
            Bytes(self.in_use_bytes_max),
            Nanoseconds(self.miss_ns)
        );
        if let Some(bytes) = self.knee_bytes {
            let _ = writeln!(text, "the curve bends at {}", Bytes(bytes));
        }
        let _ = writeln!(
            text,
            "{option} {}M: {:.0} % less memory, expected to take {:.0} % longer",
            self.recommended_bytes.div_ceil(1 << 20),
            100.0 * (1.0 - self.recommended.share),
            100.0 * (self.recommended.expected_time - 1.0)
        );
        text
    }
}

/// What was measured of a process, for people.
pub fn describe(process: &Governed) -> String {
    described(process, "--resident")
}

fn described(process: &Governed, option: &str) -> String {
    let command = printable(&process.reading.statistics.command);
    let text = need_of(process).map_or_else(
        || {
            "too little was seen to tell what it needs: let it run for longer, or use more memory\n"
                .to_owned()
        },
        |need| need.describe(option),
    );
    format!("process {} {command}\n{text}", process.pid)
}

fn need_of(process: &Governed) -> Option<Need> {
    process.reading.measured.as_ref().and_then(Need::of)
}

/// What was measured of the processes of a run, for people: of several the largest in full, what
/// each needs, and what all need together.
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
         of those not known, all that they used\n",
        described(largest, "--per-process --resident"),
        bytes.div_ceil(1 << 20),
    ))
}

/// What a process needs: as was measured, or all that it had.
fn needed_bytes(process: &Governed) -> u64 {
    let had = process.reading.statistics.resident_bytes_max;
    need_of(process).map_or(had, |need| need.recommended_bytes())
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
    let mut moments: Vec<(u64, bool, u64)> = Vec::new();
    for process in processes {
        let (reading, bytes) = (&process.reading, needed_bytes(process));
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
                bytes: now.bytes + bytes,
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
    Some(most)
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
    use pagetide_pager::protocol::measured::{AGES, Part, age_class};
    use pagetide_pager::report::Statistics;

    use super::*;
    use crate::ledger_file::Reading;

    const SECOND: u64 = 1_000_000_000;

    /// One that begins after so many seconds and takes 60, uses `pages` again within 0.1 s, and
    /// nine times as many within 10 s; or one of which nothing was measured.
    fn process(pid: u32, begins: u64, pages: Option<u64>) -> Governed {
        let part = |pages: u64| {
            let mut used = vec![0; AGES];
            used[age_class(90_000_000)] = pages as u32;
            used[age_class(9 * SECOND)] = 9 * pages as u32;
            Part {
                counts: 1,
                pages: 10 * pages,
                used,
                gone: vec![0; AGES],
                open: vec![0; AGES],
            }
        };
        let measured = pages.map(|pages| Measured {
            elapsed_ns: 60 * SECOND,
            part_ns: 60 * SECOND,
            program_cpu_ns: 60 * SECOND,
            pages_max: 10 * pages,
            takes: 1000,
            take_cpu_ns: 6_000_000,
            fetch_wait_ns: 35_000,
            parts: vec![part(pages)],
            ..Measured::default()
        });
        let statistics = Statistics {
            pid,
            command: "sort".into(),
            resident_bytes_max: 40 << 20,
            wall_seconds: 60.0,
            ..Statistics::default()
        };
        Governed {
            pid,
            socket: "".into(),
            reading: Reading {
                statistics,
                measured,
                started_ns: begins * SECOND,
                ..Reading::default()
            },
        }
    }

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
        assert!(text.contains("\n--per-process --resident "), "{text}");
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
