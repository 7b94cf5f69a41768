//! The fault thread: reads the userfaultfd and gives every fault its page.
//!
//! It never touches attached memory itself, never waits for the evictor while messages may be
//! unread, and leaves a fault it cannot serve yet in `deferred`, to be tried again.
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use pagetide_kernel::PageRange;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::uffd::{Event, Message};
use pagetide_kernel::wait::wait_for;
use rustix::event::{PollFd, PollFlags};

use super::events::Arrival;
use super::loads::Load;
use super::serve::{Fault, Outcome, Server};
use super::together::{Beside, QUIET_NS};
use super::turnstile::KeptSince;
use super::{Ownership, Pager, StartError};

/// How long the thread looks for the next fault before it sleeps.
const SPIN_NS: u64 = 20_000;
/// How often, in that time, it gives its processor to the thread that it holds beside it, and then
/// looks for that thread's next fault: going to sleep and being woken takes three times as long as
/// a fault, and the scheduler does not always let a thread that is woken run at once.
const YIELDS: u32 = 4;

/// The fault thread's own state.
pub struct FaultThread<'p> {
    pub(super) pager: &'p Pager,
    messages: [Message; 32],
    /// The last time it read, there was something to read.
    found: bool,
    pub(super) events: VecDeque<Event>,
    /// Memory that has been moved since no event was under way, where it is.
    pub(super) arrived: Vec<Arrival>,
    /// Parts of unmappings that came before something moved to another part of the same place,
    /// among the events.
    pub(super) older: Vec<PageRange>,
    /// Of that, what has been heard to be unmapped: it, or what was there before.
    pub(super) doubtful: Vec<PageRange>,
    /// Memory that came under the pager while an event was under way, where it is: what was in it
    /// may have left before it was looked at.
    pub(super) unlooked: Vec<PageRange>,
    /// Read and not yet tried.
    fresh: Vec<Fault>,
    /// Tried, to be tried again.
    deferred: Vec<Fault>,
    retrying: Vec<Fault>,
    pub(super) loads: VecDeque<Load>,
    /// The oldest load waits for room.
    pub(super) load_waits: bool,
    pub(super) server: Server<'p>,
    last_note_ns: u64,
    pub(super) kept_since: KeptSince,
    beside: Beside,
    spins: bool,
}

impl<'p> FaultThread<'p> {
    /// Ready to run; preallocates.
    pub fn new(pager: &'p Pager) -> Result<FaultThread<'p>, StartError> {
        Ok(FaultThread {
            pager,
            messages: [Message::default(); 32],
            found: false,
            events: VecDeque::with_capacity(64),
            arrived: Vec::new(),
            older: Vec::new(),
            doubtful: Vec::new(),
            unlooked: Vec::new(),
            fresh: Vec::with_capacity(256),
            deferred: Vec::with_capacity(1024),
            retrying: Vec::with_capacity(1024),
            loads: VecDeque::with_capacity(16),
            load_waits: false,
            server: Server::new(pager)?,
            last_note_ns: 0,
            kept_since: None,
            beside: Beside::default(),
            spins: std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1),
        })
    }

    /// Serves until the pager closes.
    pub fn run(&mut self) {
        let (mut last_work_ns, mut errands, mut yields) = (0, 0, 0);
        while !self.pager.closing.load(Relaxed) {
            // What it is unsure about is settled first: a forked child could not do that.
            if self.pager.park.load(SeqCst) != 0 && self.is_sure() {
                self.hold_still();
            }
            self.pager.errand.run(&mut errands);
            let mut worked = self.read_messages();
            worked |= self.serve_deferred();
            worked |= self.serve_requests();
            worked |= self.serve_loads();
            // What nobody waits for yet comes after everything that somebody waits for.
            if !self.pager.streams.is_idle() && !self.pager.handles().uffd.is_readable() {
                worked |= self.serve_prefetch();
            }
            self.publish_wanted();
            let now = now_ns();
            self.pager.end_loan(now);
            if now - self.last_note_ns > 10_000_000 {
                self.last_note_ns = now;
                self.pager.note_store();
            }
            if worked {
                (last_work_ns, yields) = (now, 0);
                self.stay_beside_program(now);
                continue;
            }
            let holds = self.pager.together.is_holding();
            let soon = self.spins && now - last_work_ns < SPIN_NS;
            if holds && soon && yields < YIELDS {
                yields += 1;
                std::thread::yield_now();
            } else if holds || !soon {
                // On the program's own processor, looking on only keeps the program from its next
                // fault.
                self.sleep();
            }
        }
        self.leave_program();
        self.pager.note_store();
    }

    /// Parks until nobody wants the thread to hold still. Faults meanwhile wait in the kernel.
    fn hold_still(&mut self) {
        self.leave_program();
        while self.pager.release_freed() {}
        self.pager.parked.store(1, SeqCst);
        self.pager.progress.ring();
        loop {
            let seen = self.pager.work.look();
            if self.pager.park.load(SeqCst) == 0 {
                break;
            }
            self.pager.work.wait(seen, Some(Duration::from_millis(10)));
        }
        self.pager.parked.store(0, SeqCst);
    }

