//! Pictures as SVG: lines over axes with ticks, and bars.
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// An axis from one value to another, with names at some of them.
#[derive(Debug)]
pub struct Axis {
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
    logarithmic: bool,
}

impl Axis {
    /// A logarithmic one from a power of ten to another, a tick at each, named by `name`.
    pub fn decades(from: i32, to: i32, name: impl Fn(f64) -> String) -> Axis {
        let tick = |power| {
            let at = 10f64.powi(power);
            (at, name(at))
        };
        Axis {
            from: from.into(),
            to: to.max(from + 1).into(),
            ticks: (from..=to).map(tick).collect(),
            logarithmic: true,
        }
    }

    /// The decades that hold all of `values`.
    pub fn around(values: impl Iterator<Item = f64>, name: impl Fn(f64) -> String) -> Axis {
        let logs: Vec<f64> = values.map(|value| value.max(0.01).log10()).collect();
        let low = logs.iter().copied().reduce(f64::min).unwrap_or(0.0).floor();
        let high = logs.iter().copied().reduce(f64::max).unwrap_or(1.0).ceil();
        Axis::decades(low as i32, high as i32, name)
    }

    /// A linear one, with these ticks.
    pub fn linear(from: f64, to: f64, ticks: Vec<(f64, String)>) -> Axis {
        Axis {
            from,
            to,
            ticks,
            logarithmic: false,
        }
    }

    /// Where on the axis a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let value = match self.logarithmic {
            true => value.max(1e-9).log10(),
            false => value,
        };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }
}

/// A line with its key; without points it is neither drawn nor in the key.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Line {
    pub name: String,
    pub colour: &'static str,
    pub points: Vec<(f64, f64)>,
    pub dashed: bool,
    pub wide: bool,
    /// A dot at each point.
    pub dots: bool,
}

/// Lines over two axes.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Chart {
    pub title: String,
    /// Below the x axis.
    pub caption: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

impl Chart {
    /// The picture.
    pub fn draw(&self) -> String {
        let x = |value: f64| LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM);
        let mut out = String::new();
        for (value, name) in &self.x.ticks {
            grid(&mut out, (x(*value), TOP), (x(*value), HEIGHT - BOTTOM));
            text(
                &mut out,
                (x(*value), HEIGHT - BOTTOM + 18.0),
                "middle",
                name,
            );
        }
        for (value, name) in &self.y.ticks {
            grid(&mut out, (LEFT, y(*value)), (WIDTH - RIGHT, y(*value)));
            text(&mut out, (LEFT - 6.0, y(*value) + 4.0), "end", name);
        }
        text(&mut out, (LEFT, TOP - 16.0), "start", &self.title);
        let below = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0);
        text(&mut out, below, "middle", &self.caption);
        let mut keys: Vec<&str> = Vec::new();
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let points = line.points.iter().map(|(at, value)| (x(*at), y(*value)));
            line.draw(&mut out, &points.collect::<Vec<_>>());
            if !keys.contains(&&*line.name) {
                let at = TOP + 18.0 * keys.len() as f64;
                bar(
                    &mut out,
                    (WIDTH - RIGHT + 12.0, at),
                    (14.0, 4.0),
                    line.colour,
                );
                let place = (WIDTH - RIGHT + 32.0, at + 6.0);
                text(&mut out, place, "start", &line.name);
                keys.push(&line.name);
            }
        }
        document(HEIGHT, &out)
    }
}

impl Line {
    fn draw(&self, out: &mut String, places: &[(f64, f64)]) {
        let points: Vec<String> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let dashes = if self.dashed { "5 4" } else { "none" };
        let width = if self.wide { 3 } else { 2 };
        let (points, colour) = (points.join(" "), self.colour);
        add(
            out,
            format_args!(
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" \
                 stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"/>"
            ),
        );
        // A line of one point is none.
        for (x, y) in places.iter().filter(|_| self.dots) {
            add(
                out,
                format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"),
            );
        }
    }
}

/// Bars from the left, each with a name, a value and a colour. Of a value that is no number there
/// is the name alone.
pub fn bars(title: &str, bars: &[(&str, f64, &str)]) -> String {
    let longest = bars.iter().map(|bar| bar.1).fold(1.0, f64::max);
    let mut out = String::new();
    text(&mut out, (10.0, 20.0), "start", title);
    for (index, (name, value, colour)) in bars.iter().enumerate() {
        let y = 36.0 + 24.0 * index as f64;
        let width = value / longest * 480.0;
        text(&mut out, (10.0, y + 14.0), "start", name);
        if value.is_nan() {
            continue;
        }
        bar(&mut out, (280.0, y), (width, 18.0), colour);
        let place = (286.0 + width, y + 14.0);
        text(&mut out, place, "start", &format!("{value:.1}"));
    }
    document(24.0 * bars.len() as f64 + 40.0, &out)
}

fn document(height: f64, inside: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         style=\"background:white\" font-family=\"sans-serif\" font-size=\"12\">\n{inside}</svg>\n"
    )
}

fn add(out: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(out, "{element}").expect("strings take everything");
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    add(
        out,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"),
    );
}

fn grid(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    add(
        out,
        format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#dddddd\"/>"
        ),
    );
}

fn bar(out: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
    add(
        out,
        format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>"
        ),
    );
}

/// A time in nanoseconds with the unit people choose.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 999.0 => format!("{ns:.0} ns"),
        ns if ns < 999e3 => format!("{:.0} us", ns / 1e3),
        ns if ns < 999e6 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_its_ticks_and_a_key_for_each_name() {
        let line = |name: &str, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            points: points.to_vec(),
            dots: true,
            ..Line::default()
        };
        let chart = Chart {
            title: "a < b".to_owned(),
            caption: String::new(),
            x: Axis::decades(1, 3, time),
            y: Axis::around([0.5, 30.0].into_iter(), |ms| format!("{ms} ms")),
            lines: vec![
                line("swap", &[(10.0, 1.0), (1e3, 30.0)]),
                line("swap", &[(10.0, 0.5)]),
                line("none", &[]),
            ],
        };
        let picture = chart.draw();
        for text in ["a &lt; b", ">1 us<", ">0.1 ms<", ">100 ms<"] {
            assert!(picture.contains(text), "{text}: {picture}");
        }
        assert_eq!(picture.matches("<circle").count(), 3);
        assert_eq!(picture.matches("<rect").count(), 1);
        assert!(
            picture.contains("80.0,") && picture.contains("640.0,"),
            "{picture}"
        );
    }
}
