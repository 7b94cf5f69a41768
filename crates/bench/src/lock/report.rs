//! The tables that people read.
use std::fmt::Write;

use super::experiment::{Cache, Results, Row};
use super::published;
use super::strategy::Strategy;
use super::worker::Order;

/// One table for each state of the cache and each count of accesses, and how adaptive compares.
pub fn tables(results: &Results) -> String {
    let machine = &results.machine;
    let mut out = format!(
        "file of {:.2} GiB, {} of a byte, median of {} taken in turns; times in ms\n{}, {} cores, \
         Linux {}, THP {}\n",
        results.file_bytes as f64 / f64::from(1 << 30),
        match results.order {
            Order::Random => "random accesses",
            Order::Sequential => "accesses in order, one a page,",
        },
        match results.runs {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        },
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.thp,
    );
    let mut seen: Vec<(Cache, u64)> = Vec::new();
    for row in &results.rows {
        if !seen.contains(&(row.cache, row.accesses)) {
            seen.push((row.cache, row.accesses));
        }
    }
    for (cache, accesses) in seen {
        let rows: Vec<&Row> = results
            .rows
            .iter()
            .filter(|row| row.cache == cache && row.accesses == accesses)
            .collect();
        table(&mut out, cache, accesses, &rows);
    }
    for skipped in &results.skipped {
        let _ = writeln!(
            out,
            "\nnot run: {} at {} accesses: {}",
            skipped.strategy.name(),
            skipped.accesses,
            skipped.reason
        );
    }
    out
}

fn table(out: &mut String, cache: Cache, accesses: u64, rows: &[&Row]) {
    let cache = match cache {
        Cache::Cold => "cold (nothing in the page cache)",
        Cache::Warm => "warm (all in the page cache)",
    };
    let with_published = accesses == published::ACCESSES;
    let _ = write!(
        out,
        "\n{cache}, {accesses} accesses\n{:<16} {:>10} {:>11} {:>11} {:>19} {:>10} {:>9}",
        "strategy", "setup", "processing", "total", "(least to most)", "resident", "major"
    );
    if with_published {
        out.push_str("  published 2015");
    }
    out.push('\n');
    for row in rows {
        let _ = write!(
            out,
            "{:<16} {:>10.3} {:>11.1} {:>11.1} {:>9.0} {:>9.0} {:>6.0} MiB {:>9}",
            row.strategy.name(),
            row.setup_ms,
            row.processing_ms,
            row.total_ms,
            row.total_ms_min,
            row.total_ms_max,
            row.resident_bytes as f64 / f64::from(1 << 20),
            row.major_faults
        );
        if let Some((setup, processing)) = published::of(row.strategy).filter(|_| with_published) {
            let _ = write!(out, "  {setup} + {processing}");
        }
        out.push('\n');
    }
    if let Some(line) = verdict(rows) {
        let _ = writeln!(out, "{line}");
    }
}

/// Adaptive against the best of the others that keep what is touched.
fn verdict(rows: &[&Row]) -> Option<String> {
    let adaptive = rows.iter().find(|row| row.strategy == Strategy::Adaptive)?;
    let best = rows
        .iter()
        .filter(|row| !matches!(row.strategy, Strategy::Adaptive | Strategy::None))
        .filter(|row| !row.strategy.knows_the_future())
        .min_by(|a, b| a.total_ms.total_cmp(&b.total_ms))?;
    Some(format!(
        "adaptive over the best single strategy that locks ({}): {:.2}; touched {:.1} MiB",
        best.strategy.name(),
        adaptive.total_ms / best.total_ms,
        adaptive.touched_bytes as f64 / f64::from(1 << 20)
    ))
}
