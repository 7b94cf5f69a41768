//! What one run of a program finds, in whatever environment.
use serde::{Deserialize, Serialize};

use super::expectation::Need;

/// One run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Findings {
    /// From its start to its end.
    pub wall_seconds: f64,
    /// User and system time of the whole tree of processes; under Pagetide with its threads and
    /// the launcher, under swap with reclaim, which the program's own threads do.
    pub cpu_seconds: f64,
    /// Pages read from the store because the program touched them, or swapped in.
    pub demand_pages: Option<u64>,
    /// Pages read from the store ahead of a stream.
    pub ahead_pages: Option<u64>,
    /// Pages written to the store, or swapped out.
    pub written_pages: Option<u64>,
    /// Pages that left the program; nothing is known of swap's.
    pub evicted_pages: Option<u64>,
    /// The most memory in all: resident and in the store of the largest process, or the cgroup's
    /// peak and the memory of zram.
    pub memory_bytes: Option<u64>,
    /// Anonymous memory of its largest process in the mean of the time, where that was watched.
    pub resident_bytes_mean: Option<u64>,
    /// How often the kernel's OOM killer was called and held off, where that can be done.
    pub held_off: Option<u64>,
    /// How much memory its largest process needs, where that was measured.
    pub need: Option<Need>,
    /// Digest and length of the output.
    pub output: String,
    /// How it ended; nothing if well.
    pub failure: Option<Failure>,
}

/// How a run ended that did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The kernel's OOM killer ended it, or one of its processes.
    OutOfMemory,
    /// A signal ended it.
    Signal(i32),
    /// It ended itself with this exit code; its last words.
    Exit(i32, String),
    /// It took longer than it may.
    Late,
    /// It printed something else than when it was alone.
    WrongOutput,
}

impl Failure {
    /// In a word, for a table.
    pub fn word(&self) -> &'static str {
        match self {
            Failure::OutOfMemory | Failure::Signal(_) => "killed",
            Failure::Exit(..) => "failed",
            Failure::Late => "late",
            Failure::WrongOutput => "WRONG",
        }
    }

    /// In a sentence, for the lines below it.
    pub fn text(&self) -> String {
        match self {
            Failure::OutOfMemory => "killed by the kernel's OOM killer".to_owned(),
            Failure::Signal(signal) => format!("ended by signal {signal}"),
            Failure::Exit(code, words) => format!("exit code {code}: {words}"),
            Failure::Late => "ended for taking longer than --timeout".to_owned(),
            Failure::WrongOutput => "OUTPUT OTHER THAN ALONE".to_owned(),
        }
    }
}
