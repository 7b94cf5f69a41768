//! What was done: counted for each client, and for all.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Buckets of the histogram: the last holds what took 2^39 ns (nine minutes) and longer.
const BUCKETS: usize = 40;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one client, or of all.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// What [`Counters`] were at a moment.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// What they are now.
            pub fn read(&self) -> Counts {
                Counts {
                    $($name: self.$name.load(Relaxed),)*
                }
            }

            /// Adds what another has counted.
            pub fn add(&self, counts: &Counts) {
                $(self.$name.fetch_add(counts.$name, Relaxed);)*
            }
        }
    };
}

counters! {
    /// Faults on missing pages that were heard of.
    faults,
    /// Faults on write-protected pages, whose protection was ended.
    write_faults,
    /// Pages of 4 KiB installed for a thread that waited.
    fault_pages,
    /// Pages installed as neighbours of those.
    block_pages,
    /// Pages installed from the recorded working set.
    working_set_pages,
    /// Pages installed because all were to come.
    background_pages,
    /// Of all pages installed, those that were zeros.
    zero_pages,
    /// Pages of zeros for threads that waited where the image has nothing.
    beyond_pages,
    /// Pages that clients gave up.
    removed_pages,
    /// Pages that were there already when they were to be installed.
    present_pages,
    /// Faults put off because an event was under way.
    deferred,
    /// Pages that could not be had.
    lost_pages,
    /// Times that a client forked: the child is a client from then on.
    forks,
    /// Times that a client moved memory.
    moves,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

/// How long faults took, from the message to the page.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// What a [`Histogram`] held at a moment; times in nanoseconds, each the upper end of its bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Latencies {
    /// Faults.
    pub count: u64,
    /// Half of them took at most this.
    pub p50_ns: u64,
    /// 99 of 100 took at most this.
    pub p99_ns: u64,
    /// Pairs of an upper end and how many faults took that long, without those of none.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    /// A fault took `ns`.
    pub fn note(&self, ns: u64) {
        let bucket = (64 - ns.leading_zeros() as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
    }

    /// What it holds now.
    pub fn read(&self) -> Latencies {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let ends = counts
            .enumerate()
            .map(|(bucket, count)| ((1u64 << bucket) - 1, count));
        let buckets: Vec<(u64, u64)> = ends.filter(|(_, count)| *count > 0).collect();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let quantile = |percent: u64| {
            let mut left = (count * percent).div_ceil(100);
            let reaches = |(_, count): &&(u64, u64)| {
                let reached = left <= *count;
                left = left.saturating_sub(*count);
                reached
            };
            buckets.iter().find(reaches).map_or(0, |(end, _)| *end)
        };
        Latencies {
            count,
            p50_ns: quantile(50),
            p99_ns: quantile(99),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let histogram = Histogram::default();
        assert_eq!((histogram.read().count, histogram.read().p99_ns), (0, 0));
        (0..90).for_each(|_| histogram.note(1000));
        (0..10).for_each(|_| histogram.note(70_000));
        histogram.note(u64::MAX);
        let read = histogram.read();
        assert_eq!((read.count, read.p50_ns, read.p99_ns), (101, 1023, 131_071));
        assert_eq!(read.buckets.len(), 3);
    }

    #[test]
    fn counters_add_up() {
        let (one, all) = (Counters::default(), Counters::default());
        count(&one.faults, 3);
        all.add(&one.read());
        all.add(&one.read());
        assert_eq!(all.read().faults, 6);
    }
}
