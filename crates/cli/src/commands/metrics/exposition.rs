//! Samples as OpenMetrics text.
use std::collections::BTreeMap;
use std::fmt;

use pagetide_serve::status::Report;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::families::{COUNTERS, GAUGES};
use super::scrape::{self, Labels, Sample};
use super::served;
use super::times::encode_times;
use crate::args::Metrics;
use crate::exit::{Exit, Failure};
use crate::serving;

/// What is known now of all processes that this user may see.
pub fn now(options: &Metrics) -> Result<String, Failure> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Samples(scrape::now(options))));
    registry.register_collector(Box::new(Served(serving::all(&options.bases))));
    let mut text = String::new();
    let encoded = prometheus_client::encoding::text::encode(&mut text, &registry);
    match encoded {
        Ok(()) => Ok(text),
        Err(error) => Err(Failure::new(Exit::Failed, error.to_string())),
    }
}

#[derive(Debug)]
struct Served(Vec<Report>);

impl Collector for Served {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        served::encode(&self.0, &mut encoder)
    }
}

#[derive(Debug)]
struct Samples(BTreeMap<Labels, Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Governed processes that live";
        let mut family =
            encoder.encode_descriptor("pagetide_processes", help, None, MetricType::Gauge)?;
        for (labels, sample) in &self.0 {
            (family.encode_family(labels)?).encode_gauge(&(sample.processes as i64))?;
        }
        for gauge in &GAUGES {
            let bytes = Some(&Unit::Bytes);
            let mut family =
                encoder.encode_descriptor(gauge.name, gauge.help, bytes, MetricType::Gauge)?;
            // Of those that have ended there is nothing to say.
            for (labels, sample) in self.0.iter().filter(|(_, sample)| sample.processes > 0) {
                let value = (gauge.of)(&sample.gauges).min(i64::MAX as u64) as i64;
                family.encode_family(labels)?.encode_gauge(&value)?;
            }
        }
        for counter in &COUNTERS {
            let mut family =
                encoder.encode_descriptor(counter.name, counter.help, None, MetricType::Counter)?;
            for (labels, sample) in &self.0 {
                let value = (counter.of)(&sample.counters);
                (family.encode_family(labels)?)
                    .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            }
        }
        self.encode_cpu(&mut encoder)?;
        let help = "From reading a fault message to waking the thread: the time programs stall";
        let times = self.0.iter();
        let times = times.map(|(labels, sample)| (labels.clone(), sample.counters.fault_times));
        encode_times("pagetide_fault_latency", help, times, &mut encoder)
    }
}

impl Samples {
    fn encode_cpu(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Processor time of the pager's threads";
        let unit = Some(&Unit::Seconds);
        let mut family =
            encoder.encode_descriptor("pagetide_cpu", help, unit, MetricType::Counter)?;
        for (labels, sample) in &self.0 {
            let counters = &sample.counters;
            for (thread, seconds) in [
                ("fault", counters.fault_thread_seconds),
                ("evictor", counters.evictor_seconds),
            ] {
                let labels = (labels.clone(), [("thread", thread)]);
                (family.encode_family(&labels)?)
                    .encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
            }
        }
        Ok(())
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let pid = self.pid.map(|pid| ("pid", pid.to_string()));
        let fixed = [("run", self.run.to_string()), ("name", self.name.clone())];
        fixed
            .into_iter()
            .chain(pid)
            .collect::<Vec<_>>()
            .encode(encoder)
    }
}
