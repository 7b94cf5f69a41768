//! The ledger: counters of one pager, in a page-aligned block that can be mapped shared so that
//! they outlive the process.
//!
//! Every field is written by the pager with relaxed atomics and read by anyone at any time. There
//! is no allocation and no lock, so the fault path may use it anywhere.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::histogram::Histogram;
use super::loss::Loss;
use super::measured::MeasuredCells;
use super::report::Statistics;
use super::ungoverned::Ungoverned;

/// Says that a mapped file is a ledger of this layout.
pub const LEDGER_MAGIC: u64 = u64::from_le_bytes(*b"PTLEDG12");

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters of one pager. Layout is fixed within a release: launcher and agent are
        /// installed together.
        #[repr(C, align(4096))]
        #[allow(missing_docs)]
        pub struct Ledger {
            /// [`LEDGER_MAGIC`] once the agent has filled in the identity.
            pub magic: AtomicU64,
            pub pid: AtomicU32,
            /// [`Loss`], when pages were lost and the process was ended for it; 0 for none.
            pub lost: AtomicU32,
            /// CLOCK_MONOTONIC at the pager's start and when last updated, in nanoseconds.
            pub started_ns: AtomicU64,
            pub updated_ns: AtomicU64,
            /// Inode number of the PID namespace in which `pid` is the process's number; 0 if not
            /// known.
            pub pid_namespace: AtomicU64,
            /// 1 while the process executes, in its own place, a program of which it could not tell
            /// whether it takes the agent; it stays so if that one makes no ledger of its own.
            pub executing: AtomicU64,
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// From reading the fault message to waking the thread.
            pub fault_latency: Histogram,
            command_len: AtomicU32,
            message_len: AtomicU32,
            command: [AtomicU64; 32],
            message: [AtomicU64; 128],
            /// Programs it started that cannot be governed.
            pub ungoverned: Ungoverned,
            /// How it uses its memory, if that is measured.
            pub measured: MeasuredCells,
        }
    };
}

counters! {
    budget_bytes,
    run_budget_bytes,
    /// The most that this process may have of that, by its user's wish; 0 if nothing was wished.
    run_share_max_bytes,
    /// With a budget that follows the program: the share of its time that it may lose, in parts
    /// of a million, and the least that it has all the same. Else 0.
    automatic_millionths,
    automatic_floor_bytes,
    resident_bytes,
    resident_bytes_max,
    managed_bytes,
    managed_bytes_max,
    store_bytes,
    store_bytes_max,
    store_pages,
    /// The most that all memory of the process may be; 0 where that is not bounded.
    memory_budget_bytes,
    /// Resident, in the store's memory, and others.
    memory_bytes,
    memory_bytes_max,
    /// Of that, what is neither resident pages nor the store's.
    other_bytes,
    put_bytes,
    put_bytes_stored,
    faults,
    faults_waited,
    /// Time that threads waited for pages that were taken from the program, or for room.
    refault_ns,
    faults_taken_back,
    zero_faults,
    zero_fills,
    fetches,
    fetched_pages,
    prefetched_pages,
    prefetch_hits,
    block_pages,
    pointer_pages,
    evictions,
    clean_drops,
    writebacks,
    same_filled,
    errors,
    /// Of all threads of the process.
    cpu_ns,
    fault_thread_cpu_ns,
    evictor_cpu_ns,
}

fn store_text(words: &[AtomicU64], len: &AtomicU32, text: &[u8]) {
    let text = &text[..text.len().min(words.len() * 8)];
    for (word, chunk) in words.iter().zip(text.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(bytes), Relaxed);
    }
    len.store(text.len() as u32, Release);
}

