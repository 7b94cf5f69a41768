//! The warden: finds new anonymous memory and puts it under the pager, looks after the other
//! threads, and keeps the leases of forked children on this process's store.
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagetide_kernel::PageRange;
use pagetide_kernel::maps::{Backing, Maps};
use pagetide_kernel::own;
use pagetide_kernel::sync::{Doorbell, Lock, now_ns};
use pagetide_kernel::thread::{Urgency, set_urgency};
use pagetide_pager::requests::{Completion, Request};
use pagetide_store::Freeze;
use rustix::io::Errno;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::handover;
use crate::program::Program;
use crate::refused::Refused;
use crate::start::Agent;

/// How often the size of the address space is looked at: bounds how much new memory can be touched
/// before it is governed.
const TICK: Duration = Duration::from_millis(4);
/// The same while the program has just been seen to get memory.
const TICK_GROWING: Duration = Duration::from_millis(1);
/// Ticks of growth after the last change.
const GROWING_TICKS: u32 = 32;
/// How often all mappings are looked at even when the size did not change.
const FULL_SCAN_NS: u64 = 40_000_000;
/// Looks at most, one after another, when what is to be attached changes all the time.
const ATTACH_ROUNDS: u32 = 4;

/// Held by the warden and the control thread while they work, so that a fork finds them holding
/// nothing else.
pub static AUXILIARY: Lock = Lock::new();
/// Wakes the warden for a request.
pub static BELL: Doorbell = Doorbell::new();
/// A forking thread wants a lease for its child.
pub static LEASES: Mutex<LeaseDesk> = Mutex::new(LeaseDesk {
    last: Ticket(0),
    wanted: None,
    granted: None,
    ended: Vec::new(),
});

/// Rung after every look at the mappings.
static LOOKED: Doorbell = Doorbell::new();
/// Looks asked for, and the last of them that a look begun after it has served.
static LOOKS_ASKED: AtomicU64 = AtomicU64::new(0);
static LOOKS_SERVED: AtomicU64 = AtomicU64::new(0);
static ADDRESS_SPACE_PAGES: AtomicU64 = AtomicU64::new(0);
/// The last one waited for did not come in time, and none has come since.
static LOOK_MISSED: AtomicBool = AtomicBool::new(false);

/// Has the warden look at the mappings, and waits until it has; on a machine so busy that it gets
/// no processor, not for ever. In a child made by a bare system call there is no warden: it waits
/// once.
pub fn look_now() {
    const PATIENCE_NS: u64 = 500_000_000;
    if LOOK_MISSED.load(Relaxed) {
        return BELL.ring();
    }
    let asked = LOOKS_ASKED.fetch_add(1, SeqCst) + 1;
    let deadline = now_ns() + PATIENCE_NS;
    BELL.ring();
    loop {
        let seen = LOOKED.look();
        let now = now_ns();
        if LOOKS_SERVED.load(SeqCst) >= asked {
            return;
        }
        if now >= deadline {
            return LOOK_MISSED.store(true, Relaxed);
        }
        LOOKED.wait(seen, Some(Duration::from_nanos(deadline - now)));
    }
}

/// Has the warden look at the mappings the next time it works, also if nothing seems to have
/// changed. Does not wait.
pub fn ask_to_look() {
    LOOKS_ASKED.fetch_add(1, SeqCst);
}

/// Has the warden work until `answer` gives what is waited for; `None` if it gave nothing in 20 s.
/// On a busy machine the warden may get no processor for seconds.
pub fn wait_for<T>(agent: &Agent, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    const PATIENCE_NS: u64 = 20_000_000_000;
    let until_ns = now_ns() + PATIENCE_NS;
    loop {
        let seen = agent.pager.budget.progress.look();
        BELL.ring();
        let answered = answer();
        if answered.is_some() || now_ns() > until_ns {
            return answered;
        }
        agent
            .pager
            .budget
            .progress
            .wait(seen, Some(Duration::from_millis(2)));
    }
}

/// The size of the address space when it was looked at last, in bytes.
pub fn address_space_bytes() -> u64 {
    ADDRESS_SPACE_PAGES.load(Relaxed) * pagetide_kernel::PAGE_SIZE as u64
}

