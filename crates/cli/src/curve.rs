//! How much memory a process needs, as it was measured: a table for people, an object for programs.
pub mod run;

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
/// Fewer looks at pages that were used again tell nothing.
const USES_MIN: u64 = 32;
/// A program that works or waits for less of the time, in hundredths, is idle; if that was seen for
/// so long.
const BUSY_MIN: u64 = 1;
const IDLE_NS_MIN: u64 = 500_000_000;
/// What the halves of the time say may differ by so many times.
const SPREAD_MAX: u64 = 2;
/// What was measured for less is mostly how the program starts.
const SECONDS_MIN: f64 = 5.0;
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
    /// The least and the most of what is recommended by all that was seen, and by its halves.
    recommended_bytes_min: u64,
    recommended_bytes_max: u64,
    /// What is expected with what is recommended.
    recommended: Point,
}

impl Need {
    /// From what was measured; none if that is too little to tell anything.
    pub fn of(measured: &Measured) -> Option<Need> {
        let forecast = forecast(measured)?;
        let pages_max = forecast.pages_max();
        let point = |pages: u64| Point {
            bytes: pages * PAGE_BYTES,
            share: pages as f64 / pages_max as f64,
            expected_time: forecast.slowdown(pages),
            misses: forecast.misses(pages),
            misses_per_second: forecast.misses_per_second(pages),
        };
        let least = forecast.least_for(SLOWDOWN);
        // By a half in which too little was seen nothing is said.
        let halves = halves(measured);
        let halves = halves.iter().filter_map(self::forecast);
        let of_halves: Vec<u64> = halves.map(|half| half.least_for(SLOWDOWN)).collect();
        let bytes_of = |pages: u64| pages * PAGE_BYTES;
        let (min, max) = (of_halves.iter().min(), of_halves.iter().max());
        Some(Need {
            recommended_bytes_min: bytes_of(min.map_or(least, |pages| least.min(*pages))),
            recommended_bytes_max: bytes_of(max.map_or(least, |pages| least.max(*pages))),
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

    /// How sure that is, in words.
    fn certainty(&self) -> String {
        let (min, max) = (self.recommended_bytes_min, self.recommended_bytes_max);
        certainty(self.seconds, min, max)
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
            recommended_bytes_min: recommended_bytes,
            recommended_bytes_max: recommended_bytes,
        }
    }

    /// A table.
    fn describe(&self) -> String {
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
        text
    }

    /// The line to take.
    fn recommend(&self) -> String {
        let certainty = bracketed(&self.certainty());
        format!(
            "--resident {}M: {:.0} % less memory, expected to take {:.0} % longer{certainty}\n",
            self.recommended_bytes.div_ceil(1 << 20),
            100.0 * (1.0 - self.recommended.share),
            100.0 * (self.recommended.expected_time - 1.0)
        )
    }
}

/// How sure something is that was measured in so many seconds, and by halves is so much, in words.
fn certainty(seconds: f64, min_bytes: u64, max_bytes: u64) -> String {
    let [min, max] = [min_bytes, max_bytes].map(|bytes| bytes.div_ceil(1 << 20));
    let mut text = match min == max {
        true => String::new(),
        false => format!("by the halves of the time and of the looks, from {min}M to {max}M"),
    };
    let why = match (seconds < SECONDS_MIN, max > min * SPREAD_MAX) {
        (true, _) => "so short a time tells little",
        (_, true) => "the program changes, or too little was seen",
        _ => return text,
    };
    if !text.is_empty() {
        text.push_str("; ");
    }
    text + why + ": take it for a guess, and measure for longer"
}

/// In brackets, if there is anything to say.
fn bracketed(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" ({text})"),
    }
}

/// What follows from what was measured; none if that is too little to tell anything.
fn forecast(measured: &Measured) -> Option<Forecast> {
    let tells = uses(measured) >= USES_MIN && !is_idle(measured);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Forecast::of(measured, processors).filter(|_| tells)
}

/// Looks at pages that were used again.
fn uses(measured: &Measured) -> u64 {
    let used = measured.parts.iter().flat_map(|part| &part.used);
    used.map(|count| u64::from(*count)).sum()
}

/// Whether the program hardly did anything meanwhile, so that nothing it has seems to be needed.
fn is_idle(measured: &Measured) -> bool {
    let waited_ns = uses(measured).saturating_mul(measured.fetch_wait_ns);
    let busy_ns = measured.program_cpu_ns.saturating_add(waited_ns);
    let lasted = measured.elapsed_ns >= IDLE_NS_MIN;
    lasted && busy_ns.saturating_mul(100) < measured.elapsed_ns.saturating_mul(BUSY_MIN)
}

