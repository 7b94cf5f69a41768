//! The program's standard error stream, from threads that have a descriptor table of their own: for
//! what has to be said where no launcher is left to say it.
use std::os::fd::OwnedFd;

use pagetide_kernel::procfs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::lines::Line;

/// Writes `message` in a line of its own to what is the program's descriptor 2 at this moment, if
/// that takes it without waiting. Allocates nothing and holds no lock.
pub fn tell(message: &str) {
    let line = Line::of(&[b"pagetide: ", message.as_bytes()]);
    let Ok(stream) = duplicate().or_else(|_| opened_again()) else {
        return;
    };
    // Who reads the stream may wait for the program, which waits for the pager.
    let mut ready = [PollFd::new(&stream, PollFlags::OUT)];
    let _ = poll(&mut ready, Some(&Timespec::default()));
    if ready[0].revents().contains(PollFlags::OUT) {
        let _ = rustix::io::write(&stream, line.as_bytes());
    }
}

/// Out of the table of the process's first thread.
fn duplicate() -> Result<OwnedFd, Errno> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    pidfd_getfd(&process, 2, PidfdGetfdFlags::empty())
}

/// Where a filter of system calls forbids that, as Docker's does: a socket cannot be had so.
fn opened_again() -> Result<OwnedFd, Errno> {
    procfs::open_self_for(c"/proc/self/fd/2", OFlags::WRONLY | OFlags::APPEND)
}
