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

    /// A table, and the line to take.
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
        let _ = writeln!(
            text,
            "--resident {}M: {:.0} % less memory, expected to take {:.0} % longer",
            self.recommended_bytes.div_ceil(1 << 20),
            100.0 * (1.0 - self.recommended.share),
            100.0 * (self.recommended.expected_time - 1.0)
        );
        text
    }
}

/// What was measured of a process, for people.
pub fn describe(process: &Governed) -> String {
    let command = printable(&process.reading.statistics.command);
    let measured = process.reading.measured.as_ref();
    let need = measured.and_then(Need::of);
    let text = need.map_or_else(
        || {
            "too little was seen to tell what it needs: let it run for longer, or use more memory\n"
                .to_owned()
        },
        |need| need.describe(),
    );
    format!("process {} {command}\n{text}", process.pid)
}

/// Of the processes of a run, that which used most memory.
pub fn largest(processes: &[Governed]) -> Option<&Governed> {
    let in_use = |process: &&Governed| {
        let measured = process.reading.measured.as_ref();
        measured.map_or(0, |measured| measured.pages_max)
    };
    processes.iter().max_by_key(in_use)
}
