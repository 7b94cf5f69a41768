//! Waiting for a message, or for the end of a client or of all.
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{Client, Woken};
use crate::moment::Moment;

/// How often a client is looked after whose end nobody tells of.
const LOOK: Duration = Duration::from_secs(1);

impl Client {
    /// Waits for a message, or the end of the client or of all; at most `wait`.
    pub(super) fn wait(&mut self, ending: &Moment, wait: Option<Duration>) -> Woken {
        // Of a client that has not connected itself, nobody tells the end.
        let look = wait.is_none() && self.owner.is_none();
        let wait = if look { Some(LOOK) } else { wait };
        let timeout = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut fds = vec![
            PollFd::new(self.installer.uffd(), PollFlags::IN),
            PollFd::new(ending, PollFlags::IN),
        ];
        let begins = self.service.begins.as_ref();
        if let Some(begins) = begins.filter(|moment| !moment.has_come()) {
            fds.push(PollFd::new(&**begins, PollFlags::IN));
        }
        let first_of_owner = fds.len();
        if let Some(owner) = self.owner.as_ref().filter(|_| !self.closed) {
            fds.push(PollFd::new(&owner.connection, PollFlags::RDHUP));
        }
        let pidfd = self.owner.as_ref().and_then(|owner| owner.peer.pidfd());
        let pidfd = pidfd.filter(|_| !self.exited);
        if let Some(pidfd) = pidfd {
            fds.push(PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN));
        }
        let Ok(ready) = poll(&mut fds, timeout.as_ref()) else {
            return Woken::Usable;
        };
        let blocks = fds[0].revents().contains(PollFlags::ERR);
        let mut ended = fds[first_of_owner..]
            .iter()
            .map(|fd| !fd.revents().is_empty());
        let closed = self.owner.is_some() && !self.closed && ended.next() == Some(true);
        let exited = pidfd.is_some() && ended.next() == Some(true);
        self.closed |= closed;
        self.exited |= exited;
        match ready {
            _ if blocks => Woken::Blocking,
            0 if look && self.installer.is_gone() => Woken::Gone,
            _ => Woken::Usable,
        }
    }
}
