//! How long things took, counted in a fixed place.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::report::Latency;

/// Sub-buckets per power of two: values are at most 1/16 too high.
const SUB_BUCKETS: usize = 16;
const BUCKETS: usize = 40 * SUB_BUCKETS;

/// A log-linear histogram of nanoseconds, as HdrHistogram lays them out, with a fixed range of 2^40
/// ns (18 minutes).
#[derive(Debug)]
#[repr(C)]
pub struct Histogram {
    count: AtomicU64,
    sum: AtomicU64,
    max: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    /// No value has been counted.
    fn default() -> Histogram {
        Histogram {
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl Histogram {
    fn bucket(value: u64) -> usize {
        if value < SUB_BUCKETS as u64 {
            return value as usize;
        }
        let exponent = 63 - value.leading_zeros() as usize;
        let sub = (value >> (exponent - 4)) as usize & (SUB_BUCKETS - 1);
        ((exponent - 3) * SUB_BUCKETS + sub).min(BUCKETS - 1)
    }

    fn upper_bound(bucket: usize) -> u64 {
        if bucket < SUB_BUCKETS {
            return bucket as u64;
        }
        let exponent = bucket / SUB_BUCKETS + 3;
        (1 << exponent) + ((bucket % SUB_BUCKETS + 1) as u64) * (1 << (exponent - 4)) - 1
    }

    /// Counts one value.
    pub fn record(&self, nanoseconds: u64) {
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(nanoseconds, Relaxed);
        self.max.fetch_max(nanoseconds, Relaxed);
        self.buckets[Self::bucket(nanoseconds)].fetch_add(1, Relaxed);
    }

    /// Forgets all values.
    pub fn clear(&self) {
        for cell in [&self.count, &self.sum, &self.max]
            .into_iter()
            .chain(&self.buckets)
        {
            cell.store(0, Relaxed);
        }
    }

    /// The sum of all values, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// How many values there are: pairs of an upper bound in nanoseconds, which is a sixteenth too
    /// high at most, and how many there are up to it and above the one before. Ascending, without
    /// those of none.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().map(|count| count.load(Relaxed));
        let bounded = counts
            .enumerate()
            .map(|(bucket, count)| (Self::upper_bound(bucket), count));
        bounded.filter(|(_, count)| *count > 0)
    }

    /// The distribution so far.
    pub fn latency(&self) -> Latency {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return Latency::default();
        }
        let max = self.max.load(Relaxed);
        let quantile = |q: f64| {
            let rank = ((total as f64 * q).ceil() as u64).max(1);
            let mut seen = 0;
            let bucket = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            Self::upper_bound(bucket.unwrap_or(BUCKETS - 1)).min(max)
        };
        Latency {
            mean: self.sum.load(Relaxed) / total,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_bound_their_values_within_a_sixteenth() {
        for value in (0..200_000).chain((20..40).map(|e| (1u64 << e) + 12345)) {
            let bound = Histogram::upper_bound(Histogram::bucket(value));
            assert!(
                bound >= value,
                "{value} is above its bucket's bound {bound}"
            );
            assert!(
                bound - value <= value / 16 + 1,
                "{value} is far below its bucket's bound {bound}"
            );
        }
    }
}
