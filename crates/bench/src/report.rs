//! The table that people read.
use std::fmt::Write;

use crate::comparison::Results;
use crate::worker::Times;

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn row(out: &mut String, name: &str, kind: &str, times: &Times, held: &str) {
    let [mean, p50, p99, p999] =
        [times.mean, times.p50, times.p99, times.p999].map(|nanoseconds| nanoseconds / 1e3);
    writeln!(
        out,
        "{name:<16} {kind:<6} {mean:>9.2} {p50:>9.2} {p99:>9.1} {p999:>9.1}  {held}"
    )
    .expect("strings take everything");
}

/// Medians of all systems in microseconds, with the machine and the ratios.
pub fn table(results: &Results) -> String {
    let machine = &results.machine;
    let mut out = format!(
        "{} data, {} resident, {} reads then {} writes of random pages, medians of {} runs, times \
         in us\n\
         {}, {} cores, Linux {}, THP {} (off in the workers), clock {}\n\n",
        mib(results.data_bytes),
        mib(results.resident_bytes),
        results.accesses,
        results.accesses,
        results
            .systems
            .first()
            .map_or(0, |system| system.runs.len()),
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.thp,
        machine.clock_source,
    );
    writeln!(
        out,
        "{:<16} {:<6} {:>9} {:>9} {:>9} {:>9}  held (bound)",
        "system", "access", "mean", "p50", "p99", "p99.9"
    )
    .expect("strings take everything");
    for system in &results.systems {
        row(
            &mut out,
            &system.name,
            "read",
            &system.read,
            &format!(
                "{} ({})",
                mib(system.held_bytes_max),
                mib(system.bound_bytes)
            ),
        );
        row(&mut out, "", "write", &system.write, "");
    }
    for ratios in &results.ratios {
        let against = format!("\n{} over `{}`", ratios.system, results.peer);
        let reads = format!(
            "reads mean {:.2}, p99 {:.3}",
            ratios.read_mean, ratios.read_p99
        );
        writeln!(
            out,
            "{against}: {reads}; writes mean {:.2}, p99 {:.3} (below 1 is better)",
            ratios.write_mean, ratios.write_p99
        )
        .expect("strings take everything");
    }
    out
}
