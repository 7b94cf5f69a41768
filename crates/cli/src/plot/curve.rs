//! What a program is expected to lose with less memory, as SVG: its time, and below it the pages
//! that it would miss.
use svg::Document;
use svg::node::element::path::Data;
use svg::node::element::{Group, Line, Path};

use super::svg::{FAULT_PANEL, LEFT, RESIDENT_PANEL, RIGHT, Scale};
use super::svg::{grid, key, page, step, text, tick, vertical};
use crate::curve::{Need, Point};
use crate::size::{Bytes, Count};
use crate::text::printable;

/// Times above this many times the time with all memory are not drawn: nobody would choose them.
const TIME_MAX: f64 = 8.0;

/// The picture of what `command` needs.
pub fn draw(command: &str, need: &Need) -> Document {
    let mut points = need.points().to_vec();
    points.sort_by_key(|point| point.bytes);
    let most = |of: fn(&Point) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let memory = Scale {
        value_max: most(|point| point.bytes as f64).max(4096.0),
        from: LEFT,
        to: RIGHT,
    };
    let time_max = most(|point| point.expected_time).clamp(1.5, TIME_MAX);
    let time_step = step(time_max * 10.0, 4, 1000.0) / 10.0;
    let time = vertical(time_max, time_step, RESIDENT_PANEL);
    let misses_max = most(|point| point.misses_per_second).max(1.0);
    let misses_step = step(misses_max, 3, 1000.0);
    let misses = vertical(misses_max, misses_step, FAULT_PANEL);

    let recommended = need.recommended_bytes();
    let named = format!(
        "--resident {}M, no more than a tenth longer",
        recommended.div_ceil(1 << 20)
    );
    let of_time = |point: &Point| time.place(point.expected_time);
    let of_misses = |point: &Point| misses.place(point.misses_per_second);
    let title: String = printable(command).chars().take(70).collect();
    page("Expected time and missed pages by memory")
        .add(text(LEFT, 24.0, "start", &title).set("class", "title"))
        .add(grid(&time, time_step, |value| format!("{value:.1}")))
        .add(grid(&misses, misses_step, |value| Count(value).to_string()))
        .add(memory_axis(&memory))
        .add(key(LEFT, 46.0, "resident", "time expected, 1 with all"))
        .add(key(LEFT + 300.0, 46.0, "budget", &named))
        .add(text(
            LEFT,
            FAULT_PANEL.0 - 12.0,
            "start",
            "pages missed a second",
        ))
        .add(through(&points, &memory, of_misses).set("class", "memory"))
        .add(through(&points, &memory, of_time).set("class", "resident"))
        .add(
            Line::new()
                .set("x1", memory.place(recommended as f64))
                .set("x2", memory.place(recommended as f64))
                .set("y1", RESIDENT_PANEL.0)
                .set("y2", FAULT_PANEL.1)
                .set("class", "budget"),
        )
}

fn through(points: &[Point], memory: &Scale, place: impl Fn(&Point) -> f64) -> Path {
    let mut data = Data::new();
    for (index, point) in points.iter().enumerate() {
        let at = (memory.place(point.bytes as f64), place(point));
        data = match index {
            0 => data.move_to(at),
            _ => data.line_to(at),
        };
    }
    Path::new().set("d", data)
}

fn memory_axis(memory: &Scale) -> Group {
    let distance = step(memory.value_max, 6, 1024.0);
    let y = FAULT_PANEL.1;
    let mut group = Group::new();
    for n in 0..=(memory.value_max / distance) as u32 {
        let value = f64::from(n) * distance;
        let label = Bytes(value as u64).to_string();
        group = group.add(tick(memory.place(value), &label));
    }
    let middle = (LEFT + RIGHT) / 2.0;
    group.add(text(middle, y + 40.0, "middle", "resident memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_drawn_with_what_is_recommended() {
        let need = Need::for_tests(&[(100 << 20, 1.0, 0.0), (40 << 20, 30.0, 5000.0)], 60 << 20);
        let picture = draw("sort <big>", &need).to_string();
        for expected in [
            "&lt;big&gt;",
            "--resident 60M",
            "64 MiB",
            "pages missed a second",
            "8.0",
        ] {
            assert!(picture.contains(expected), "{expected} is not in {picture}");
        }
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn one_point_can_be_drawn() {
        let picture = draw("true", &Need::for_tests(&[(0, 1.0, 0.0)], 0)).to_string();
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }
}
