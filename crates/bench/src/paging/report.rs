//! What `paging` tells people: a table of accesses, a table of faults, and a picture.
use super::figures::{Figures, Results};
use super::floor;
use super::pattern::Pattern;
use super::task::Findings;
use crate::plot::{Axis, Chart, Line, time};
use crate::report::{Table, cell, mib};
use crate::runner::Measured;

/// Medians of all systems, with the machine and the ratios.
pub fn text(results: &Results) -> String {
    let mut out = head(results);
    out += &accesses(results).to_string();
    out += &format!("\n{}", faults(results));
    if let (Some(ratio), Some(peer)) = (&results.ratio, &results.peer) {
        out += &format!(
            "\nover `{peer}`: mean {}, p99 {}, time {} (below 1 is better); pages/s {} (above 1 is \
             better)\n",
            cell(ratio["mean"], 2),
            cell(ratio["p99"], 3),
            cell(ratio["time"], 2),
            cell(ratio["pages_per_s"], 2)
        );
    }
    if let Some([bare, store]) = results.floor {
        out += &format!(
            "the least a fault by signal takes here, over the same: mean {bare:.2} without \
             contents, {store:.2} with the store's read\n"
        );
    }
    if let Some(added) = results.added {
        out += &format!(
            "a fault takes {:.2} us more than the bare device in the mean, {:.2} at the median\n",
            added.mean_us, added.p50_us
        );
    }
    if results.graph.is_some() {
        out += "every run gave the answer of the run in unbounded memory\n";
    }
    out
}

fn head(results: &Results) -> String {
    let first = &results.medians[0];
    let what = match results.graph {
        Some(shape) => format!(
            "BFS and PageRank, {} vertices, {} undirected edges; times are a vertex's",
            shape.vertices(),
            shape.edges
        ),
        None => format!("{} accesses", results.accesses),
    };
    format!(
        "{} {}: {} data, {} resident, {what}, {} % writes, {} threads, medians of {} runs, times \
         in us\n{}{}\n\n",
        first.pattern.name(),
        results.store,
        mib(results.size_bytes as f64),
        mib(results.resident_bytes as f64),
        first.writes,
        first.threads,
        results.runs.len() / results.medians.len(),
        results.machine,
        match results.thp_disabled {
            true => " (THP off in the workers)",
            false => "",
        }
    )
}

fn accesses(results: &Results) -> Table {
    let per_second = match results.graph {
        Some(_) => "vertices/s",
        None => "pages/s",
    };
    let heads = [
        "system", "mean", "p50", "p90", "p99", "p99.9", per_second, "cpu s",
    ];
    let mut table = Table::new(&heads);
    for f in &results.medians {
        table.row([
            f.system.clone(),
            cell(f.mean_us, 2),
            cell(f.p50_us, 2),
            cell(f.p90_us, 2),
            cell(f.p99_us, 1),
            cell(f.p999_us, 1),
            cell(f.pages_per_s, 0),
            cell(f.cpu_seconds, 2),
        ]);
    }
    table
}

fn faults(results: &Results) -> Table {
    let heads = [
        "",
        "faults",
        "mean",
        "p50",
        "p99",
        "resident max",
        "store",
        "writes",
    ];
    let mut table = Table::new(&[&heads[..], &["covered", "accurate"]].concat());
    let percent = |share: Option<f64>| match share {
        None => cell(None, 0),
        Some(share) => format!("{:.0} %", share * 100.0),
    };
    for f in &results.medians {
        table.row([
            f.system.clone(),
            cell(f.faults, 0),
            cell(f.fault_mean_us, 2),
            cell(f.fault_p50_us, 2),
            cell(f.fault_p99_us, 1),
            mib(f.resident_max_bytes),
            mib(f.store_bytes),
            cell(f.store_writes, 0),
            percent(f.prefetch_coverage),
            percent(f.prefetch_accuracy),
        ]);
    }
    table
}

/// Points of a line: the share of accesses slower than each time.
fn slower(system: &Measured<Findings>) -> Vec<(f64, f64)> {
    let runs = system.runs.iter();
    let mut all: Vec<(u64, u64)> = runs.flat_map(|run| run.distribution.clone()).collect();
    all.sort_unstable();
    let total: u64 = all.iter().map(|(_, count)| count).sum();
    let mut points = vec![(1.0, 1.0)];
    let mut left = total;
    for (time, count) in all {
        points.push((time as f64, left as f64 / total as f64));
        left -= count;
        points.push((time as f64, left as f64 / total as f64));
    }
    points
}

/// How many accesses take longer than so long, both scales logarithmic: the first `peers` systems
/// are the peer's.
pub fn draw(results: &Results, all: &[Measured<Findings>], peers: usize) -> String {
    let line = |(index, system): (usize, &Measured<Findings>)| Line {
        name: system.name.clone(),
        colour: match &*system.name {
            floor::BARE => "#98df8a",
            floor::STORE => "#2ca02c",
            _ if index < peers => ["#d62728", "#e6a3a3"][index % 2],
            _ => "#1f77b4",
        },
        points: slower(system),
        ..Line::default()
    };
    let first: &Figures = &results.medians[0];
    Chart {
        title: format!(
            "Accesses that take longer: {}, {}, {} resident, {} % writes, {} threads",
            first.pattern.name(),
            mib(results.size_bytes as f64),
            mib(results.resident_bytes as f64),
            first.writes,
            first.threads
        ),
        caption: format!(
            "time of one {}; {} cores, Linux {}",
            match first.pattern {
                Pattern::Graph => "vertex",
                _ => "access",
            },
            results.machine.cores,
            results.machine.kernel
        ),
        x: Axis::decades(1, 7, time),
        y: Axis::decades(-5, 0, |share| match share {
            1.0 => "all".to_owned(),
            share => format!("{} %", (share * 1e5).round() / 1e3),
        }),
        lines: all.iter().enumerate().map(line).collect(),
    }
    .draw()
}
