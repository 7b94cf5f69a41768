//! Distributions of times as histograms.
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::scrape::Labels;
use crate::ledger_file::FaultTimes;

/// How long faults took, as a histogram of seconds.
pub fn encode_times(
    name: &str,
    help: &str,
    all: impl Iterator<Item = (Labels, FaultTimes)>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    for (labels, times) in all {
        let bounds = FaultTimes::BOUNDS_NS
            .iter()
            .map(|bound| *bound as f64 / 1e9);
        let mut buckets: Vec<(f64, u64)> = bounds.zip(times.counts).collect();
        buckets.push((f64::INFINITY, times.longer));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = times.sum_ns as f64 / 1e9;
        (family.encode_family(&labels)?)
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}