/// What was measured without the looks of one half of the time and of the other, and without every
/// other part's and the others': phases differ in the first two, and chance in all.
fn halves(measured: &Measured) -> [Measured; 4] {
    let parts = measured.elapsed_ns.div_ceil(measured.part_ns.max(1)) as usize;
    let only = |is_of_it: &dyn Fn(usize) -> bool| {
        let mut half = measured.clone();
        let others = half.parts.iter_mut().enumerate();
        for (_, part) in others.filter(|(index, _)| !is_of_it(*index)) {
            for counts in [&mut part.used, &mut part.gone, &mut part.open] {
                counts.fill(0);
            }
        }
        half
    };
    [
        only(&|index| index < parts / 2),
        only(&|index| index >= parts / 2),
        only(&|index| index.is_multiple_of(2)),
        only(&|index| !index.is_multiple_of(2)),
    ]
}

/// Why nothing is said of what a process needs.
fn unknown(measured: Option<&Measured>) -> String {
    let Some(measured) = measured else {
        return "nothing was measured: too little was seen to tell what it needs\n".to_owned();
    };
    let (what, step) = match is_idle(measured) {
        true => ("nothing was measured", "measure it while it works"),
        false => (
            "too little was seen to tell what it needs",
            "use more memory",
        ),
    };
    format!(
        "{what}: in {:.1} s it ran for {:.2} s, and used {} of {} pages that were looked at; \
         measure for longer, or {step}\n",
        measured.elapsed_ns as f64 / 1e9,
        measured.program_cpu_ns as f64 / 1e9,
        uses(measured),
        measured.takes
    )
}

/// What was measured of a process, for people.
pub fn describe(process: &Governed) -> String {
    let recommended = need_of(process).map_or(String::new(), |need| need.recommend());
    described(process) + &recommended
}

fn described(process: &Governed) -> String {
    let command = printable(&process.reading.statistics.command);
    let text = match need_of(process) {
        Some(need) => need.describe(),
        None => unknown(process.reading.measured.as_ref()),
    };
    format!("process {} {command}\n{text}", process.pid)
}

fn need_of(process: &Governed) -> Option<Need> {
    process.reading.measured.as_ref().and_then(Need::of)
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
    pub fn process(pid: u32, begins: u64, pages: Option<u64>) -> Governed {
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
    fn of_a_program_that_was_idle_nothing_is_recommended() {
        let mut idle = process(1, 0, Some(1000));
        let measured = idle.reading.measured.as_mut().unwrap();
        (measured.program_cpu_ns, measured.fetch_wait_ns) = (SECOND / 10, 1000);
        let text = describe(&idle);
        assert!(
            text.contains("\nnothing was measured: in 60.0 s it ran for 0.10 s"),
            "{text}"
        );
        assert!(!text.contains("--resident"), "{text}");
        // Neither if hardly a look came to anything.
        let mut quiet = process(1, 0, Some(1000));
        let measured = quiet.reading.measured.as_mut().unwrap();
        measured.parts[0].used.fill(0);
        measured.parts[0].used[age_class(SECOND)] = 31;
        let text = describe(&quiet);
        assert!(text.contains("too little was seen"), "{text}");
    }

    #[test]
    fn how_sure_a_recommendation_is_stands_beside_it() {
        let steady = process(1, 0, Some(1000));
        let text = describe(&steady);
        assert!(text.trim_end().ends_with(" % longer"), "{text}");
        // Two phases: in the second, nine tenths of the pages are used all the time.
        let mut phases = process(1, 0, Some(1000));
        let measured = phases.reading.measured.as_mut().unwrap();
        measured.part_ns = 30 * SECOND;
        let mut second = measured.parts[0].clone();
        second.used.fill(0);
        second.used[age_class(90_000_000)] = 9000;
        measured.parts.push(second);
        let text = describe(&phases);
        assert!(
            text.contains("by the halves of the time and of the looks, from "),
            "{text}"
        );
        assert!(
            text.contains("M; the program changes, or too little was seen: take"),
            "{text}"
        );
        // A second.
        let mut short = process(1, 0, Some(1000));
        let measured = short.reading.measured.as_mut().unwrap();
        (measured.elapsed_ns, measured.part_ns) = (SECOND, SECOND);
        let text = describe(&short);
        assert!(
            text.contains("(so short a time tells little: take it for a guess"),
            "{text}"
        );
    }
}
