//! What a pager tells the outside: the statistics object, and the control protocol spoken over a
//! process's socket.
//!
//! A governed process has, in the run directory, `PID.sock` (a Unix stream socket; one JSON
//! [`Request`] a line in, one JSON
//! [`Reply`] a line out) and `PID-START.stats` (a [`Ledger`](crate::ledger::Ledger) mapped shared,
//! which outlives the process).
use serde::{Deserialize, Serialize};

/// What a fault's way to the pager and back is taken to be, which the pager does not see: into the
/// kernel, two threads woken, and out. An assumption, of what a fault costs in all
/// (docs/decisions/0063-where-a-faults-time-goes.md).
pub const DELIVERY_NS: u64 = 5_000;

/// Statistics of one process or region. Byte counts are bytes, times nanoseconds unless the name
/// says otherwise.
///
/// ```
/// use pagetide::Region;
///
/// let builder = Region::builder().length(16 << 20).resident(1 << 20); // bytes
/// if let Ok(mut region) = builder.build() {
///     region.as_mut_slice().fill(1);
///     let stats = region.stats();
///     println!("{} faults, {} pages evicted", stats.faults, stats.evictions);
///     println!("{} bytes resident, {} in the store", stats.resident_bytes, stats.store_bytes);
///     assert!(stats.resident_bytes <= stats.budget_bytes);
/// }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Process ID.
    pub pid: u32,
    /// The command's name and arguments, as the kernel shows them.
    pub command: String,
    /// The most bytes that may be resident.
    pub budget_bytes: u64,
    /// With one budget for the run: that, of which `budget_bytes` is this process's part now. Else
    /// 0.
    #[serde(default)]
    pub run_budget_bytes: u64,
    /// The most that this process may have of the run's budget, if `pagetide limit` has said so of
    /// it. Else 0.
    #[serde(default)]
    pub run_share_max_bytes: u64,
    /// With a budget that follows the program, of which `budget_bytes` is the most: the share of
    /// its time that it may lose to waiting for pages. Else 0.
    #[serde(default)]
    pub automatic_slowdown: f64,
    /// And the least that the budget may be. Else 0.
    #[serde(default)]
    pub automatic_floor_bytes: u64,
    /// Bytes resident now, as the pager counts them.
    pub resident_bytes: u64,
    /// The most `resident_bytes` has been.
    pub resident_bytes_max: u64,
    /// Bytes of address space under the pager now.
    pub managed_bytes: u64,
    /// The most `managed_bytes` has been.
    pub managed_bytes_max: u64,
    /// Bytes the store holds now.
    pub store_bytes: u64,
    /// The most `store_bytes` has been.
    pub store_bytes_max: u64,
    /// Pages the store holds now.
    pub store_pages: u64,
    /// With a bound on all memory of the process: that. Else 0.
    #[serde(default)]
    pub memory_budget_bytes: u64,
    /// Memory of this machine in all: resident bytes, what the store has of them in memory (all of
    /// it with `ram:`, tables only with `file:` or a server), and `other_bytes`.
    pub memory_bytes: u64,
    /// The most `memory_bytes` has been, looked at some hundred times a second.
    pub memory_bytes_max: u64,
    /// Other anonymous memory of the process: stacks, data of libraries, page words, and Pagetide's
    /// own. Of a region, the page words.
    #[serde(default)]
    pub other_bytes: u64,
    /// Fault messages served (missing and write-protect).
    pub faults: u64,
    /// Of these, those that had to wait for the evictor to make room. Each counts once.
    pub faults_waited: u64,
    /// Faults and loads on pages that were on their way out, and came back without the store.
    pub faults_taken_back: u64,
    /// Faults and loads that were given zeros: a first use, or one after the page was emptied.
    pub zero_faults: u64,
    /// Pages given zeros: by such faults, or beside them.
    pub zero_fills: u64,
    /// Faults that read from the store.
    pub fetches: u64,
    /// Pages read from the store, prefetched ones included.
    pub fetched_pages: u64,
    /// Of these, pages read ahead. The share of those [of streams](Statistics::stream_pages) that
    /// was used (`prefetch_hits`) is the accuracy.
    pub prefetched_pages: u64,
    /// Pages of streams that were used, as far as is seen: the stream went on exactly where they
    /// end. Their share of these and `fetches` together is the coverage.
    pub prefetch_hits: u64,
    /// Of the `prefetched_pages`, those read with another page of their block.
    pub block_pages: u64,
    /// Of the `prefetched_pages`, those that a fetched page named.
    pub pointer_pages: u64,
    /// Pages made non-resident.
    pub evictions: u64,
    /// Evictions that needed no store write because the store held the same bytes.
    pub clean_drops: u64,
    /// Pages written to the store.
    pub writebacks: u64,
    /// Of these, pages that held one repeated word.
    pub same_filled: u64,
    /// Bytes put over bytes stored for them; 1.0 when nothing was put.
    pub compression_ratio: f64,
    /// Store errors seen, recovered ones included.
    pub errors: u64,
    /// From reading the fault message to waking the thread, in nanoseconds.
    pub fault_latency_ns: Latency,
    /// Seconds that threads waited for their faults in all: several may wait at a time.
    pub stall_seconds: f64,
    /// Of these, for faults on pages that had been taken from the program, and for room.
    #[serde(default)]
    pub refault_seconds: f64,
    /// Processor time of the process, all its threads and Pagetide's together.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// Processor time of the fault thread.
    pub fault_thread_cpu_seconds: f64,
    /// Processor time of the evictor.
    pub evictor_cpu_seconds: f64,
    /// Seconds since the pager started.
    pub wall_seconds: f64,
}

