//! The table, what it says about the bars, and a picture.
use serde::Serialize;

use super::cost::Cost;
use super::plan::Plan;
use super::systems::{
    RAW, RAW_OWN, SAME_CPU, SAME_CPU_OWN, SAME_CPU_RAW, SAME_CPU_RUN, SAME_CPU_SIGNAL, SCAN,
    SCAN_SIGNAL, SWAP_FILE, VALKEY, VALKEY_SIGNAL,
};
use crate::machine::Machine;
use crate::paging::task::Findings;
use crate::plot::bars;
use crate::report::{Table, cell};

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// What was measured.
    pub(super) system: String,
    /// Mean of one access, hits included.
    pub(super) mean_us: f64,
    /// Median.
    pub(super) p50_us: f64,
    /// One in a hundred takes longer.
    pub(super) p99_us: f64,
    /// Accesses by the length of the timed part.
    pub(super) pages_per_s: f64,
    /// Pages written back in the timed part, which only reads; of systems that are scanned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) writebacks: Option<u64>,
}

impl Row {
    pub(super) fn of(system: &str, findings: &Findings, scans: bool) -> Row {
        Row {
            system: system.to_owned(),
            mean_us: findings.all.mean / 1e3,
            p50_us: findings.all.p50 / 1e3,
            p99_us: findings.all.p99 / 1e3,
            pages_per_s: findings.all.count as f64 / findings.seconds,
            writebacks: scans.then_some(findings.store_writes),
        }
    }
}

/// Mean access in us of the measurements published in 2019: pmbench in a virtual machine, 4 GB set,
/// 1 GB local.
const PUBLISHED: [(&str, f64); 4] = [
    ("2019: user-space pager, RAMCloud", 24.87),
    ("2019: swap on persistent memory", 26.34),
    ("2019: swap on NVMe over Fabrics", 41.73),
    ("2019: swap on SSD", 106.56),
];

/// The table and the ratios.
pub(super) fn text(plan: &Plan, rows: &[Row], cost: Option<Cost>) -> String {
    let heads = [
        "system",
        "mean us",
        "p50 us",
        "p99 us",
        "pages/s",
        "write-backs",
    ];
    let mut table = Table::new(&heads);
    for row in rows {
        table.row([
            row.system.clone(),
            cell(row.mean_us, 2),
            cell(row.p50_us, 2),
            cell(row.p99_us, 2),
            cell(row.pages_per_s, 0),
            row.writebacks
                .map_or(String::new(), |count| count.to_string()),
        ]);
    }
    for (system, mean_us) in PUBLISHED {
        table.row([system.to_owned(), cell(mean_us, 2)]);
    }
    let mut out = format!(
        "{} MiB set, {} MiB resident, {} random reads of each system, {} runs in turns\n{}\n\n\
         {table}\n",
        plan.size >> 20,
        plan.resident >> 20,
        plan.accesses,
        plan.runs,
        Machine::here()
    );
    out += &ratios(rows, 1.0 - plan.resident as f64 / plan.size as f64);
    if let Some(cost) = cost {
        let (put, get) = cost.added_us();
        out += &format!(
            "encryption and checksum add {put:.2} us to a page put and {get:.2} us to one read \
             ({cost:?})\n"
        );
    }
    out
}

/// Pagetide over the clients without a pager, of which a share of `missing` accesses is one of
/// theirs, and over swap.
fn ratios(rows: &[Row], missing: f64) -> String {
    let found = |system: &str| rows.iter().find(|row| row.system == system);
    let mut out = String::new();
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
            out += &format!(
                "{} over `{}` times the share of misses, {missing:.2}: {ratio:.2}\n",
                ours.system, raw.system
            );
        }
        if let Some(swap) = found(SWAP_FILE) {
            let ratio = ours.mean_us / swap.mean_us;
            out += &format!("{} over {}: {ratio:.2}\n", ours.system, swap.system);
        }
    }
    for scan in [SCAN, SCAN_SIGNAL].iter().filter_map(|scan| found(scan)) {
        for raw in [RAW, RAW_OWN].iter().filter_map(|raw| found(raw)) {
            let ratio = scan.pages_per_s / raw.pages_per_s;
            out += &format!(
                "pages/s of `{}` over one `{}` a page: {ratio:.2}\n",
                scan.system, raw.system
            );
        }
    }
    out
}

/// Bars of the means of random reads, those published beside those measured.
pub(super) fn draw(rows: &[Row]) -> String {
    let measured = rows.iter().filter(|row| row.writebacks.is_none());
    let measured = measured.map(|row| (&*row.system, row.mean_us, "#3b6ea5"));
    let published = PUBLISHED.map(|(system, mean_us)| (system, mean_us, "#b0b0b0"));
    let all: Vec<_> = measured.chain(published).collect();
    bars("Mean access to a random page, us", &all)
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
            "{\"system\":\"valkey, socket\",\"mean_us\":20.0,\"p50_us\":20.0,\"p99_us\":20.0,\
             \"pages_per_s\":50000.0}"
        );
    }
}
