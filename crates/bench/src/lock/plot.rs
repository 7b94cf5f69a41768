//! Total time over accesses, both on logarithmic scales: cold drawn through, warm dashed.
use svg::Document;
use svg::node::element::{Circle, Line, Polyline, Rectangle, Text};

use super::experiment::{Cache, Results};
use super::strategy::Strategy;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 11] = [
    "#888888", "#1f77b4", "#d62728", "#e6a3a3", "#d98880", "#c0392b", "#2ca02c", "#98d594",
    "#17becf", "#111111", "#9467bd",
];

/// The picture as SVG.
pub fn draw(results: &Results) -> String {
    let total = |ms: f64| ms.max(0.01).log10();
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if low.is_finite() {
            (low.floor(), high.ceil().max(low.floor() + 1.0))
        } else {
            (0.0, 1.0)
        }
    };
    let count = |accesses: u64| (accesses.max(1) as f64).log10();
    let (x_low, x_high) = bounds(&mut results.rows.iter().map(|row| count(row.accesses)));
    let (y_low, y_high) = bounds(&mut results.rows.iter().map(|row| total(row.total_ms)));
    let x = |value: f64| LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y =
        |value: f64| HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM);
    let text = |x: f64, y: f64, anchor: &str, words: String| {
        Text::new(words)
            .set("x", x)
            .set("y", y)
            .set("text-anchor", anchor)
            .set("font-family", "sans-serif")
            .set("font-size", 12)
    };
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH as i32, HEIGHT as i32))
        .add(
            Rectangle::new()
                .set("width", "100%")
                .set("height", "100%")
                .set("fill", "white"),
        );
    for step in y_low as i32..=y_high as i32 {
        let at = y(f64::from(step));
        document = document
            .add(
                Line::new()
                    .set("x1", LEFT)
                    .set("x2", WIDTH - RIGHT)
                    .set("y1", at)
                    .set("y2", at)
                    .set("stroke", "#dddddd"),
            )
            .add(text(
                LEFT - 6.0,
                at + 4.0,
                "end",
                format!("{} ms", 10f64.powi(step)),
            ));
    }
    for step in x_low as i32..=x_high as i32 {
        let at = x(f64::from(step));
        document = document.add(text(
            at,
            HEIGHT - BOTTOM + 18.0,
            "middle",
            format!("10^{step}"),
        ));
    }
    document = document.add(text(
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
        "middle",
        format!(
            "random accesses of a {:.1} GiB file; setup and processing together; drawn through: \
             cold, dashed: warm",
            results.file_bytes as f64 / f64::from(1 << 30)
        ),
    ));
    for (index, (strategy, colour)) in Strategy::ALL.into_iter().zip(COLOURS).enumerate() {
        for cache in [Cache::Cold, Cache::Warm] {
            let places: Vec<(f64, f64)> = results
                .rows
                .iter()
                .filter(|row| row.strategy == strategy && row.cache == cache)
                .map(|row| (x(count(row.accesses)), y(total(row.total_ms))))
                .collect();
            if places.is_empty() {
                continue;
            }
            let points: Vec<String> = places
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let line = Polyline::new()
                .set("points", points.join(" "))
                .set("fill", "none")
                .set("stroke", colour)
                .set(
                    "stroke-width",
                    if strategy == Strategy::Adaptive { 3 } else { 2 },
                )
                .set(
                    "stroke-dasharray",
                    if cache == Cache::Warm { "5 4" } else { "none" },
                );
            document = document.add(line);
            // A strategy with one count has no line.
            for (x, y) in places {
                document = document.add(
                    Circle::new()
                        .set("cx", format!("{x:.1}"))
                        .set("cy", format!("{y:.1}"))
                        .set("r", 3)
                        .set("fill", colour),
                );
            }
        }
        let at = TOP + 18.0 * index as f64;
        document = document
            .add(
                Rectangle::new()
                    .set("x", WIDTH - RIGHT + 15.0)
                    .set("y", at)
                    .set("width", 14)
                    .set("height", 4)
                    .set("fill", colour),
            )
            .add(text(
                WIDTH - RIGHT + 35.0,
                at + 6.0,
                "start",
                strategy.name().to_owned(),
            ));
    }
    document.to_string()
}
