//! Helps the kernel's reclaim where it fails with nearly all of the swap free, so that the peer is
//! not beaten for that. Why it fails is in docs/decisions/0081.
//!
//! - The group's counters are brought up to date 50 times a second. Reclaim decides by them whether
//!   to look for pages that are not in use any more; while they are old it finds none.
//! - The limit follows what the group holds besides anonymous pages, so that the program has its
//!   budget of those: neither less because of page tables and files, nor more where it has few.
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

/// What a group may hold, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Anonymous pages.
    pub anonymous: u64,
    /// The most of everything else.
    pub besides: u64,
}

impl Room {
    /// The limit of a group that holds `besides` besides anonymous pages.
    fn limit(&self, besides: u64) -> u64 {
        (self.anonymous + besides.min(self.besides)).next_multiple_of(4096)
    }

    /// The limit of a group of which nothing is known.
    pub fn most(&self) -> u64 {
        self.limit(u64::MAX)
    }
}

/// The thread that helps, for the length of a run.
pub struct Relief {
    stop: Sender<()>,
    thread: JoinHandle<u64>,
}

impl Relief {
    /// Helps `group`, whose limit is set for `room`. `called` is what tells of the OOM killer,
    /// where it is held off.
    pub fn start(group: MemoryGroup, room: Room, called: Option<OwnedFd>) -> Relief {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || help(&group, room, called.as_ref(), &stopped));
        Relief { stop, thread }
    }

    /// How often the OOM killer was called.
    pub fn end(self) -> u64 {
        drop(self.stop);
        self.thread.join().unwrap_or(0)
    }
}

fn help(group: &MemoryGroup, room: Room, called: Option<&OwnedFd>, stopped: &Receiver<()>) -> u64 {
    let (mut calls, mut limit) = (0, room.most());
    while stopped.try_recv() != Err(TryRecvError::Disconnected) {
        match called {
            Some(event) => calls += wait(event),
            None => std::thread::sleep(INTERVAL),
        }
        if let Ok(besides) = group.besides_anonymous() {
            follow(group, room.limit(besides), &mut limit).ok();
        }
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

/// Sets the group's `limit`, if that is more than a trifle.
fn follow(group: &MemoryGroup, wanted: u64, limit: &mut u64) -> Result<()> {
    const TRIFLE: u64 = 64 << 10;
    if wanted.abs_diff(*limit) < TRIFLE {
        return Ok(());
    }
    *limit = wanted;
    group.set_limit(wanted)
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

    #[test]
    fn the_budget_is_of_anonymous_pages() {
        let room = Room {
            anonymous: 100 << 20,
            besides: 8 << 20,
        };
        assert_eq!(room.limit(0), 100 << 20);
        assert_eq!(room.limit(3 << 20), 103 << 20);
        assert_eq!(room.limit(50 << 20), 108 << 20);
        assert_eq!(room.most(), 108 << 20);
    }

    /// Where the program below finds the group that it is to enter.
    const GROUP: &str = "PAGETIDE_TEST_GROUP";

    /// The program of the test below. It touches its memory itself: a page that the kernel touches
    /// for a system call is not waited for, the call fails.
    #[test]
    #[ignore = "the program of another test"]
    fn needs_32_mib() {
        let group = std::env::var_os(GROUP).map(std::path::PathBuf::from);
        let members = group.expect("started by the test").join("cgroup.procs");
        let mut memory = Vec::with_capacity(32 << 20);
        std::fs::write(members, std::process::id().to_string()).unwrap();
        memory.resize(32 << 20, 1_u8);
        std::hint::black_box(&memory);
    }

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
        let room = Room {
            anonymous: 12 << 20,
            besides: 4 << 20,
        };
        let enough = 64 << 20;
        group.set_limit(room.most()).unwrap();
        let killed = group.oom_kills().unwrap();
        let relief = Relief::start(group.clone(), room, Some(called));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored"])
            .arg("programs::relief::tests::needs_32_mib")
            .env(GROUP, group.directory())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !group.is_under_oom().unwrap() && begun.elapsed() < Duration::from_secs(60) {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it went on without room"
            );
        }
        // Page tables, and what is charged in advance: its buffer of 12 MiB is not in it.
        let besides = group.besides_anonymous().unwrap();
        assert!((1..4 << 20).contains(&besides), "{besides}");
        let calls = relief.end();
        group.set_limit(enough).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(calls > 0);
        assert_eq!(group.oom_kills().unwrap(), killed);
        undo::back_to(mark).unwrap();
    }
}
