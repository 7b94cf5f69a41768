//! Drawing the samples as SVG: two panels over one time axis, readable on light and dark
//! backgrounds.
use svg::Document;
use svg::node::element::path::Data;
use svg::node::element::{Group, Line, Path, Style, Text};

use super::samples::Sample;
use crate::size::{Bytes, Count};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 470.0;
pub(super) const LEFT: f64 = 84.0;
pub(super) const RIGHT: f64 = 876.0;
/// Top and bottom of the two panels.
pub(super) const RESIDENT_PANEL: (f64, f64) = (64.0, 270.0);
pub(super) const FAULT_PANEL: (f64, f64) = (316.0, 420.0);

const STYLE: &str = "
text { font: 13px system-ui, sans-serif; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; }
.grid { stroke: #8c959f; stroke-opacity: .28; }
.resident { stroke: #2f6fdf; stroke-width: 1.8; fill: none; stroke-linejoin: round; }
.resident-area { fill: #2f6fdf; fill-opacity: .18; }
.memory { stroke: #7a5cc0; stroke-width: 1.4; fill: none; stroke-linejoin: round; }
.budget { stroke: #d1393f; stroke-width: 1.6; stroke-dasharray: 7 4; fill: none; }
.faults { fill: #c77700; fill-opacity: .75; }
@media (prefers-color-scheme: dark) {
  text { fill: #adbac7; }
  .resident { stroke: #6ca4ff; } .resident-area { fill: #6ca4ff; }
  .memory { stroke: #b39df0; }
  .budget { stroke: #ff7b80; } .faults { fill: #e5a03a; }
}";

/// The linear map from values to places on an axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) value_max: f64,
    pub(super) from: f64,
    pub(super) to: f64,
}

impl Scale {
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = (value / self.value_max).clamp(0.0, 1.0);
        let place = self.from + share * (self.to - self.from);
        // Tenths of a pixel are finer than anyone sees.
        (place * 10.0).round() / 10.0
    }
}

/// The most of a run, in bytes, where it is known better than from samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peak {
    /// Resident.
    pub resident_bytes: u64,
    /// In all.
    pub memory_bytes: u64,
}

/// The picture of a run of `command` that began with a budget of `budget_bytes`.
pub fn draw(command: &str, budget_bytes: u64, samples: &[Sample], peak: Peak) -> Document {
    let columns = columns(samples);
    let budgets = columns.iter().map(|s| s.budget_bytes);
    let rates = columns.iter().map(|s| s.faults_per_second);
    let seconds_max = columns.last().map_or(1.0, |s| s.seconds).max(0.1);
    let most = |of: fn(&Sample) -> u64| columns.iter().map(of).max().unwrap_or(0);
    let resident_max = most(|s| s.resident_bytes).max(peak.resident_bytes);
    let memory_max = most(|s| s.memory_bytes).max(peak.memory_bytes);
    let budget_max = budgets.max().unwrap_or(budget_bytes);
    let faults_max = rates.fold(0.0, f64::max);
    // A budget far above what was used would press the curve to the floor: it is then named, not
    // drawn.
    let budget_drawn = budget_max <= resident_max.saturating_mul(4);
    let bytes_top = match budget_drawn {
        true => budget_max.max(memory_max),
        false => memory_max,
    };

    let time = Scale {
        value_max: seconds_max,
        from: LEFT,
        to: RIGHT,
    };
    let bytes_step = step(bytes_top.max(4096) as f64 * 1.04, 4, 1024.0);
    let bytes = vertical(bytes_top as f64 * 1.04, bytes_step, RESIDENT_PANEL);
    let rate_step = step(faults_max.max(1.0), 3, 1000.0);
    let rate = vertical(faults_max, rate_step, FAULT_PANEL);

    let mut budget_name = budget_name(&columns, budget_bytes);
    if !budget_drawn && !columns.is_empty() {
        budget_name.push_str(" (above the picture)");
    }
    let about =
        "Resident memory and memory in all against the budget over time, and the fault rate";
    let mut document = page(about)
        .add(text(LEFT, 24.0, "start", &title(command, &columns)).set("class", "title"))
        .add(grid(&bytes, bytes_step, |value| {
            Bytes(value as u64).to_string()
        }))
        .add(grid(&rate, rate_step, |value| Count(value).to_string()))
        .add(time_axis(&time))
        .add(legend(resident_max, memory_max, &budget_name))
        .add(text(LEFT, FAULT_PANEL.0 - 12.0, "start", "faults a second"))
        .add(
            area(&columns, &time, &bytes, |s| s.resident_bytes as f64)
                .set("class", "resident-area"),
        )
        .add(area(&columns, &time, &rate, |s| s.faults_per_second).set("class", "faults"))
        .add(curve(&columns, &time, &bytes, |s| s.memory_bytes as f64).set("class", "memory"))
        .add(curve(&columns, &time, &bytes, |s| s.resident_bytes as f64).set("class", "resident"));
    if budget_drawn {
        document = document.add(stairs(&columns, &time, &bytes).set("class", "budget"));
    }
    if columns.is_empty() {
        let middle = (RESIDENT_PANEL.0 + RESIDENT_PANEL.1) / 2.0;
        document = document.add(text(
            (LEFT + RIGHT) / 2.0,
            middle,
            "middle",
            "the program ended before the first sample",
        ));
    }
    document
}

/// An empty picture, with what it is about for those who do not see it.
pub(super) fn page(about: &str) -> Document {
    Document::new()
        .set("viewBox", (0, 0, WIDTH as i32, HEIGHT as i32))
        .set("role", "img")
        .set("aria-label", about)
        .add(Style::new(STYLE))
}

/// Two pictures, one below the other.
pub fn stacked(upper: Document, lower: Document) -> Document {
    let placed = |picture: Document, y: f64| {
        picture
            .set("width", WIDTH)
            .set("height", HEIGHT)
            .set("y", y)
    };
    Document::new()
        .set("viewBox", (0, 0, WIDTH as i32, 2 * HEIGHT as i32))
        .add(placed(upper, 0.0))
        .add(placed(lower, HEIGHT))
}

/// The budget in words, with its change if it changed; `budget_bytes` where nothing was sampled.
fn budget_name(samples: &[Sample], budget_bytes: u64) -> String {
    let budgets = || samples.iter().map(|s| s.budget_bytes);
    let least = budgets().min().unwrap_or(budget_bytes);
    let most = budgets().max().unwrap_or(budget_bytes);
    match most == least {
        true => format!("budget, {}", Bytes(least)),
        false => format!("budget, {} to {}", Bytes(least), Bytes(most)),
    }
}

fn title(command: &str, samples: &[Sample]) -> String {
    let command: String = crate::text::printable(command).chars().take(70).collect();
    match samples.iter().map(|s| s.processes).max() {
        Some(several) if several > 1 => format!("{command} (up to {several} processes, added up)"),
        _ => command,
    }
}

/// One sample a pixel column: the most of what falls into it, so that no peak is lost.
fn columns(samples: &[Sample]) -> Vec<Sample> {
    let per_column = samples.len().div_ceil((RIGHT - LEFT) as usize).max(1);
    samples
        .chunks(per_column)
        .map(|chunk| Sample {
            resident_bytes: chunk.iter().map(|s| s.resident_bytes).max().unwrap_or(0),
            memory_bytes: chunk.iter().map(|s| s.memory_bytes).max().unwrap_or(0),
            faults_per_second: chunk
                .iter()
                .map(|s| s.faults_per_second)
                .fold(0.0, f64::max),
            ..chunk[chunk.len() - 1]
        })
        .collect()
}

/// A round distance between grid lines so that about `lines` fit under `most`: 1, 2 or 5 (for bytes
/// 1, 2, 4, ...) times a unit.
pub(super) fn step(most: f64, lines: u32, unit: f64) -> f64 {
    let raw = most / f64::from(lines);
    let mut step = 1.0;
    if unit == 1024.0 {
        while step < raw {
            step *= 2.0;
        }
        return step;
    }
    while step * 10.0 <= raw {
        step *= 10.0;
    }
    while step < 1.0 && raw < step {
        step /= 10.0;
    }
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|round| round * step)
        .find(|round| *round >= raw)
        .unwrap_or(step * 10.0)
}

/// A vertical axis that ends on a grid line.
pub(super) fn vertical(most: f64, step: f64, panel: (f64, f64)) -> Scale {
    Scale {
        value_max: (most / step).ceil().max(1.0) * step,
        from: panel.1,
        to: panel.0,
    }
}

pub(super) fn text(x: f64, y: f64, anchor: &str, content: &str) -> Text {
    Text::new(content)
        .set("x", x)
        .set("y", y)
        .set("text-anchor", anchor)
}

pub(super) fn key(x: f64, y: f64, class: &str, content: &str) -> Group {
    let line = Line::new()
        .set("x1", x)
        .set("x2", x + 26.0)
        .set("y1", y - 4.0)
        .set("y2", y - 4.0)
        .set("class", class);
    Group::new()
        .add(line)
        .add(text(x + 34.0, y, "start", content))
}

fn legend(resident_max: u64, memory_max: u64, budget_name: &str) -> Group {
    let resident = format!("resident, at most {}", Bytes(resident_max));
    let memory = format!("in all, at most {}", Bytes(memory_max));
    Group::new()
        .add(key(LEFT, 46.0, "resident", &resident))
        .add(key(LEFT + 230.0, 46.0, "memory", &memory))
        .add(key(LEFT + 440.0, 46.0, "budget", budget_name))
}

pub(super) fn grid(axis: &Scale, step: f64, label: impl Fn(f64) -> String) -> Group {
    let lines = (axis.value_max / step).round() as u32;
    (0..=lines)
        .map(|n| f64::from(n) * step)
        .fold(Group::new(), |group, value| {
            let y = axis.place(value);
            let line = Line::new()
                .set("x1", LEFT)
                .set("x2", RIGHT)
                .set("y1", y)
                .set("y2", y)
                .set("class", "grid");
            group
                .add(line)
                .add(text(LEFT - 8.0, y + 4.5, "end", &label(value)))
        })
}

/// A mark at `x` on the axis below both panels, with its label.
pub(super) fn tick(x: f64, label: &str) -> Group {
    let y = FAULT_PANEL.1;
    let line = Line::new()
        .set("x1", x)
        .set("x2", x)
        .set("y1", y)
        .set("y2", y + 5.0)
        .set("class", "grid");
    Group::new()
        .add(line)
        .add(text(x, y + 20.0, "middle", label))
}

fn time_axis(time: &Scale) -> Group {
    let (unit_seconds, unit) = match time.value_max {
        s if s >= 3.0 * 3600.0 => (3600.0, "h"),
        s if s >= 300.0 => (60.0, "min"),
        _ => (1.0, "s"),
    };
    let most = time.value_max / unit_seconds;
    let distance = if most < 6.0 {
        step(most * 10.0, 8, 1000.0) / 10.0
    } else {
        step(most, 8, 1000.0)
    };
    let y = FAULT_PANEL.1;
    let mut group = Group::new();
    for n in 0..=(most / distance) as u32 {
        let value = f64::from(n) * distance;
        let x = time.place(value * unit_seconds);
        let label = format!("{} {unit}", (value * 100.0).round() / 100.0);
        group = group.add(tick(x, &label));
    }
    group.add(text(
        (LEFT + RIGHT) / 2.0,
        y + 40.0,
        "middle",
        "time since the start",
    ))
}

fn curve(samples: &[Sample], time: &Scale, axis: &Scale, value: impl Fn(&Sample) -> f64) -> Path {
    let mut data = Data::new();
    for (index, sample) in samples.iter().enumerate() {
        let point = (time.place(sample.seconds), axis.place(value(sample)));
        data = if index == 0 {
            data.move_to(point)
        } else {
            data.line_to(point)
        };
    }
    Path::new().set("d", data)
}

fn area(samples: &[Sample], time: &Scale, axis: &Scale, value: impl Fn(&Sample) -> f64) -> Path {
    let mut data = Data::new();
    if let (Some(first), Some(last)) = (samples.first(), samples.last()) {
        data = data.move_to((time.place(first.seconds), axis.from));
        for sample in samples {
            data = data.line_to((time.place(sample.seconds), axis.place(value(sample))));
        }
        data = data.line_to((time.place(last.seconds), axis.from)).close();
    }
    Path::new().set("d", data)
}

/// The budget changes at once, not gradually.
fn stairs(samples: &[Sample], time: &Scale, axis: &Scale) -> Path {
    let mut data = Data::new();
    if let (Some(first), Some(last)) = (samples.first(), samples.last()) {
        let mut budget = first.budget_bytes;
        data = data.move_to((LEFT, axis.place(budget as f64)));
        for sample in samples.iter().filter(|s| s.budget_bytes > 0) {
            if sample.budget_bytes != budget {
                budget = sample.budget_bytes;
                data = data
                    .horizontal_line_to(time.place(sample.seconds))
                    .vertical_line_to(axis.place(budget as f64));
            }
        }
        data = data.horizontal_line_to(time.place(last.seconds));
    }
    Path::new().set("d", data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_at_round_values() {
        assert_eq!(step(300.0 * 1048576.0, 4, 1024.0), 128.0 * 1048576.0);
        assert_eq!(step(100.0, 4, 1000.0), 50.0);
        assert_eq!(step(12_345.0, 3, 1000.0), 5_000.0);
    }

    #[test]
    fn a_picture_names_its_numbers_and_escapes_the_command() {
        let samples: Vec<Sample> = (0..5000u32)
            .map(|n| Sample {
                seconds: f64::from(n) * 0.05,
                resident_bytes: (200 << 20) + u64::from(n % 7),
                memory_bytes: 300 << 20,
                budget_bytes: 256 << 20,
                faults_per_second: f64::from(n % 100) * 50.0,
                processes: 1,
            })
            .collect();
        let peak = Peak {
            resident_bytes: 210 << 20,
            memory_bytes: 0,
        };
        let picture = draw("sort <big> & more", 256 << 20, &samples, peak).to_string();
        for expected in [
            "resident, at most 210 MiB",
            "in all, at most 300 MiB",
            "budget, 256 MiB",
            "faults a second",
            "&lt;big&gt; &amp;",
            "50 s",
        ] {
            assert!(picture.contains(expected), "{expected}");
        }
        assert!(picture.len() < 100_000);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn no_samples_and_one_sample_can_be_drawn() {
        let none = draw("true", 256 << 20, &[], Peak::default()).to_string();
        assert!(none.contains("before the first sample") && none.contains("budget, 256 MiB"));
        let one = Sample {
            seconds: 0.01,
            resident_bytes: 4096,
            budget_bytes: 1 << 40,
            ..Sample::default()
        };
        let picture = draw("true", 1 << 40, &[one], Peak::default()).to_string();
        assert!(picture.contains("(above the picture)") && !picture.contains("NaN"));
    }
}