    /// Goes where that makes faults cheap; see [`super::together`]. With signal delivery nobody
    /// waits for this thread.
    fn stay_beside_program(&mut self, now_ns: u64) {
        let pager = self.pager;
        if pager.ownership != Ownership::SignalRegion && self.beside.is_due(now_ns) {
            let server_cpu = pager.server_cpu();
            self.beside
                .consider(&pager.together, &pager.fault_processors, server_cpu, now_ns);
        }
    }

    /// The program's thread may run anywhere, and so may this one.
    fn leave_program(&mut self) {
        let pager = self.pager;
        self.beside.leave(&pager.together, &pager.fault_processors);
    }

    fn sleep(&mut self) {
        let handles = self.pager.handles();
        let timeout = match () {
            _ if !(self.deferred.is_empty() && self.loads.is_empty() && self.is_settled()) => {
                Duration::from_micros(200)
            }
            _ if self.pager.has_loan() => Duration::from_millis(1),
            _ if self.pager.together.is_holding() => Duration::from_nanos(QUIET_NS),
            _ => Duration::from_millis(100),
        };
        let mut fds = [
            PollFd::new(&handles.uffd, PollFlags::IN),
            PollFd::new(&handles.bell, PollFlags::IN),
        ];
        let ready = wait_for(&mut fds, Some(&handles.either), timeout);
        if ready == Some(0) && self.deferred.is_empty() && self.loads.is_empty() {
            self.leave_program();
        }
        if ready.is_none() || !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&handles.bell, &mut [0u8; 8]);
        }
    }

    /// Reads what waits: events are acted on before the gate opens again, faults are served after.
    pub(super) fn read_messages(&mut self) -> bool {
        let pager = self.pager;
        self.settle();
        let gate = match pager.ownership {
            // Looking for the next fault over and over must not keep the gate from the evictor.
            // Where there was one, the next mostly is there.
            Ownership::Program if !self.found && !pager.handles().uffd.is_readable() => {
                return false;
            }
            Ownership::Program => Some(pager.gate.lock()),
            // There are no events to be acted on.
            Ownership::Region | Ownership::SignalRegion => None,
        };
        let count = pager.handles().uffd.read(&mut self.messages).unwrap_or(0);
        self.found = count > 0;
        if count == 0 {
            return false;
        }
        self.sort_messages(count);
        if let Some(gate) = gate {
            self.process_events(gate);
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for fault in fresh.drain(..) {
            self.serve(fault);
        }
        // What came in while serving (attaching reads messages, too) is not lost with the buffer.
        std::mem::swap(&mut self.fresh, &mut fresh);
        self.deferred.append(&mut fresh);
        true
    }

    /// Puts the events read in `events` and the faults in `fresh`.
    fn sort_messages(&mut self, count: usize) {
        let now = now_ns();
        for message in &self.messages[..count] {
            match message.decode() {
                Event::Fault {
                    page,
                    write,
                    write_protect,
                    thread,
                    ..
                } => {
                    self.pager.fault_processors.note_thread(thread);
                    self.fresh.push(Fault {
                        page,
                        write,
                        write_protect,
                        read_at_ns: now,
                    });
                }
                event => self.events.push_back(event),
            }
        }
    }

    /// Reads messages while waiting for the evictor, without acting on them beyond sorting. Returns
    /// whether any came.
    pub(super) fn collect_messages(&mut self) -> bool {
        match self.pager.handles().uffd.read(&mut self.messages) {
            Ok(count) if count > 0 => {
                self.sort_messages(count);
                true
            }
            _ => false,
        }
    }

    pub(super) fn serve_deferred(&mut self) -> bool {
        if self.deferred.is_empty() {
            return false;
        }
        let before = self.deferred.len();
        let mut retrying = std::mem::take(&mut self.retrying);
        std::mem::swap(&mut retrying, &mut self.deferred);
        for fault in retrying.drain(..) {
            self.serve(fault);
        }
        self.retrying = retrying;
        self.deferred.len() < before
    }

    fn serve(&mut self, fault: Fault) {
        match self.server.resolve(fault) {
            Outcome::Installed | Outcome::Woken => {
                self.kept_since = None;
                self.pager.ledger.faults.fetch_add(1, Relaxed);
                self.pager
                    .ledger
                    .fault_latency
                    .record(now_ns() - fault.read_at_ns);
            }
            Outcome::Busy | Outcome::NoRoomForOldBytes => self.deferred.push(fault),
            Outcome::NoRoom => {
                if self.server.is_recent(fault.page) {
                    self.pager.lend();
                }
                self.ask_for_room();
                self.deferred.push(fault);
            }
            Outcome::EventPending => {
                self.deferred.push(fault);
                self.pager.turnstile.kept(&mut self.kept_since);
                // The event's thread must run before the kernel lets us go on.
                std::thread::yield_now();
            }
        }
    }

    /// Tells the evictor how many pages are waited for, if that has changed.
    fn publish_wanted(&self) {
        let wanted = self.deferred.len() as u64 + u64::from(self.load_waits);
        if self.pager.wanted.load(Relaxed) != wanted {
            self.pager.wanted.store(wanted, SeqCst);
        }
    }

    pub(super) fn ask_for_room(&self) {
        self.pager.wanted.fetch_max(1, SeqCst);
        if self.pager.evicting.load(SeqCst) == 0 {
            self.pager.work.ring();
        }
    }
}
