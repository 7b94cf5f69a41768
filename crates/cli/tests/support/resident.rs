//! Watches from outside how much memory a process and its descendants have: what is anonymous, or
//! that and what they share.
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::patience::is_slow;

/// A field of /proc/PID/status in bytes.
pub fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    status_sum(pid, &[field])
}

/// The sum of some fields of /proc/PID/status in bytes, read at one time.
fn status_sum(pid: u32, fields: &[&str]) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |field: &&str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(*field)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    fields.iter().map(bytes).sum()
}

/// `root` and every process that descends from it now.
pub fn family(root: u32) -> Vec<u32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.insert(pid, parent.unwrap_or(0));
    }
    let mut members = HashSet::from([root]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| members.contains(parent) && !members.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return members.into_iter().collect();
        }
        members.extend(more);
    }
}

/// Processes of the family that have the agent in them.
pub fn governed_family(root: u32) -> Vec<u32> {
    let has_agent = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/maps"))
            .is_ok_and(|maps| maps.contains("libpagetide_preload"))
    };
    family(root).into_iter().filter(has_agent).collect()
}

/// Anonymous memory, and what is shared: where a store in memory is.
pub const IN_ALL: &[&str] = &["RssAnon", "RssShmem"];

/// Samples memory of a process and its descendants until it is stopped.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<HashMap<u32, u64>>,
}

impl Watch {
    /// Samples RssAnon every `interval`, and where the system is slow so much less often that the
    /// watched program has the processor.
    pub fn start(root: u32, interval: Duration) -> Watch {
        Watch::of(root, interval, &["RssAnon"])
    }

    /// The same of the sum of some fields.
    pub fn of(root: u32, interval: Duration, fields: &'static [&'static str]) -> Watch {
        let interval = if is_slow() { 4 * interval } else { interval };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut peaks = HashMap::new();
            while !stopped.load(Relaxed) {
                for pid in family(root) {
                    if let Some(bytes) = status_sum(pid, fields) {
                        let peak = peaks.entry(pid).or_insert(0);
                        *peak = bytes.max(*peak);
                    }
                }
                thread::sleep(interval);
            }
            peaks
        });
        Watch { stop, thread }
    }

    /// The most any one process had.
    pub fn peak(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread
            .join()
            .expect("the sampler does not panic")
            .into_values()
            .max()
            .unwrap_or(0)
    }
}

/// The bound promised for a process: its budget, 32 MiB, and 2 % of what is managed.
pub fn promised(budget: u64, managed: u64) -> u64 {
    budget + (32 << 20) + managed / 50
}
