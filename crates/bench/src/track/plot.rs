//! How late writes were over time, as SVG: one curve a system, on a logarithmic axis.
use std::fmt::Write as _;
use std::time::Duration;

use super::writers::SLOT;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 370.0;
const RIGHT: f64 = 880.0;
/// Powers of ten of microseconds on the axis.
const DECADES: (i32, i32) = (-1, 6);
const COLOURS: [&str; 4] = ["#d1393f", "#c77700", "#2f6fdf", "#2da44e"];
/// Shown before the snapshot began.
const BEFORE: Duration = Duration::from_millis(200);

/// The latest write of each slot in nanoseconds, per system, with the time the snapshot began.
pub fn draw(curves: &[(&str, Vec<u64>, Duration)]) -> String {
    let slot = SLOT.as_secs_f64();
    let used = |worst: &[u64]| {
        worst
            .iter()
            .rposition(|late| *late > 0)
            .map_or(0, |last| last + 1)
    };
    let longest = curves
        .iter()
        .map(|(_, worst, origin)| used(worst) as f64 * slot - origin.as_secs_f64());
    let seconds_max = longest.fold(0.1, f64::max);
    let span = seconds_max + BEFORE.as_secs_f64();
    let x = |seconds: f64| LEFT + (seconds + BEFORE.as_secs_f64()) / span * (RIGHT - LEFT);
    let y = |us: f64| {
        let (low, high) = (f64::from(DECADES.0), f64::from(DECADES.1));
        let share = (us.max(1e-3).log10() - low) / (high - low);
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         role=\"img\">\n<style>text{{font:13px system-ui,sans-serif;fill:#57606a}}path{{fill:none;stroke-width:1.4}}line{{stroke:#8c959f;stroke-opacity:.3}}</style>\n<text x=\"{LEFT}\" y=\"20\">latest write in each {} ms, by when it was due; the snapshot begins at 0</text>\n",
        SLOT.as_millis()
    );
    for decade in DECADES.0..=DECADES.1 {
        let (us, at) = (10f64.powi(decade), y(10f64.powi(decade)));
        let label = match us {
            us if us < 1e3 => format!("{us} us"),
            us if us < 1e6 => format!("{} ms", us / 1e3),
            us => format!("{} s", us / 1e6),
        };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for tenth in 0..=(seconds_max * 5.0) as u32 {
        let seconds = f64::from(tenth) / 5.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{seconds} s</text>",
            x(seconds),
            BOTTOM + 20.0
        );
    }
    for (number, (name, worst, origin)) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let mut path = String::new();
        for (slot_number, late) in worst[..used(worst)].iter().enumerate() {
            let seconds = slot_number as f64 * slot - origin.as_secs_f64();
            if seconds >= -BEFORE.as_secs_f64() && *late > 0 {
                let command = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(
                    path,
                    "{command}{:.1} {:.1}",
                    x(seconds),
                    y(*late as f64 / 1e3)
                );
            }
        }
        let key = LEFT + 200.0 * number as f64;
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" stroke=\"{colour}\"/><text x=\"{key:.0}\" y=\"40\" \
             style=\"fill:{colour}\">{name}</text>"
        );
    }
    svg + "</svg>\n"
}
