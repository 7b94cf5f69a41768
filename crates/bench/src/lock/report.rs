//! What `lock` tells people: tables and a picture.
use super::results::{Cache, Results, Row};
use super::strategy::{PUBLISHED_ACCESSES, Strategy};
use super::task::Order;
use crate::plot::{Axis, Chart, Line};
use crate::report::{Table, cell, mib};

/// One table for each state of the cache and each count of accesses, and how adaptive compares.
pub fn text(results: &Results) -> String {
    let mut out = format!(
        "file of {:.2} GiB, {} of a byte, median of {} run(s) taken in turns; times in ms\n{}\n",
        results.file_bytes as f64 / f64::from(1 << 30),
        match results.order {
            Order::Random => "random accesses",
            Order::Sequential => "accesses in order, one a page,",
        },
        results.runs,
        results.machine
    );
    let same = |a: &Row, b: &Row| a.cache == b.cache && a.accesses == b.accesses;
    for rows in results.rows.chunk_by(same) {
        out += &section(rows);
    }
    for skipped in &results.skipped {
        out += &format!(
            "\nnot run: {} at {} accesses: {}\n",
            skipped.strategy.name(),
            skipped.accesses,
            skipped.reason
        );
    }
    out
}

fn section(rows: &[Row]) -> String {
    let cache = match rows[0].cache {
        Cache::Cold => "cold (nothing in the page cache)",
        Cache::Warm => "warm (all in the page cache)",
    };
    let accesses = rows[0].accesses;
    let mut heads = vec![
        "strategy",
        "setup",
        "processing",
        "total",
        "(least to most)",
    ];
    heads.extend(["resident", "major"]);
    heads.extend((accesses == PUBLISHED_ACCESSES).then_some("published 2015"));
    let mut table = Table::new(&heads);
    for row in rows {
        let published = row.strategy.published();
        let published = published.map(|(setup, processing)| format!("{setup} + {processing}"));
        table.row([
            row.strategy.name().to_owned(),
            cell(row.setup_ms, 3),
            cell(row.processing_ms, 2),
            cell(row.total_ms, 2),
            format!("({:.2} to {:.2})", row.total_ms_min, row.total_ms_max),
            mib(row.resident_bytes as f64),
            row.major_faults.to_string(),
            published.unwrap_or_default(),
        ]);
    }
    let verdict = verdict(rows).unwrap_or_default();
    format!("\n{cache}, {accesses} accesses\n{table}{verdict}")
}

/// Adaptive against the best of the others that keep what is touched, without knowing the accesses
/// to come.
fn verdict(rows: &[Row]) -> Option<String> {
    use Strategy::{Adaptive, None, Prefetch};
    let adaptive = rows.iter().find(|row| row.strategy == Adaptive)?;
    let others = rows
        .iter()
        .filter(|row| ![Adaptive, None, Prefetch].contains(&row.strategy));
    let best = others.min_by(|a, b| a.total_ms.total_cmp(&b.total_ms))?;
    Some(format!(
        "adaptive over the best single strategy that locks ({}): {:.2}; touched {}\n",
        best.strategy.name(),
        adaptive.total_ms / best.total_ms,
        mib(adaptive.touched_bytes as f64)
    ))
}

const COLOURS: [&str; 11] = [
    "#888888", "#1f77b4", "#d62728", "#e6a3a3", "#d98880", "#c0392b", "#2ca02c", "#98d594",
    "#17becf", "#111111", "#9467bd",
];

/// Total time over accesses, both on logarithmic scales: cold drawn through, warm dashed.
pub fn draw(results: &Results) -> String {
    let mut lines = Vec::new();
    for (strategy, colour) in Strategy::all().zip(COLOURS) {
        for cache in [Cache::Cold, Cache::Warm] {
            let rows = results.rows.iter();
            let rows = rows.filter(|row| row.strategy == strategy && row.cache == cache);
            lines.push(Line {
                name: strategy.name().to_owned(),
                colour,
                points: rows
                    .map(|row| (row.accesses as f64, row.total_ms))
                    .collect(),
                dashed: cache == Cache::Warm,
                wide: strategy == Strategy::Adaptive,
                // A strategy with one count has no line.
                dots: true,
            });
        }
    }
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x = Axis::around(points().map(|point| point.0), |at| format!("{at}"));
    let y = Axis::around(points().map(|point| point.1), |ms| format!("{ms} ms"));
    Chart {
        title: String::new(),
        caption: format!(
            "random accesses of a {:.1} GiB file; setup and processing together; drawn through: \
             cold, dashed: warm",
            results.file_bytes as f64 / f64::from(1 << 30)
        ),
        x,
        y,
        lines,
    }
    .draw()
}
