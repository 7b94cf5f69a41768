//! Leases of forked children on this process's store: pipes whose write ends the children hold
//! until they exit or execute another program.
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use pagetide_kernel::sync::Mutex;
use pagetide_pager::Pager;
use pagetide_store::Freeze;
use rustix::io::Errno;

use crate::agent::Agent;
use crate::requests::{self, BELL};

/// Asks the scanner for a lease: a pipe whose write end the child holds until it exits or execs.
/// Returns that end's number in the agent's descriptor table.
pub fn begin(agent: &Agent) -> Result<(Ticket, RawFd), Errno> {
    let ticket = LEASES.lock().ask();
    match requests::wait_for(agent, || LEASES.lock().take(ticket)) {
        Some(granted) => granted.map(|fd| (ticket, fd)),
        None => {
            LEASES.lock().give_up(ticket);
            Err(Errno::AGAIN)
        }
    }
}

/// The fork is over: the agent's copy of the write end can go. With the freeze made for the child,
/// if it came to that.
pub fn end(ticket: Ticket, freeze: Option<Freeze>) {
    LEASES.lock().ended.push((ticket, freeze));
    BELL.ring();
}

static LEASES: Mutex<LeaseDesk> = Mutex::new(LeaseDesk {
    last: Ticket(0),
    wanted: None,
    granted: None,
    ended: Vec::new(),
});

/// Names one fork's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Where a forking thread and the scanner meet. Forks come one at a time.
struct LeaseDesk {
    last: Ticket,
    wanted: Option<Ticket>,
    /// The write end's number in the agent's descriptor table.
    granted: Option<(Ticket, Result<RawFd, Errno>)>,
    ended: Vec<(Ticket, Option<Freeze>)>,
}

impl LeaseDesk {
    /// Asks for a lease.
    fn ask(&mut self) -> Ticket {
        self.last.0 += 1;
        self.wanted = Some(self.last);
        self.last
    }

    /// The write end's number in the agent's descriptor table, once the lease is made.
    fn take(&mut self, ticket: Ticket) -> Option<Result<RawFd, Errno>> {
        self.granted
            .take_if(|(granted, _)| *granted == ticket)
            .map(|(_, made)| made)
    }

    /// Not waited for any more: it will not be made.
    fn give_up(&mut self, ticket: Ticket) {
        self.wanted.take_if(|wanted| *wanted == ticket);
    }
}

struct Lease {
    ticket: Ticket,
    freeze: Option<Freeze>,
    read_end: OwnedFd,
    write_end: Option<RawFd>,
}

/// The leases there are; the scanner's own.
#[derive(Default)]
pub struct Leases(Vec<Lease>);

impl Leases {
    /// Makes leases for forking threads, and ends those whose children are gone (their end of the
    /// pipe is closed by exit and exec alike).
    pub fn serve(&mut self, pager: &Pager) {
        let mut desk = LEASES.lock();
        for (ticket, freeze) in std::mem::take(&mut desk.ended) {
            let mut leases = self.0.iter_mut();
            if let Some(lease) = leases.find(|lease| lease.ticket == ticket)
                && let Some(fd) = lease.write_end.take()
            {
                lease.freeze = freeze;
                // SAFETY: our own number in our own table, used by nobody else; without a child its
                // end is then closed everywhere.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        if let Some(ticket) = desk.wanted.take() {
            use rustix::pipe::{PipeFlags, pipe_with};
            let made = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
            let made = made.map(|(read_end, write_end)| {
                let write_end = write_end.into_raw_fd();
                self.0.push(Lease {
                    ticket,
                    freeze: None,
                    read_end,
                    write_end: Some(write_end),
                });
                write_end
            });
            desk.granted = Some((ticket, made));
            pager.budget.progress.ring();
        }
        self.0.retain(|lease| {
            if lease.write_end.is_some() {
                return true;
            }
            // Nobody writes to it: there is nothing to read while the child has its end, and the
            // end of the file after.
            let gone = rustix::io::read(&lease.read_end, &mut [0u8; 1]) == Ok(0);
            if let (true, Some(freeze)) = (gone, lease.freeze) {
                pager.stores.active().thaw(freeze);
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_given_up_is_nobody_elses() {
        let mut desk = LeaseDesk {
            last: Ticket(0),
            wanted: None,
            granted: None,
            ended: Vec::new(),
        };
        let first = desk.ask();
        desk.give_up(first);
        assert_eq!(desk.wanted, None, "it would be made for nobody");
        let second = desk.ask();
        assert_eq!(desk.wanted.take(), Some(second));
        desk.granted = Some((first, Ok(7)));
        assert_eq!(desk.take(second), None, "another fork's");
        desk.granted = Some((second, Ok(8)));
        assert_eq!(desk.take(second), Some(Ok(8)));
        assert_eq!(desk.take(second), None, "once");
    }
}
