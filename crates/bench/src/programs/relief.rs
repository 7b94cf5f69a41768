//! Helps the kernel's reclaim where it fails with nearly all of the swap free, so that the peer is
//! not beaten for that. Why it fails is in docs/decisions/0081.
//!
//! - The group's counters are brought up to date 50 times a second. Reclaim decides by them whether
//!   to look for pages that are not in use any more; while they are old it finds none.
//! - A process for which the OOM killer was called waits, and is let go on at once. It then tries
//!   again, and finds room. How often that was is counted.
use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cgroup::MemoryGroup;

/// Between two times that the counters are brought up to date.
const INTERVAL: Duration = Duration::from_millis(20);

/// The thread that helps, for the length of a run.
pub struct Relief {
    stop: Sender<()>,
    thread: JoinHandle<u64>,
}

impl Relief {
    /// Helps `group`, which may hold `limit` bytes. `called` is what tells of the OOM killer,
    /// where it is held off.
    pub fn start(group: MemoryGroup, limit: u64, called: Option<OwnedFd>) -> Relief {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || help(&group, limit, called.as_ref(), &stopped));
        Relief { stop, thread }
    }

    /// How often the OOM killer was called.
    pub fn end(self) -> u64 {
        drop(self.stop);
        self.thread.join().unwrap_or(0)
    }
}

fn help(group: &MemoryGroup, limit: u64, called: Option<&OwnedFd>, stopped: &Receiver<()>) -> u64 {
    let mut calls = 0;
    while stopped.try_recv() != Err(TryRecvError::Disconnected) {
        match called {
            Some(event) => calls += wait(event),
            None => std::thread::sleep(INTERVAL),
        }
        group.refresh_counters().ok();
        // The next may have come meanwhile.
        if called.is_some() && group.is_under_oom().unwrap_or(false) {
            go_on(group, limit).ok();
        }
    }
    calls + called.map_or(0, so_often)
}

/// Waits for the event, for as long as the counters may be old; how often it was signalled.
fn wait(event: &OwnedFd) -> u64 {
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: INTERVAL.as_nanos() as i64,
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) if ready > 0 => so_often(event),
        _ => 0,
    }
}

/// How often the event was signalled since this was asked.
fn so_often(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

/// Only a limit that is raised wakes those who wait.
fn go_on(group: &MemoryGroup, limit: u64) -> Result<()> {
    group.set_limit(limit + 4096)?;
    group.set_limit(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::undo;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    /// A program that needs 32 MiB in a group of 16 MiB, without swap.
    #[test]
    fn who_finds_no_room_waits_and_is_counted() {
        let mark = undo::mark();
        let group = MemoryGroup::create();
        let called = group.as_ref().map(MemoryGroup::hold_off_oom_killer);
        let (Ok(group), Ok(Ok(called))) = (&group, called) else {
            undo::back_to(mark).unwrap();
            return eprintln!(
                "SKIPPED: the OOM killer is held off by root in a cgroup of version 1"
            );
        };
        let (limit, enough) = (16 << 20, 64 << 20);
        group.set_limit(limit).unwrap();
        let killed = group.oom_kills().unwrap();
        let relief = Relief::start(group.clone(), limit, Some(called));
        let mut child = Command::new("sh")
            .args([
                "-c",
                "echo $$ >\"$0/cgroup.procs\" && exec dd bs=32M count=1",
            ])
            .arg(group.directory())
            .stdin(std::fs::File::open("/dev/zero").unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !group.is_under_oom().unwrap() && begun.elapsed() < Duration::from_secs(60) {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it went on without room"
            );
        }
        let calls = relief.end();
        group.set_limit(enough).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(calls > 0);
        assert_eq!(group.oom_kills().unwrap(), killed);
        undo::back_to(mark).unwrap();
    }
}