fn load_text(words: &[AtomicU64], len: &AtomicU32) -> String {
    let len = (len.load(Acquire) as usize).min(words.len() * 8);
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|w| w.load(Relaxed).to_ne_bytes())
        .take(len)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Ledger {
    /// Bytes of a ledger, a whole number of pages.
    pub const SIZE: usize = size_of::<Ledger>();

    /// Names the process the counters belong to.
    pub fn set_command(&self, command: &[u8]) {
        store_text(&self.command, &self.command_len, command);
    }

    /// The command set last.
    pub fn command(&self) -> String {
        load_text(&self.command, &self.command_len)
    }

    /// Leaves a message for whoever reads the ledger after the process (what was lost, or why it
    /// was ended).
    pub fn set_message(&self, message: &[u8]) {
        store_text(&self.message, &self.message_len, message);
    }

    /// Says that memory was lost, how, and what there is to say of it.
    pub fn set_loss(&self, loss: Loss, message: &[u8]) {
        self.set_message(message);
        self.lost.store(loss as u32, Release);
    }

    /// Whether memory was lost, and how.
    pub fn loss(&self) -> Option<Loss> {
        Loss::from_code(self.lost.load(Relaxed))
    }

    /// The message set last; empty if none.
    pub fn message(&self) -> String {
        load_text(&self.message, &self.message_len)
    }

    /// The counters as a statistics object.
    pub fn statistics(&self) -> Statistics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (put, stored) = (get(&self.put_bytes), get(&self.put_bytes_stored));
        Statistics {
            pid: self.pid.load(Relaxed),
            command: self.command(),
            budget_bytes: get(&self.budget_bytes),
            run_budget_bytes: get(&self.run_budget_bytes),
            run_share_max_bytes: get(&self.run_share_max_bytes),
            automatic_slowdown: get(&self.automatic_millionths) as f64 / 1e6,
            automatic_floor_bytes: get(&self.automatic_floor_bytes),
            resident_bytes: get(&self.resident_bytes),
            resident_bytes_max: get(&self.resident_bytes_max),
            managed_bytes: get(&self.managed_bytes),
            managed_bytes_max: get(&self.managed_bytes_max),
            store_bytes: get(&self.store_bytes),
            store_bytes_max: get(&self.store_bytes_max),
            store_pages: get(&self.store_pages),
            memory_budget_bytes: get(&self.memory_budget_bytes),
            other_bytes: get(&self.other_bytes),
            // What is resident is counted at once, the sum now and then.
            memory_bytes: get(&self.memory_bytes).max(get(&self.resident_bytes)),
            memory_bytes_max: get(&self.memory_bytes_max).max(get(&self.resident_bytes_max)),
            faults: get(&self.faults),
            faults_waited: get(&self.faults_waited),
            faults_taken_back: get(&self.faults_taken_back),
            zero_faults: get(&self.zero_faults),
            zero_fills: get(&self.zero_fills),
            fetches: get(&self.fetches),
            fetched_pages: get(&self.fetched_pages),
            prefetched_pages: get(&self.prefetched_pages),
            prefetch_hits: get(&self.prefetch_hits),
            block_pages: get(&self.block_pages),
            pointer_pages: get(&self.pointer_pages),
            evictions: get(&self.evictions),
            clean_drops: get(&self.clean_drops),
            writebacks: get(&self.writebacks),
            same_filled: get(&self.same_filled),
            compression_ratio: if stored == 0 {
                1.0
            } else {
                put as f64 / stored as f64
            },
            errors: get(&self.errors),
            fault_latency_ns: self.fault_latency.latency(),
            stall_seconds: seconds(self.fault_latency.sum_ns()),
            refault_seconds: seconds(get(&self.refault_ns)),
            cpu_seconds: seconds(get(&self.cpu_ns)),
            fault_thread_cpu_seconds: seconds(get(&self.fault_thread_cpu_ns)),
            evictor_cpu_seconds: seconds(get(&self.evictor_cpu_ns)),
            wall_seconds: seconds(get(&self.updated_ns).saturating_sub(get(&self.started_ns))),
        }
    }
}