/// The least that can be the bound on all memory of a process: the pager's own memory, what is kept
/// free for a round, and a few pages of the program.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// A bound on all memory that the store would have to refuse pages for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pager itself and the stacks and libraries of a program take a part of it; expected {} MiB \
     or more",
    MEMORY_BYTES_MIN >> 20
)]
pub struct MemoryTooSmall;

/// Whether `bytes` can be the bound on all memory of a process.
///
/// # Errors
/// It is less than [`MEMORY_BYTES_MIN`].
pub fn check_memory(bytes: u64) -> Result<(), MemoryTooSmall> {
    match bytes < MEMORY_BYTES_MIN {
        true => Err(MemoryTooSmall),
        false => Ok(()),
    }
}

impl Statistics {
    /// Whether `pagetide limit` can set this process's limit to `bytes`.
    ///
    /// # Errors
    /// It bounds all memory, and `bytes` is too little for that.
    pub fn check_limit(&self, bytes: u64) -> Result<(), MemoryTooSmall> {
        match self.memory_budget_bytes {
            0 => Ok(()),
            _ => check_memory(bytes),
        }
    }

    /// What `pagetide limit` sets: the bound on all memory where there is one, else the budget.
    pub fn limit_bytes(&self) -> u64 {
        match self.memory_budget_bytes {
            0 => self.budget_bytes,
            bytes => bytes,
        }
    }

    /// The bound that this process has, alone or with the others of its run, of whose budget it may
    /// be let have a part only.
    pub fn bound_bytes(&self) -> u64 {
        match self.run_budget_bytes {
            0 => self.limit_bytes(),
            bytes => self.cap_bytes().unwrap_or(bytes),
        }
    }

    /// What of its run's budget this process may have at most, if that is less than all.
    pub fn cap_bytes(&self) -> Option<u64> {
        let cap = self.run_share_max_bytes;
        (cap > 0 && cap < self.run_budget_bytes).then_some(cap)
    }

    /// What counts against [`Statistics::limit_bytes`].
    pub fn limited_bytes(&self) -> u64 {
        match self.memory_budget_bytes {
            0 => self.resident_bytes,
            _ => self.memory_bytes,
        }
    }

    /// Of the time that the program's threads ran, or waited for pages which had been taken from
    /// it, or for room, the share that they waited: from 0 to 1. A fault's way to the pager and
    /// back, which is not seen, is taken to be 5 us.
    pub fn stalled(&self) -> f64 {
        Statistics::stalled_together([self])
    }

    /// The same of several processes taken together.
    pub fn stalled_together<'a>(all: impl IntoIterator<Item = &'a Statistics>) -> f64 {
        let times = all.into_iter().map(Statistics::waited_and_ran);
        let (waited, ran) = times.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        match waited > 0.0 {
            true => waited / (waited + ran),
            false => 0.0,
        }
    }

    /// For how long its threads waited, and for how long they ran, in seconds.
    fn waited_and_ran(&self) -> (f64, f64) {
        let delivery = self.fetches as f64 * DELIVERY_NS as f64 / 1e9;
        let own = self.fault_thread_cpu_seconds + self.evictor_cpu_seconds;
        let ran = (self.cpu_seconds - own).max(0.0);
        (self.refault_seconds + delivery, ran)
    }

    /// Pages of streams that were read ahead: all but those of blocks and pointers.
    pub fn stream_pages(&self) -> u64 {
        self.prefetched_pages
            .saturating_sub(self.block_pages + self.pointer_pages)
    }
}

/// A distribution of times in nanoseconds; zeros when empty. Values are upper bounds of their
/// bucket (at most 1/16 too high).
///
/// ```
/// use pagetide::Region;
///
/// if let Ok(mut region) = Region::builder().length(1 << 20).build() {
///     region.as_mut_slice().fill(1);
///     let latency = region.stats().fault_latency_ns;
///     println!("of 100 faults, 99 took at most {} microseconds", latency.p99 / 1000);
///     assert!(latency.p50 <= latency.p99);
/// }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub mean: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// What may be asked of a governed process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// The statistics now.
    Stat,
    /// Change the budget; answered when the new bound holds, or with an error after `timeout_ms`.
    Limit {
        /// The new budget in bytes; rounded up to a page, at least one page.
        bytes: u64,
        /// How long to wait for the bound to hold, in milliseconds.
        timeout_ms: u64,
    },
    /// Measure from now on how much memory the program needs.
    Measure {
        /// For how long, in milliseconds, whatever becomes of who asked.
        for_ms: u64,
    },
}

/// The answer to one [`Request`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Reply {
    /// Done; with the statistics after it.
    Ok {
        /// The statistics after the request was served.
        statistics: Box<Statistics>,
    },
    /// Refused or failed.
    Error {
        /// What, why, and the next step.
        message: String,
    },
}
