//! Looks at a running program from outside: how much memory it has, and whether it takes too long.
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::sysfs;

/// What was seen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// The most anonymous memory of one process of the program.
    pub peak_bytes: u64,
    /// The same in the mean of the looks; 0 if there were none.
    pub mean_bytes: u64,
    /// It was ended for taking too long.
    pub late: bool,
}

/// Watches the process group that `pid` leads until `ended` says something or is gone. Ends it
/// after `limit`. Its memory is looked at only if it is said how often: that takes processor time.
pub fn watch(pid: Pid, limit: Duration, interval: Option<Duration>, ended: &Receiver<()>) -> Seen {
    let begun = Instant::now();
    let (mut seen, mut sum, mut looks) = (Seen::default(), 0, 0);
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let nap = interval.map_or(left, |interval| interval.min(left));
        if ended.recv_timeout(nap) != Err(RecvTimeoutError::Timeout) {
            return seen;
        }
        if interval.is_some() {
            let now = largest(pid.as_raw_nonzero().get() as u32);
            (sum, looks) = (sum + now, looks + 1);
            seen.peak_bytes = seen.peak_bytes.max(now);
            seen.mean_bytes = sum / looks;
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
