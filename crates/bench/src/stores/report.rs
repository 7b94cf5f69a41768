//! The table, what it says about the bars, and a picture.
use std::io::{Result, Write};

use super::cost::Cost;
use super::{Plan, Row};
use crate::machine::Machine;

pub(super) const VALKEY: &str = "valkey, socket";
pub(super) const VALKEY_SIGNAL: &str = "valkey, socket, signal delivery";
pub(super) const SCAN: &str = "scan, valkey, socket";
pub(super) const SCAN_SIGNAL: &str = "scan, valkey, socket, signal";
pub(super) const RAW: &str = "raw GET, socket, plain client";
pub(super) const RAW_OWN: &str = "raw GET, socket, the store itself";
pub(super) const SAME_CPU: &str = "valkey, server's processor";
pub(super) const SAME_CPU_SIGNAL: &str = "valkey, server's processor, signal";
pub(super) const SAME_CPU_RUN: &str = "valkey, server's processor, run";
pub(super) const SAME_CPU_RAW: &str = "raw GET, server's processor, plain";
pub(super) const SAME_CPU_OWN: &str = "raw GET, server's processor, store";
pub(super) const SWAP_FILE: &str = "kernel swap, file";

/// Mean access in us of the measurements published in 2019: pmbench in a virtual machine, 4 GB set,
/// 1 GB local.
const PUBLISHED: [(&str, f64); 4] = [
    ("2019: user-space pager, RAMCloud", 24.87),
    ("2019: swap on persistent memory", 26.34),
    ("2019: swap on NVMe over Fabrics", 41.73),
    ("2019: swap on SSD", 106.56),
];

/// Prints the table and the ratios.
pub(super) fn print(plan: &Plan, rows: &[Row], cost: Option<Cost>) -> Result<()> {
    let machine = Machine::here();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} MiB set, {} MiB resident, {} random reads of each system, {} runs in turns; \
         {machine:?}\n",
        plan.size >> 20,
        plan.resident >> 20,
        plan.accesses,
        plan.runs
    )?;
    writeln!(
        out,
        "{:<36} {:>9} {:>9} {:>9} {:>10} {:>11}",
        "system", "mean us", "p50 us", "p99 us", "pages/s", "write-backs"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:<36} {:>9.2} {:>9.2} {:>9.2} {:>10.0} {:>11}",
            row.system,
            row.mean_us,
            row.p50_us,
            row.p99_us,
            row.pages_per_s,
            row.writebacks
                .map_or(String::new(), |count| count.to_string())
        )?;
    }
    for (system, mean_us) in PUBLISHED {
        writeln!(out, "{system:<36} {mean_us:>9.2}")?;
    }
    writeln!(out)?;
    let found = |system: &str| rows.iter().find(|row| row.system == system);
    let missing = 1.0 - plan.resident as f64 / plan.size as f64;
    for (ours, raws) in [
        (VALKEY, [RAW, RAW_OWN]),
        (VALKEY_SIGNAL, [RAW, RAW_OWN]),
        (SAME_CPU, [SAME_CPU_RAW, SAME_CPU_OWN]),
        (SAME_CPU_SIGNAL, [SAME_CPU_RAW, SAME_CPU_OWN]),
        (SAME_CPU_RUN, [SAME_CPU_RAW, SAME_CPU_OWN]),
    ] {
        let Some(ours) = found(ours) else { continue };
        for raw in raws.iter().filter_map(|raw| found(raw)) {
            let ratio = ours.mean_us / (raw.mean_us * missing);
            writeln!(
                out,
                "{} over `{}` times the share of misses, {missing:.2}: {ratio:.2}",
                ours.system, raw.system
            )?;
        }
        if let Some(swap) = found(SWAP_FILE) {
            let ratio = ours.mean_us / swap.mean_us;
            writeln!(out, "{} over {}: {ratio:.2}", ours.system, swap.system)?;
        }
    }
    for scan in [SCAN, SCAN_SIGNAL].iter().filter_map(|scan| found(scan)) {
        for raw in [RAW, RAW_OWN].iter().filter_map(|raw| found(raw)) {
            let ratio = scan.pages_per_s / raw.pages_per_s;
            writeln!(
                out,
                "pages/s of `{}` over one `{}` a page: {ratio:.2}",
                scan.system, raw.system
            )?;
        }
    }
    if let Some(cost) = cost {
        let (put, get) = cost.added_us();
        writeln!(
            out,
            "encryption and checksum add {put:.2} us to a page put and {get:.2} us to one read \
             ({cost:?})"
        )?;
    }
    Ok(())
}

/// Bars of the means of random reads, those published beside those measured.
pub(super) fn draw(rows: &[Row]) -> String {
    use svg::node::element::{Rectangle, Text};
    let measured = rows
        .iter()
        .filter(|row| row.writebacks.is_none())
        .map(|row| (row.system.as_str(), row.mean_us, "#3b6ea5"));
    let published = PUBLISHED
        .iter()
        .map(|(system, mean_us)| (*system, *mean_us, "#b0b0b0"));
    let bars: Vec<_> = measured.chain(published).collect();
    let longest = bars.iter().map(|bar| bar.1).fold(1.0, f64::max);
    let height = 24 * bars.len() + 40;
    let mut picture = svg::Document::new()
        .set("viewBox", (0, 0, 800, height))
        .set("font-family", "sans-serif")
        .set("font-size", 13)
        .add(
            Text::new("Mean access to a random page, us")
                .set("x", 10)
                .set("y", 20),
        );
    for (index, (system, mean_us, colour)) in bars.into_iter().enumerate() {
        let y = 36 + 24 * index;
        let width = mean_us / longest * 420.0;
        picture = picture
            .add(Text::new(system).set("x", 10).set("y", y + 14))
            .add(
                Rectangle::new()
                    .set("x", 280)
                    .set("y", y)
                    .set("width", width)
                    .set("height", 18)
                    .set("fill", colour),
            )
            .add(
                Text::new(format!("{mean_us:.1}"))
                    .set("x", 286.0 + width)
                    .set("y", y + 14),
            );
    }
    picture.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_a_bar_for_each_system_measured_and_published() {
        let row = |system: &str, writebacks| Row {
            system: system.to_owned(),
            mean_us: 20.0,
            p50_us: 20.0,
            p99_us: 20.0,
            pages_per_s: 50_000.0,
            writebacks,
        };
        let picture = draw(&[row(VALKEY, None), row(SCAN, Some(0))]);
        assert_eq!(picture.matches("<rect").count(), 1 + PUBLISHED.len());
        let line = serde_json::to_string(&row(VALKEY, None)).unwrap();
        assert_eq!(
            line,
            r#"{"system":"valkey, socket","mean_us":20.0,"p50_us":20.0,"p99_us":20.0,"pages_per_s":50000.0}"#
        );
    }
}
