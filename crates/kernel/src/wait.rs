//! Waiting for descriptors, whatever the program has done to its limits.
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::sync::timespec;

/// How long is slept where the kernel waits for nobody.
const BLIND: Duration = Duration::from_micros(200);

/// Waits until one of `fds` has what it is asked for, at most `timeout`; how many have is returned,
/// and which is in `fds`.
///
/// A program may lower its limit on descriptors (RLIMIT_NOFILE) below the number of `fds`, even to
/// 0; poll(2) then refuses to work for the process's other threads too. `None` then: any of them
/// may have it, and a read that does not block tells. Waited is by `either`, an [`either`] of them,
/// or a moment.
pub fn wait_for(
    fds: &mut [PollFd<'_>],
    either: Option<&OwnedFd>,
    timeout: Duration,
) -> Option<usize> {
    match poll(fds, Some(&timespec(timeout))) {
        Ok(count) => Some(count),
        Err(Errno::INVAL) => {
            let mut events = [const { MaybeUninit::uninit() }; 2];
            let waited = either.map(|fd| epoll::wait(fd, &mut events, Some(&timespec(timeout))));
            if waited.is_none_or(|result| result.is_err()) {
                let _ = rustix::thread::nanosleep(&timespec(timeout.min(BLIND)));
            }
            None
        }
        Err(_) => Some(0),
    }
}

/// A descriptor that waits for `fds` whatever the limit on descriptors: an epoll. It is slower than
/// poll(2) where that works.
pub fn either(fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, Errno> {
    let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in fds {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&either, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(either)
}

/// Whether `fd` can be read now, or `None` as for [`wait_for`], without a sleep.
pub fn is_readable(fd: impl std::os::fd::AsFd) -> Option<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Err(Errno::INVAL) => None,
        count => Some(count.is_ok_and(|count| count > 0)),
    }
}