/// Names one fork's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Where a forking thread and the warden meet. Forks come one at a time.
pub struct LeaseDesk {
    last: Ticket,
    wanted: Option<Ticket>,
    /// The write end's number in the agent's descriptor table.
    granted: Option<(Ticket, Result<RawFd, Errno>)>,
    ended: Vec<(Ticket, Option<Freeze>)>,
}

impl LeaseDesk {
    /// Asks for a lease.
    pub fn ask(&mut self) -> Ticket {
        self.last.0 += 1;
        self.wanted = Some(self.last);
        self.last
    }

    /// The write end's number in the agent's descriptor table, once the lease is made.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<RawFd, Errno>> {
        self.granted
            .take_if(|(granted, _)| *granted == ticket)
            .map(|(_, made)| made)
    }

    /// Not waited for any more: it will not be made.
    pub fn give_up(&mut self, ticket: Ticket) {
        self.wanted.take_if(|wanted| *wanted == ticket);
    }

    /// The fork is over: the agent's copy of the write end can go. With the freeze made for the
    /// child, if it came to that.
    pub fn end(&mut self, ticket: Ticket, freeze: Option<Freeze>) {
        self.ended.push((ticket, freeze));
    }
}

struct Lease {
    ticket: Ticket,
    freeze: Option<Freeze>,
    read_end: OwnedFd,
    write_end: Option<RawFd>,
}

/// The warden thread's own state.
pub struct Warden {
    agent: &'static Agent,
    maps: Option<Maps>,
    program: Program,
    statm: Option<OwnedFd>,
    last_seen: (u64, u64),
    looks: u32,
    growing: u32,
    last_scan_ns: u64,
    leases: Vec<Lease>,
    refused: Refused,
}

impl Warden {
    /// Ready to run.
    pub fn new(agent: &'static Agent) -> Warden {
        Warden {
            agent,
            maps: Maps::open().ok(),
            program: Program::open(),
            // This thread's own: the first thread's tells nothing any more once that has ended.
            statm: pagetide_kernel::procfs::open_self(c"/proc/thread-self/statm").ok(),
            last_seen: (0, 0),
            looks: 0,
            growing: 0,
            last_scan_ns: 0,
            leases: Vec::new(),
            refused: Refused::default(),
        }
    }

    /// Watches until the process ends.
    pub fn run(&mut self) -> ! {
        set_urgency(Urgency::Prompt);
        loop {
            let seen = BELL.look();
            {
                let _working = AUXILIARY.lock();
                self.serve_leases();
                if handover::serve() {
                    self.agent.pager.budget.progress.ring();
                }
                crate::stacks::reap();
                let seen = (self.address_space_pages(), self.agent.pager.space.changes());
                ADDRESS_SPACE_PAGES.store(seen.0, Relaxed);
                // The program may unmap and map the same size again; what it does right after a
                // change is looked for once more.
                if std::mem::replace(&mut self.last_seen, seen) != seen {
                    self.refused.clear();
                    self.looks = 2;
                    self.growing = GROWING_TICKS;
                }
                let asked = LOOKS_ASKED.load(SeqCst);
                if LOOKS_SERVED.load(SeqCst) != asked {
                    self.looks = self.looks.max(1);
                }
                let is_due = now_ns() - self.last_scan_ns > FULL_SCAN_NS;
                if is_due {
                    self.program.look(self.agent);
                }
                if self.looks > 0 || is_due {
                    self.looks = self.looks.saturating_sub(1);
                    self.sweep();
                    LOOKS_SERVED.store(asked, SeqCst);
                    LOOK_MISSED.store(false, Relaxed);
                    LOOKED.ring();
                }
                if !self.agent.threads_live() {
                    self.agent.pager.end_process(
                        "a thread of the pager was ended from outside; \
                        its memory cannot be served any more",
                    );
                }
            }
            self.growing = self.growing.saturating_sub(1);
            let tick = if self.growing > 0 { TICK_GROWING } else { TICK };
            BELL.wait(seen, Some(tick));
        }
    }

