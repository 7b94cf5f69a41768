//! How many accesses take longer than so long: both scales logarithmic, Pagetide beside the peer.
use std::cmp::Ordering;

use svg::Document;
use svg::node::element::{Line, Polyline, Rectangle, Text};

use super::experiment::{Results, System};
use super::floor;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Of the peer's settings, of Pagetide, and of the bare handlers.
const PEERS: [&str; 2] = ["#d62728", "#e6a3a3"];
const PAGETIDE: &str = "#1f77b4";
const FLOORS: [&str; 2] = ["#98df8a", "#2ca02c"];
/// Decades shown: times from 10 ns, shares down to one in a hundred thousand.
const X: (f64, f64) = (1.0, 7.0);
const Y: (f64, f64) = (-5.0, 0.0);

fn x(nanoseconds: f64) -> f64 {
    let decade = nanoseconds.max(1.0).log10().clamp(X.0, X.1);
    LEFT + (decade - X.0) / (X.1 - X.0) * (WIDTH - LEFT - RIGHT)
}

fn y(share: f64) -> f64 {
    let decade = share.max(1e-9).log10().clamp(Y.0, Y.1);
    TOP + (Y.1 - decade) / (Y.1 - Y.0) * (HEIGHT - TOP - BOTTOM)
}

fn text(x: f64, y: f64, anchor: &str, words: String) -> Text {
    Text::new(words)
        .set("x", x)
        .set("y", y)
        .set("text-anchor", anchor)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
}

fn grid(x: (f64, f64), y: (f64, f64)) -> Line {
    Line::new()
        .set("x1", x.0)
        .set("x2", x.1)
        .set("y1", y.0)
        .set("y2", y.1)
        .set("stroke", "#dddddd")
}

/// Points of the line: the share of accesses slower than each time.
fn points(distribution: &[(u64, u64)]) -> String {
    let total: u64 = distribution.iter().map(|(_, count)| count).sum();
    let mut slower = total;
    let mut points = vec![format!("{:.1},{:.1}", x(1.0), y(1.0))];
    for (time, count) in distribution {
        let before = slower as f64 / total as f64;
        slower -= count;
        let after = slower as f64 / total as f64;
        points.push(format!("{:.1},{:.1}", x(*time as f64), y(before)));
        points.push(format!("{:.1},{:.1}", x(*time as f64), y(after)));
    }
    points.join(" ")
}

/// The picture as SVG.
pub fn draw(results: &Results, systems: &[System]) -> String {
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH as i32, HEIGHT as i32))
        .add(
            Rectangle::new()
                .set("width", "100%")
                .set("height", "100%")
                .set("fill", "white"),
        );
    let names = [
        "10 ns", "100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms",
    ];
    for (step, name) in names.into_iter().enumerate() {
        let at = x(10f64.powi(step as i32 + 1));
        document = document
            .add(grid((at, at), (TOP, HEIGHT - BOTTOM)))
            .add(text(at, HEIGHT - BOTTOM + 18.0, "middle", name.to_owned()));
    }
    for (step, name) in ["all", "10 %", "1 %", "0.1 %", "0.01 %", "0.001 %"]
        .into_iter()
        .enumerate()
    {
        let at = y(10f64.powi(-(step as i32)));
        document = document
            .add(grid((LEFT, WIDTH - RIGHT), (at, at)))
            .add(text(LEFT - 6.0, at + 4.0, "end", name.to_owned()));
    }
    let first = &results.medians[0];
    let title = format!(
        "Accesses that take longer: {}, {:.0} MiB, {:.0} MiB resident, {} % writes, {} threads",
        first.pattern.name(),
        results.size_bytes as f64 / f64::from(1 << 20),
        results.resident_bytes as f64 / f64::from(1 << 20),
        first.writes,
        first.threads
    );
    document = document.add(text(LEFT, TOP - 16.0, "start", title));
    let time = format!(
        "time of one access; {} cores, Linux {}",
        results.machine.cores, results.machine.kernel
    );
    document = document.add(text(
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
        "middle",
        time,
    ));
    let is_floor = |system: &System| [floor::BARE, floor::STORE].contains(&&*system.name);
    let pagetide = systems.iter().rposition(|system| !is_floor(system));
    let pagetide = pagetide.unwrap_or(0);
    for (index, system) in systems.iter().enumerate() {
        // Pagetide comes last and is always blue.
        let colour = match index.cmp(&pagetide) {
            Ordering::Less => PEERS[index % PEERS.len()],
            Ordering::Equal => PAGETIDE,
            Ordering::Greater => FLOORS[(index - pagetide - 1) % FLOORS.len()],
        };
        let at = TOP + 18.0 * index as f64;
        document = document
            .add(
                Polyline::new()
                    .set("points", points(&system.distribution()))
                    .set("fill", "none")
                    .set("stroke", colour)
                    .set("stroke-width", 2),
            )
            .add(
                Rectangle::new()
                    .set("x", WIDTH - RIGHT + 12.0)
                    .set("y", at)
                    .set("width", 14)
                    .set("height", 4)
                    .set("fill", colour),
            )
            .add(text(
                WIDTH - RIGHT + 32.0,
                at + 6.0,
                "start",
                system.name.clone(),
            ));
    }
    document.to_string()
}
