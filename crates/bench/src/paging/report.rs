//! The table that people read.
use std::fmt::Write;

use super::experiment::Results;
use super::pattern::Pattern;

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// Medians of all systems, with the machine and the ratios.
pub fn table(results: &Results) -> String {
    let machine = &results.machine;
    let first = &results.medians[0];
    let what = match results.graph {
        Some(shape) => format!(
            "BFS and PageRank, {} vertices, {} undirected edges; times are a vertex's",
            shape.vertices(),
            shape.edges
        ),
        None => format!("{} accesses", results.accesses),
    };
    let mut out = format!(
        "{} {}: {} data, {} resident, {what}, {} % writes, {} threads, medians of {} runs, times \
         in us\n\
         {}, {} cores, Linux {}, THP {}{}, clock {}\n\n{:<22} {:>8} {:>8} {:>8} {:>8} {:>9} \
         {:>10} {:>7}\n",
        first.pattern.name(),
        results.store,
        mib(results.size_bytes as f64),
        mib(results.resident_bytes as f64),
        first.writes,
        first.threads,
        results.runs.len() / results.medians.len(),
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.thp,
        if results.thp_disabled {
            " (off in the workers)"
        } else {
            ""
        },
        machine.clock_source,
        "system",
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        if first.pattern == Pattern::Graph {
            "vertices/s"
        } else {
            "pages/s"
        },
        "cpu s",
    );
    let fine = "strings take everything";
    for f in &results.medians {
        let [mean, p50, p90] = [f.mean_us, f.p50_us, f.p90_us].map(|us| format!("{us:.2}"));
        writeln!(
            out,
            "{:<22} {mean:>8} {p50:>8} {p90:>8} {:>8.1} {:>9.1} {:>10.0} {:>7.2}",
            f.system, f.p99_us, f.p999_us, f.pages_per_s, f.cpu_seconds
        )
        .expect(fine);
    }
    writeln!(
        out,
        "\n{:<22} {:>9} {:>8} {:>8} {:>8} {:>12} {:>12} {:>10} {:>8} {:>8}",
        "",
        "faults",
        "mean",
        "p50",
        "p99",
        "resident max",
        "store",
        "writes",
        "covered",
        "accurate"
    )
    .expect(fine);
    for f in &results.medians {
        writeln!(
            out,
            "{:<22} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>12} {:>12} {:>10.0} {:>8} {:>8}",
            f.system,
            f.faults,
            f.fault_mean_us,
            f.fault_p50_us,
            f.fault_p99_us,
            mib(f.resident_max_bytes),
            mib(f.store_bytes),
            f.store_writes,
            percent(f.prefetch_coverage),
            percent(f.prefetch_accuracy),
        )
        .expect(fine);
    }
    if let (Some(ratio), Some(peer)) = (results.ratio, &results.peer) {
        writeln!(
            out,
            "\nover `{peer}`: mean {:.2}, p99 {:.3}, time {:.2} (below 1 is better); pages/s \
             {:.2} (above 1 is better)",
            ratio.mean, ratio.p99, ratio.time, ratio.pages_per_s
        )
        .expect(fine);
    }
    if let Some([bare, store]) = results.floor {
        writeln!(
            out,
            "the least a fault by signal takes here, over the same: mean {bare:.2} without \
             contents, {store:.2} with the store's read"
        )
        .expect(fine);
    }
    if let Some(added) = results.added {
        writeln!(
            out,
            "a fault takes {:.2} us more than the bare device in the mean, {:.2} at the median",
            added.mean_us, added.p50_us
        )
        .expect(fine);
    }
    if results.graph.is_some() {
        writeln!(
            out,
            "every run gave the answer of the run in unbounded memory"
        )
        .expect(fine);
    }
    out
}