    /// First number of `/proc/self/statm`: changes with every mapping made or undone, and costs a
    /// microsecond to read.
    fn address_space_pages(&self) -> u64 {
        let mut text = [0u8; 64];
        let len = self
            .statm
            .as_ref()
            .and_then(|file| rustix::io::pread(file, &mut text, 0).ok())
            .unwrap_or(0);
        text[..len]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .fold(0, |n, b| n * 10 + u64::from(b - b'0'))
    }

    /// Attaches anonymous memory that is not governed yet.
    pub fn sweep(&mut self) {
        for _ in 0..ATTACH_ROUNDS {
            self.last_scan_ns = now_ns();
            let fresh = self.fresh();
            if !self.attach_all(&fresh) {
                break;
            }
            // What has changed is looked at again now: no fork comes between, and at the next tick
            // if it never stops.
            self.looks = self.looks.max(1);
        }
        if self.refused.is_fresh(now_ns()) {
            self.looks = self.looks.max(1);
        }
    }

    /// Looks at all mappings for anonymous memory that is not governed yet.
    fn fresh(&mut self) -> Vec<PageRange> {
        let mut fresh: Vec<PageRange> = Vec::new();
        let Some(maps) = &mut self.maps else {
            return fresh;
        };
        let mut spans = self.agent.pager.managed_ranges();
        spans.extend(self.refused.for_now(self.last_scan_ns));
        spans.sort_unstable_by_key(|s| s.start);
        let over = self.agent.config.mappings_over_bytes;
        let _ = maps.for_each(|mapping| {
            let bytes = mapping.range.pages() * pagetide_kernel::PAGE_SIZE as u64;
            if mapping.backing == Backing::Anonymous && bytes > over {
                let first = spans.partition_point(|s| s.end <= mapping.range.start);
                let known = spans[first..]
                    .iter()
                    .take_while(|s| s.start < mapping.range.end)
                    .copied();
                let mut taken: Vec<PageRange> = known.collect();
                own::overlapping(mapping.range, |own| taken.push(own));
                subtract(mapping.range, &mut taken, |piece| fresh.push(piece));
            }
        });
        fresh
    }

    /// Attaches each of `ranges`; whether one of them was found to have changed meanwhile.
    fn attach_all(&mut self, ranges: &[PageRange]) -> bool {
        let mut changed = false;
        for range in ranges {
            let done = Completion::new();
            self.agent
                .pager
                .post(Request::Attach(*range, Arc::clone(&done)));
            self.agent.pager.ring_fault_thread();
            match done.wait() {
                Ok(()) => {}
                Err(Errno::AGAIN) => changed = true,
                // Unmapped meanwhile, or of a kind userfaultfd does not serve, or served by one of
                // the program's own.
                Err(_) => self.refused.note(*range, now_ns()),
            }
        }
        changed
    }

    /// Makes leases for forking threads, and ends those whose children are gone (their end of the
    /// pipe is closed by exit and exec alike).
    fn serve_leases(&mut self) {
        let mut desk = LEASES
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for (ticket, freeze) in std::mem::take(&mut desk.ended) {
            let mut leases = self.leases.iter_mut();
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
                self.leases.push(Lease {
                    ticket,
                    freeze: None,
                    read_end,
                    write_end: Some(write_end),
                });
                write_end
            });
            desk.granted = Some((ticket, made));
            self.agent.pager.budget.progress.ring();
        }
        let pager = &self.agent.pager;
        self.leases.retain(|lease| {
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

/// Calls `left` with the parts of `range` in none of `taken`.
fn subtract(range: PageRange, taken: &mut [PageRange], mut left: impl FnMut(PageRange)) {
    taken.sort_unstable_by_key(|t| t.start);
    let mut start = range.start;
    for cut in taken {
        if cut.start > start {
            left(PageRange {
                start,
                end: cut.start.min(range.end),
            });
        }
        start = start.max(cut.end);
        if start >= range.end {
            return;
        }
    }
    if start < range.end {
        left(PageRange {
            start,
            end: range.end,
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
        desk.end(first, None);
        desk.end(second, Some(Freeze(3)));
        assert_eq!(desk.ended, [(first, None), (second, Some(Freeze(3)))]);
    }
}
