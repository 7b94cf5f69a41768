//! Reading a process's ledger file: the counters of its pager, which outlive it.
//!
//! The file is copied, not mapped: its owner may cut it short at any time, which would end a reader
//! of a mapping with SIGBUS, and root reads other users' files.
// `Ledger` has to be filled from bytes, which no safe interface offers; the two blocks below do
// only that.
#![allow(unsafe_code)]
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use pagetide_pager::ledger::{LEDGER_MAGIC, Ledger};
use pagetide_pager::protocol::loss::Loss;
use pagetide_pager::protocol::measured::Measured;
use pagetide_pager::protocol::outside::open_file;
use pagetide_pager::report::Statistics;
use pagetide_pager::ungoverned::Started;
use rustix::fs::OFlags;

use crate::held::is_held;

/// How long faults took, in classes: those of the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FaultTimes {
    /// Faults that took at most each of [`FaultTimes::BOUNDS_NS`], and more than the one before.
    pub counts: [u64; FaultTimes::BOUNDS_NS.len()],
    /// Those that took longer.
    pub longer: u64,
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl FaultTimes {
    /// From a page in memory to a disk that is busy, in nanoseconds.
    pub const BOUNDS_NS: [u64; 14] = [
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        5_000_000,
        20_000_000,
        100_000_000,
        1_000_000_000,
        10_000_000_000,
    ];

    /// Of the buckets of a histogram, whose values are `sum_ns` together.
    pub fn of(buckets: impl Iterator<Item = (u64, u64)>, sum_ns: u64) -> FaultTimes {
        let mut times = FaultTimes {
            sum_ns,
            ..FaultTimes::default()
        };
        for (upper_bound, count) in buckets {
            let place = FaultTimes::BOUNDS_NS.partition_point(|bound| *bound < upper_bound);
            let class = times.counts.get_mut(place).unwrap_or(&mut times.longer);
            *class = class.wrapping_add(count);
        }
        times
    }

    /// Adds those of another process.
    pub fn add(&mut self, other: &FaultTimes) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.wrapping_add(more);
        }
        self.longer = self.longer.wrapping_add(other.longer);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

/// One reading of a ledger.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// The counters.
    pub statistics: Statistics,
    /// How long its faults took.
    pub fault_times: FaultTimes,
    /// Data were lost in this process, and how; it was ended for it.
    pub loss: Option<Loss>,
    /// What the pager had to say; empty for nothing.
    pub message: String,
    /// `CLOCK_MONOTONIC` when the pager started, in nanoseconds.
    pub started_ns: u64,
    /// It set out to execute in its place a program that it could not judge, which has not failed.
    pub executing: bool,
    /// Programs it started that no agent is loaded into.
    pub ungoverned: Vec<Started>,
    /// How many starts of such programs there were of which nothing else is known.
    pub ungoverned_others: u64,
    /// The PID namespace its process ID is of; 0 if not known.
    pub pid_namespace: u64,
    /// Whether its process holds the file, and so lives; `None` where that cannot be told.
    pub held: Option<bool>,
    /// How it uses its memory, if that was measured.
    pub measured: Option<Measured>,
}

/// A buffer that ledgers are read into.
pub struct Reader(Box<Ledger>);

impl Default for Reader {
    fn default() -> Reader {
        // SAFETY: a ledger is integers only, for which zero is a value.
        Reader(Box::new(unsafe {
            MaybeUninit::<Ledger>::zeroed().assume_init()
        }))
    }
}

impl Reader {
    /// The ledger in `path`; `None` if it is not a ledger, or not yet.
    pub fn read(&mut self, path: &Path) -> Option<Reading> {
        self.read_file(&open_file(path, OFlags::RDONLY).ok()?)
    }

    fn read_file(&mut self, file: &File) -> Option<Reading> {
        let ledger: *mut Ledger = &mut *self.0;
        // SAFETY: the ledger is borrowed mutably for as long as the slice lives, has exactly this
        // size, is initialised, and takes any bytes: it is integers only.
        let bytes = unsafe { std::slice::from_raw_parts_mut(ledger.cast::<u8>(), Ledger::SIZE) };
        file.read_exact_at(bytes, 0).ok()?;
        let ledger = &*self.0;
        (ledger.magic.load(Relaxed) == LEDGER_MAGIC).then(|| Reading {
            statistics: ledger.statistics(),
            fault_times: FaultTimes::of(
                ledger.fault_latency.buckets(),
                ledger.fault_latency.sum_ns(),
            ),
            loss: ledger.loss(),
            message: ledger.message(),
            started_ns: ledger.started_ns.load(Relaxed),
            executing: ledger.executing.load(Relaxed) != 0,
            ungoverned: ledger.ungoverned.list(),
            ungoverned_others: ledger.ungoverned.others(),
            pid_namespace: ledger.pid_namespace.load(Relaxed),
            held: is_held(file),
            measured: ledger.measured.read(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Need;

    #[test]
    fn what_is_no_ledger_is_not_read_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1-1.stats");
        let mut reader = Reader::default();
        assert_eq!(reader.read(&path), None);
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(reader.read(&path), None);
        let mut bytes = vec![0; Ledger::SIZE];
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(reader.read(&path), None);
        bytes[..8].copy_from_slice(&LEDGER_MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&77u32.to_ne_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let reading = reader.read(&path).unwrap();
        assert_eq!((reading.statistics.pid, reading.loss), (77, None));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(reader.read(&link), None);
    }

    #[test]
    fn a_ledger_with_any_one_word_damaged_reads_without_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1-1.stats");
        let mut reader = Reader::default();
        for word in 1..Ledger::SIZE / 8 {
            let mut bytes = vec![0; Ledger::SIZE];
            bytes[..8].copy_from_slice(&LEDGER_MAGIC.to_ne_bytes());
            bytes[word * 8..][..8].fill(0xff);
            std::fs::write(&path, &bytes).unwrap();
            let reading = reader.read(&path);
            let reading = reading.unwrap_or_else(|| panic!("word {word}"));
            let _ = reading.measured.as_ref().and_then(Need::of);
        }
    }
}
