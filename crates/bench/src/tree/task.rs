//! What the processes of a run are to do.
use serde::{Deserialize, Serialize};

/// What one process does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// Has others do this, and prints how long it took.
    Lead(Scenario),
    /// Goes through its memory.
    Work(Work),
    /// Fills so many bytes, says so, and sleeps until its input ends.
    Sleep(usize),
}

/// What is timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Scenario {
    /// So many programs that do the same, at the same time: until all have ended.
    Equal(usize, Work),
    /// One works while so many others sleep, which have filled so many bytes before: until the one
    /// has ended.
    Busy(Work, usize, usize),
    /// So many starts of `/bin/true`, one after another, beside one process that sleeps: the mean.
    Starts(usize),
}

/// A program that fills its memory, then reads and writes pages of it: all but one in 64 of its
/// first fifth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes of memory.
    pub bytes: usize,
    /// Pages read, every fourth of them written as well.
    pub accesses: u64,
    /// Decides which.
    pub seed: u64,
}

/// What the leading process found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Took {
    /// Seconds.
    pub seconds: f64,
}
