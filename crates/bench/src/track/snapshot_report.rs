//! What `snapshot` tells: runs, ratios to fork's medians, a table, and how late writes were.
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::writers::SLOT;
use crate::machine::Machine;
use crate::plot::{Axis, Chart, Line, time};
use crate::report::{Table, cell};
use crate::runner::Measured;
use crate::statistics::{Ratios, medians, ratios};

/// The system that the others are compared with.
pub const FORK: &str = "fork";

/// One run. Times of writes are missing where there were none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Row {
    pub system: String,
    pub run: usize,
    pub size_bytes: usize,
    pub write_rate: u64,
    pub threads: usize,
    pub pause_ms: f64,
    pub write_p50_us: Option<f64>,
    pub write_p99_us: Option<f64>,
    pub write_p999_us: Option<f64>,
    pub write_max_us: Option<f64>,
    /// Median of first writes to a page that took a fault.
    pub first_write_p50_us: Option<f64>,
    pub writes: u64,
    pub extra_bytes: u64,
    pub file_bytes: u64,
    pub seconds: f64,
}

/// How late writes were over time.
pub struct Curve {
    /// The latest in each slot, in nanoseconds.
    pub worst: Vec<u64>,
    /// When the snapshot began.
    pub origin: Duration,
}

/// All of it.
#[derive(Debug, Serialize)]
pub struct Outcome {
    machine: Machine,
    runs: Vec<Row>,
    /// Medians over fork's; empty where fork was not measured.
    ratio: BTreeMap<String, Ratios>,
    #[serde(skip)]
    medians: Vec<Row>,
}

const RATIO: [(&str, &str); 5] = [
    ("pause_ms", "/pause_ms"),
    ("write_p99_us", "/write_p99_us"),
    ("write_max_us", "/write_max_us"),
    ("extra_bytes", "/extra_bytes"),
    ("seconds", "/seconds"),
];

impl Outcome {
    /// Of all runs of all systems.
    pub fn of(all: &[Measured<(Row, Curve)>]) -> Outcome {
        let rows = |system: &Measured<(Row, Curve)>| -> Vec<Row> {
            system.runs.iter().map(|(row, _)| row.clone()).collect()
        };
        let runs: Vec<Vec<Row>> = all.iter().map(rows).collect();
        let medians: Vec<Row> = runs.iter().map(|runs| medians(runs)).collect();
        let fork = medians.iter().find(|row| row.system == FORK);
        let ours = medians.iter().filter(|row| row.system != FORK);
        let over = |row: &Row| Some((row.system.clone(), ratios(row, fork?, &RATIO)));
        let mut runs = runs.concat();
        runs.sort_by_key(|row| row.run);
        Outcome {
            machine: Machine::here(),
            runs,
            ratio: ours.filter_map(over).collect(),
            medians,
        }
    }

    /// The table below a heading.
    pub fn text(&self, heading: &str) -> String {
        let heads = [
            "pause ms", "p50 us", "p99 us", "p99.9 us", "max us", "first us",
        ];
        let mut table = Table::new(&[&[""], &heads[..], &["extra MiB", "seconds"]].concat());
        for row in &self.medians {
            table.row([
                row.system.clone(),
                cell(row.pause_ms, 3),
                cell(row.write_p50_us, 2),
                cell(row.write_p99_us, 1),
                cell(row.write_p999_us, 1),
                cell(row.write_max_us, 0),
                cell(row.first_write_p50_us, 2),
                cell(row.extra_bytes as f64 / f64::from(1 << 20), 1),
                cell(row.seconds, 2),
            ]);
        }
        let mut out = format!("{heading}\n{}\n\n{table}", self.machine);
        if !self.ratio.is_empty() {
            out += "\nover fork (below 1 is better)\n";
        }
        let over = |row: &Row| Some((row.system.clone(), self.ratio.get(&row.system)?));
        for (system, ratio) in self.medians.iter().filter_map(over) {
            out += &format!(
                "{system:<21} pause {}, p99 {}, max {}, extra memory {}, seconds {}\n",
                cell(ratio["pause_ms"], 3),
                cell(ratio["write_p99_us"], 3),
                cell(ratio["write_max_us"], 3),
                cell(ratio["extra_bytes"], 3),
                cell(ratio["seconds"], 2)
            );
        }
        out
    }
}

/// Shown before a snapshot began.
const BEFORE: f64 = 0.2;
const COLOURS: [&str; 4] = ["#d1393f", "#c77700", "#2f6fdf", "#2da44e"];

/// How late writes were over time in the last runs, one curve a system, on a logarithmic axis.
pub fn draw(all: &[Measured<(Row, Curve)>]) -> String {
    let points = |system: &Measured<(Row, Curve)>| -> Vec<(f64, f64)> {
        let Some((_, curve)) = system.runs.last() else {
            return Vec::new();
        };
        let seconds = |slot: usize| slot as f64 * SLOT.as_secs_f64() - curve.origin.as_secs_f64();
        let slots = curve
            .worst
            .iter()
            .enumerate()
            .filter(|(_, late)| **late > 0);
        let all = slots.map(|(slot, late)| (seconds(slot), *late as f64));
        all.filter(|(seconds, _)| *seconds >= -BEFORE).collect()
    };
    let line = |(index, system): (usize, &Measured<(Row, Curve)>)| Line {
        name: system.name.clone(),
        colour: COLOURS[index % COLOURS.len()],
        points: points(system),
        ..Line::default()
    };
    let lines: Vec<Line> = all.iter().enumerate().map(line).collect();
    let ends = lines.iter().filter_map(|line| line.points.last());
    let end = ends.map(|(seconds, _)| *seconds).fold(0.1, f64::max);
    let fifth = |fifth| f64::from(fifth) / 5.0;
    let ticks = (0..=(end * 5.0) as u32).map(|at| (fifth(at), format!("{} s", fifth(at))));
    Chart {
        title: format!(
            "latest write in each {} ms, by when it was due; the snapshot begins at 0",
            SLOT.as_millis()
        ),
        caption: String::new(),
        x: Axis::linear(-BEFORE, end, ticks.collect()),
        y: Axis::decades(2, 9, time),
        lines,
    }
    .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(system: &str, us: Option<f64>) -> Measured<(Row, Curve)> {
        let row = Row {
            system: system.to_owned(),
            run: 1,
            size_bytes: 4096,
            write_rate: 1,
            threads: 1,
            pause_ms: 123_456_789.0,
            write_p50_us: us,
            write_p99_us: us,
            write_p999_us: us,
            write_max_us: us,
            first_write_p50_us: us,
            writes: 1,
            extra_bytes: 0,
            file_bytes: 4096,
            seconds: 123_456_789.0,
        };
        let curve = Curve {
            worst: vec![],
            origin: Duration::ZERO,
        };
        Measured {
            name: system.to_owned(),
            runs: vec![(row, curve)],
        }
    }

    #[test]
    fn columns_stay_apart_and_what_was_not_measured_is_a_dash() {
        let full = measured("pagetide full", None);
        let text = Outcome::of(&[measured(FORK, Some(60_000_000_000.0)), full]).text("");
        let words = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line[start.len()..].split_whitespace().count()
        };
        assert_eq!(words("fork "), 8, "{text}");
        assert_eq!(words("pagetide full "), 8, "{text}");
        assert!(text.contains("p99 -, max -, extra memory -,"), "{text}");
    }
}
