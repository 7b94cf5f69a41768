//! A process that cannot be governed: the launcher is told why, and what would mend it.
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::config::Config;

/// Tells the launcher why this process is not governed.
pub fn leave_reason(first: bool, run_dir: &Path, reason: &str) {
    let file = if first { "refused" } else { "ungoverned" };
    let path = run_dir.join(format!("{}.{file}", std::process::id()));
    if std::fs::write(path, reason).is_err() && first {
        eprintln!("pagetide: this program cannot be paged: {reason}");
    }
}

/// Ends the program the launcher started, before any of it runs; a descendant goes on without the agent.
pub fn decline(config: &Config, reason: &str) {
    leave_reason(config.is_first(), &config.run_dir, reason);
    if config.is_first() {
        // SAFETY: ends the process before the program started; nothing of it has run.
        unsafe { libc::_exit(3) };
    }
}

/// Which of this process's limits may be the cause, with the line that lifts them; empty if none is tight.
pub fn tight_limits() -> String {
    /// What the agent opens, with room for a remote store's connections.
    const DESCRIPTORS: u64 = 64;
    let mut text = String::new();
    if let Some(most) = getrlimit(Resource::Nofile)
        .current
        .filter(|n| *n < DESCRIPTORS)
    {
        text += &format!("; descriptors are limited to {most}: `ulimit -n {DESCRIPTORS}` or more");
    }
    if let Some(most) = getrlimit(Resource::As).current {
        let mib = most >> 20;
        text += &format!("; address space is limited to {mib} MiB: raise `ulimit -v`");
    }
    if let Some(most) = getrlimit(Resource::Fsize).current {
        text += &format!("; files are limited to {most} bytes: raise `ulimit -f`");
    }
    text
}
