//! What came out of the strategies.
use serde::Serialize;

use super::strategy::Strategy;
use super::task::{Findings, Order};
use crate::machine::Machine;
use crate::statistics::{median, medians};

/// The state of the page cache before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Cache {
    Cold,
    Warm,
}

/// Medians of a strategy's runs.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub strategy: Strategy,
    pub cache: Cache,
    pub accesses: u64,
    pub setup_ms: f64,
    pub processing_ms: f64,
    pub resident_bytes: u64,
    pub touched_bytes: u64,
    pub major_faults: u64,
    /// Of setup and processing together.
    pub total_ms: f64,
    pub total_ms_min: f64,
    pub total_ms_max: f64,
}

impl Row {
    /// Of at least one run.
    pub fn of(strategy: Strategy, cache: Cache, accesses: u64, runs: &[Findings]) -> Row {
        let middle = medians(runs);
        let totals = runs.iter().map(|run| run.setup_ms + run.processing_ms);
        let totals: Vec<f64> = totals.collect();
        Row {
            strategy,
            cache,
            accesses,
            setup_ms: middle.setup_ms,
            processing_ms: middle.processing_ms,
            resident_bytes: middle.resident_bytes,
            touched_bytes: middle.touched_bytes,
            major_faults: middle.major_faults,
            total_ms: median(&totals),
            total_ms_min: totals.iter().copied().fold(f64::INFINITY, f64::min),
            total_ms_max: totals.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// A strategy that was not run, and why.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Skipped {
    pub strategy: Strategy,
    pub accesses: u64,
    pub reason: String,
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Results {
    pub machine: Machine,
    pub file_bytes: u64,
    pub order: Order,
    pub runs: usize,
    pub rows: Vec<Row>,
    pub skipped: Vec<Skipped>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_fields_that_are_promised_and_medians_in_them() {
        let one = |processing_ms| Findings {
            setup_ms: 0.5,
            processing_ms,
            resident_bytes: 8192,
            touched_bytes: 4096,
            major_faults: 1,
            checksum: 0,
        };
        let found = [one(9.0), one(2.0), one(1.0)];
        let row = Row::of(Strategy::OnFault, Cache::Cold, 2000, &found);
        let json = serde_json::to_value(&row).unwrap();
        for (field, value) in [
            ("strategy", serde_json::json!("on-fault")),
            ("cache", serde_json::json!("cold")),
            ("accesses", serde_json::json!(2000)),
            ("setup_ms", serde_json::json!(0.5)),
            ("processing_ms", serde_json::json!(2.0)),
            ("resident_bytes", serde_json::json!(8192)),
            ("major_faults", serde_json::json!(1)),
            ("total_ms_max", serde_json::json!(9.5)),
        ] {
            assert_eq!(json[field], value, "{field}");
        }
    }
}
