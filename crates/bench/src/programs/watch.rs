//! Looks at a running program from outside: how much memory it has, and whether it takes too long.
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::sysfs;

/// Between two looks at its memory.
const INTERVAL: Duration = Duration::from_millis(1);

/// What was seen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// The most anonymous memory of one process of the program.
    pub peak_bytes: u64,
    /// It was ended for taking too long.
    pub late: bool,
}

/// Watches the process group that `pid` leads until `ended` says something or is gone. Ends it
/// after `limit`. Its memory is looked at only if asked for: that takes processor time.
pub fn watch(pid: Pid, limit: Duration, memory: bool, ended: &Receiver<()>) -> Seen {
    let begun = Instant::now();
    let mut seen = Seen::default();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let nap = if memory { INTERVAL.min(left) } else { left };
        if ended.recv_timeout(nap) != Err(RecvTimeoutError::Timeout) {
            return seen;
        }
        if memory {
            let now = largest(pid.as_raw_nonzero().get() as u32);
            seen.peak_bytes = seen.peak_bytes.max(now);
        }
        if begun.elapsed() >= limit {
            // It may have ended by itself this moment.
            kill_process_group(pid, Signal::KILL).ok();
            seen.late = true;
            return seen;
        }
    }
}

/// The most anonymous memory that one of `pid` and its descendants has now. The budget of
/// `pagetide run` is each process's, too.
fn largest(pid: u32) -> u64 {
    let own = sysfs::status_bytes(pid, "RssAnon").unwrap_or(0);
    children(pid).into_iter().map(largest).fold(own, u64::max)
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| {
            // Every process that a thread started is in that thread's list.
            std::fs::read_to_string(thread.path().join("children")).ok()
        });
    let words = |list: String| -> Vec<u32> {
        let numbers = list.split_whitespace().filter_map(|word| word.parse().ok());
        numbers.collect()
    };
    lists.flat_map(words).collect()
}
