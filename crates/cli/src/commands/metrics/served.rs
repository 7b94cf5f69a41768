//! The metrics of those that serve pages (`pagetide serve`).
use std::fmt;

use pagetide_serve::counters::Counts;
use pagetide_serve::status::Report;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::scrape::Labels;
use super::times::encode_times;
use crate::ledger_file::FaultTimes;
use crate::text::printable;

/// A count that only goes up. `_total` is added to its name.
struct Counter {
    name: &'static str,
    help: &'static str,
    /// What it counts, by the label's value.
    label: &'static str,
    of: fn(&Counts) -> Vec<(&'static str, u64)>,
}

/// One without a label of its own.
const fn plain(
    name: &'static str,
    help: &'static str,
    of: fn(&Counts) -> Vec<(&'static str, u64)>,
) -> Counter {
    let label = "";
    Counter {
        name,
        help,
        label,
        of,
    }
}

const COUNTERS: [Counter; 7] = [
    plain(
        "pagetide_serve_faults",
        "Faults on missing pages that were heard of",
        |counts| vec![("", counts.faults)],
    ),
    Counter {
        name: "pagetide_serve_pages",
        help: "Pages brought, by why: for a fault, beside it, of the working set, or all",
        label: "reason",
        of: |counts| {
            vec![
                ("fault", counts.fault_pages),
                ("block", counts.block_pages),
                ("working_set", counts.working_set_pages),
                ("background", counts.background_pages),
            ]
        },
    },
    Counter {
        name: "pagetide_serve_page_origins",
        help: "The same pages, by where their bytes were",
        label: "origin",
        of: |counts| {
            vec![
                ("image", counts.image_pages),
                ("store", counts.store_pages),
                ("page_server", counts.page_server_pages),
                ("zeros", counts.zero_pages),
            ]
        },
    },
    plain(
        "pagetide_serve_working_set_faults",
        "Faults on pages of the working set that had not come yet",
        |counts| vec![("", counts.working_set_faults)],
    ),
    plain(
        "pagetide_serve_deferred_faults",
        "Faults put off because of an event",
        |counts| vec![("", counts.deferred)],
    ),
    plain(
        "pagetide_serve_removed_pages",
        "Pages that clients gave up",
        |counts| vec![("", counts.removed_pages)],
    ),
    plain(
        "pagetide_serve_lost_pages",
        "Pages that could not be had",
        |counts| vec![("", counts.lost_pages)],
    ),
];

fn labels(report: &Report) -> Labels {
    Labels {
        run: report.about.pid,
        name: printable(&report.about.serves),
        pid: None,
    }
}

/// All that there is of `reports`, one for each that serves.
pub fn encode(reports: &[Report], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if reports.is_empty() {
        return Ok(());
    }
    let help = "Clients that are served";
    let (name, kind) = ("pagetide_serve_clients", MetricType::Gauge);
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for report in reports {
        let clients = report.clients.len() as i64;
        (family.encode_family(&labels(report))?).encode_gauge(&clients)?;
    }
    encode_clients(reports, encoder)?;
    for counter in &COUNTERS {
        let (name, help) = (counter.name, counter.help);
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for report in reports {
            for (value, count) in (counter.of)(&report.total) {
                let own = (!counter.label.is_empty()).then_some((counter.label, value));
                let labels = (labels(report), own.into_iter().collect::<Vec<_>>());
                (family.encode_family(&labels)?)
                    .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
    }
    let times = reports.iter().map(|report| {
        let buckets = report.fault_buckets_ns.iter().copied();
        (labels(report), FaultTimes::of(buckets, report.fault_sum_ns))
    });
    let help = "From reading a fault message to the page";
    encode_times("pagetide_serve_fault_latency", help, times, encoder)
}

/// Clients that are no more, by how that came.
fn encode_clients(reports: &[Report], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Clients that are served no more: they ended, were not served to their end, or were \
                refused";
    let (name, kind) = ("pagetide_serve_former_clients", MetricType::Counter);
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for report in reports {
        let whole = report.clients_ended.saturating_sub(report.clients_broken);
        for (how, count) in [
            ("ended", whole),
            ("broken", report.clients_broken),
            ("refused", report.refused),
        ] {
            let labels = (labels(report), [("how", how)]);
            (family.encode_family(&labels)?).encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}
