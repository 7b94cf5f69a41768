//! Those that serve pages, as text.
use pagetide_serve::counters::Counts;
use pagetide_serve::status::Report;

use crate::size::{Bytes, Count, Nanoseconds, PAGE_BYTES};
use crate::table::Table;
use crate::text::{for_column, printable};

/// On a terminal sources are cut to this many characters.
const SOURCE_CHARS_MAX: usize = 40;
/// Clients that are told of one by one.
const CLIENTS_TOLD: usize = 16;

/// Pages that came before anybody waited for them.
pub fn ahead(counts: &Counts) -> u64 {
    counts.block_pages + counts.working_set_pages + counts.background_pages
}

/// A row for each.
pub fn table(reports: &[Report]) -> Table {
    let headings = [
        "PID", "SERVES", "CLIENTS", "ENDED", "FAULTS", "P50", "P99", "AHEAD", "LOST", "SOURCE",
    ];
    let mut table = Table::new(&headings, &[1, 9]);
    for report in reports {
        let latency = &report.fault_latency_ns;
        table.push(vec![
            report.about.pid.to_string(),
            printable(&report.about.serves),
            report.clients.len().to_string(),
            report.clients_ended.to_string(),
            Count(report.total.faults as f64).to_string(),
            Nanoseconds(latency.p50).to_string(),
            Nanoseconds(latency.p99).to_string(),
            Count(ahead(&report.total) as f64).to_string(),
            report.total.lost_pages.to_string(),
            for_column(&report.about.source, SOURCE_CHARS_MAX),
        ]);
    }
    table
}

/// Everything known of one, a line a topic.
pub fn describe(report: &Report) -> String {
    let (about, total) = (&report.about, &report.total);
    let count = |count: u64| Count(count as f64);
    let lines = [
        (
            "process",
            format!("{} serves {}", about.pid, printable(&about.serves)),
        ),
        ("source", printable(&about.source)),
        ("socket", printable(&about.socket)),
        ("running", format!("{:.1} s", report.wall_seconds)),
        (
            "clients",
            format!(
                "{} now, {} ended, {} of them not served to their end, {} refused",
                report.clients.len(),
                report.clients_ended,
                report.clients_broken,
                report.refused
            ),
        ),
        (
            "faults",
            format!(
                "{}: {} pages brought for them, {} put off",
                count(total.faults),
                count(total.fault_pages),
                count(total.deferred)
            ),
        ),
        ("latency", super::of_latency(&report.fault_latency_ns)),
        (
            "ahead",
            format!(
                "{} pages as neighbours, {} of the working set, {} in the background",
                count(total.block_pages),
                count(total.working_set_pages),
                count(total.background_pages)
            ),
        ),
        ("working set", of_working_set(total)),
        (
            "pages from",
            format!(
                "files {}, a store {}, a page server {}, zeros {}",
                count(total.image_pages),
                count(total.store_pages),
                count(total.page_server_pages),
                count(total.zero_pages)
            ),
        ),
        (
            "given up",
            format!(
                "{} pages, in {} moves and {} forks beside",
                count(total.removed_pages),
                count(total.moves),
                count(total.forks)
            ),
        ),
        ("lost", format!("{} pages", total.lost_pages)),
    ];
    let lines = lines
        .iter()
        .map(|(name, value)| format!("{name:<13} {value}\n"));
    lines.collect::<String>() + &clients(report)
}

/// How well the recorded working set serves: of its pages that were needed or brought, those that
/// were there before anybody waited for them.
fn of_working_set(total: &Counts) -> String {
    let (hits, misses) = (total.working_set_pages, total.working_set_faults);
    match hits + misses {
        0 => "none".to_owned(),
        all => format!(
            "{} pages came before they were touched ({:.1} %), {} were waited for",
            Count(hits as f64),
            100.0 * hits as f64 / all as f64,
            Count(misses as f64)
        ),
    }
}

fn clients(report: &Report) -> String {
    let told = report.clients.iter().take(CLIENTS_TOLD).map(|client| {
        let pid = client.pid.map_or("-".to_owned(), |pid| pid.to_string());
        let installed = client.counts.fault_pages + ahead(&client.counts);
        format!(
            "client {:<6} process {pid}, {} of memory, {} brought, {} faults\n",
            client.client,
            Bytes(client.memory_pages * PAGE_BYTES),
            Bytes(installed * PAGE_BYTES),
            Count(client.counts.faults as f64)
        )
    });
    let more = report.clients.len().saturating_sub(CLIENTS_TOLD);
    let rest = (more > 0).then(|| format!("and {more} more\n"));
    told.chain(rest).collect()
}
