//! The fault thread: reads the userfaultfd and gives every fault its page.
//!
//! It never touches attached memory itself, never waits for the evictor while messages may be
//! unread, and leaves a fault it cannot serve yet in `deferred`, to be tried again.
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagetide_kernel::sync::{now_ns, thread_cpu_ns};
use pagetide_kernel::thread::processors;
use pagetide_kernel::wait::wait_for;
use rustix::event::{PollFd, PollFlags};

use super::handler::{Fault, Handler, Outcome};
use super::spin::Spin;
use crate::address_space::events::Messages;
use crate::handles::Ownership;
use crate::handles::StartError;
use crate::pager::Pager;
use crate::placement::{self, Place, Turn};
use crate::requests::Load;

/// How often, in the time after its last work, it gives its processor to the thread that it holds
/// beside it, and then looks for that thread's next fault: going to sleep and being woken takes
/// three times as long as a fault, and the scheduler does not always let a thread that is woken run
/// at once.
const YIELDS: u32 = 4;
const YIELD_NS: u64 = 20_000;

/// How often the ledger is brought up to date.
const NOTE_NS: u64 = 10_000_000;

/// The fault thread's own state.
pub struct FaultThread<'p> {
    pub(crate) pager: &'p Pager,
    pub(crate) messages: Messages<'p>,
    pub(crate) handler: Handler<'p>,
    /// Faults read and not yet tried, while they are tried.
    fresh: Vec<Fault>,
    /// Tried, to be tried again.
    deferred: Vec<Fault>,
    retrying: Vec<Fault>,
    pub(super) loads: VecDeque<Load>,
    /// The oldest load waits for room.
    pub(super) load_waits: bool,
    place: Box<dyn Place>,
    last_note_ns: u64,
    /// There is more than one processor.
    spins: bool,
    spin: Spin,
}

impl<'p> FaultThread<'p> {
    /// Ready to run; preallocates.
    pub fn new(pager: &'p Pager) -> Result<FaultThread<'p>, StartError> {
        let processors = processors();
        let by_signal = pager.ownership == Ownership::SignalRegion;
        Ok(FaultThread {
            pager,
            messages: Messages::new(pager),
            handler: Handler::new(pager, true)?,
            fresh: Vec::with_capacity(256),
            deferred: Vec::with_capacity(1024),
            retrying: Vec::with_capacity(1024),
            loads: VecDeque::with_capacity(16),
            load_waits: false,
            place: placement::fault_thread(by_signal, processors),
            last_note_ns: 0,
            spins: processors > 1,
            spin: Spin::new(),
        })
    }

    /// Serves until the pager closes.
    pub fn run(&mut self) {
        let (mut last_work_ns, mut callbacks, mut yields) = (0, 0, 0);
        while !self.pager.is_closing() {
            // What it is unsure about is settled first: a forked child could not do that.
            if self.pager.pauses.fault_thread_is_wanted() && self.messages.is_sure() {
                self.hold_still();
            }
            self.pager.callback.run(&mut callbacks);
            let worked = self.turn();
            let now = now_ns();
            self.pager.budget.end_loan(now);
            if now.saturating_sub(self.last_note_ns) > NOTE_NS {
                self.last_note_ns = now;
                self.note();
            }
            if worked {
                (last_work_ns, yields) = (now, 0);
                self.spin.found();
                self.end_turn(now, false);
                continue;
            }
            let shares = self.pager.placement.shares_processor();
            if shares && now.saturating_sub(last_work_ns) < YIELD_NS && yields < YIELDS {
                yields += 1;
                std::thread::yield_now();
            } else if shares || !self.spins || !self.spin.goes_on(now.saturating_sub(last_work_ns))
            {
                // On the program's own processor, looking on only keeps the program from its next
                // fault.
                self.spin.sleeps();
                self.sleep();
            }
        }
        self.place.leave(&self.pager.placement);
        self.note();
    }

    fn note(&self) {
        self.pager.note_store();
        let cpu_ns = &self.pager.ledger.fault_thread_cpu_ns;
        cpu_ns.store(thread_cpu_ns(), Relaxed);
    }

    /// Serves what there is, in the order in which somebody waits for it. Whether there was
    /// anything.
    fn turn(&mut self) -> bool {
        let mut worked = self.read_messages();
        worked |= self.serve_deferred();
        worked |= self.serve_requests();
        worked |= self.serve_loads();
        // What nobody waits for yet comes after everything that somebody waits for.
        if !self.pager.streams.is_idle() && !self.pager.handles().uffd.is_readable() {
            worked |= self.handler.read_ahead_of_streams();
        }
        if !self.pager.pointers.is_idle() && !self.pager.handles().uffd.is_readable() {
            worked |= self.handler.read_ahead_of_pointers();
        }
        let waiting = self.deferred.len() as u64 + u64::from(self.load_waits);
        self.pager.budget.set_wanted(waiting);
        worked
    }

    fn end_turn(&mut self, now_ns: u64, is_idle: bool) {
        let pager = self.pager;
        let turn = Turn {
            now_ns,
            is_idle,
            faults: pager.ledger.faults.load(Relaxed),
            server_cpu: &|| pager.server_cpu(),
        };
        self.place.end(&pager.placement, &turn);
    }

    /// Rests until nobody wants the thread to hold still. Faults meanwhile wait in the kernel.
    fn hold_still(&mut self) {
        self.place.leave(&self.pager.placement);
        self.pager.stores.release_noted();
        self.pager.rest_fault_thread();
    }

    fn sleep(&mut self) {
        let pager = self.pager;
        let handles = pager.handles();
        let is_idle = self.deferred.is_empty() && self.loads.is_empty();
        let timeout = match pager.placement.quiet_after() {
            _ if !(is_idle && self.messages.is_settled()) => Duration::from_micros(200),
            _ if pager.budget.has_loan() => Duration::from_millis(1),
            Some(quiet) => quiet,
            None => Duration::from_millis(100),
        };
        let mut fds = [
            PollFd::new(&handles.uffd, PollFlags::IN),
            PollFd::new(&handles.bell, PollFlags::IN),
        ];
        let ready = wait_for(&mut fds, Some(&handles.either), timeout);
        if ready == Some(0) && is_idle {
            self.end_turn(now_ns(), true);
        }
        if ready.is_none() || !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&handles.bell, &mut [0u8; 8]);
        }
    }

    /// Reads what waits: events are acted on before the gate opens again, faults are served after.
    pub(crate) fn read_messages(&mut self) -> bool {
        if self.messages.settle() {
            self.look_again();
        }
        if !self.messages.read() {
            return false;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        self.messages.swap_faults(&mut fresh);
        for fault in fresh.drain(..) {
            if !self.is_deferred(fault) {
                self.serve(fault);
            }
        }
        self.fresh = fresh;
        true
    }

    /// Whether `fault` is one that waits already: a thread that faults within a system call, with a
    /// signal pending, does not sleep but faults anew. Serving the one serves the other.
    fn is_deferred(&mut self, fault: Fault) -> bool {
        let is_same = |other: &&mut Fault| {
            (other.page, other.write_protect) == (fault.page, fault.write_protect)
        };
        let Some(first) = self.deferred.iter_mut().find(is_same) else {
            return false;
        };
        first.write |= fault.write;
        true
    }

    pub(crate) fn serve_deferred(&mut self) -> bool {
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

    fn serve(&mut self, mut fault: Fault) {
        let ledger = self.pager.ledger;
        let fetches = ledger.fetches.load(Relaxed);
        match self.handler.serve(fault) {
            Outcome::Installed | Outcome::Woken => {
                self.messages.kept_since = None;
                ledger.faults.fetch_add(1, Relaxed);
                let waited_ns = now_ns() - fault.read_at_ns;
                ledger.fault_latency.record(waited_ns);
                let has_fetched = ledger.fetches.load(Relaxed) != fetches;
                if fault.waited || has_fetched {
                    ledger.refault_ns.fetch_add(waited_ns, Relaxed);
                }
                if has_fetched && self.pager.probes.is_on() {
                    ledger.measured.fetch_waits.record(waited_ns);
                }
            }
            Outcome::Busy | Outcome::NoRoomForOldBytes => self.deferred.push(fault),
            Outcome::NoRoom => {
                self.pager.note_wait(&mut fault);
                if self.handler.recent.contains(fault.page) {
                    self.pager.budget.lend();
                }
                self.ask_for_room();
                self.deferred.push(fault);
            }
            Outcome::EventPending => {
                self.deferred.push(fault);
                (self.pager.space.throttle).kept(&mut self.messages.kept_since);
                // The event's thread must run before the kernel lets us go on.
                std::thread::yield_now();
            }
        }
    }

    pub(super) fn ask_for_room(&self) {
        self.pager.budget.want();
        if !self.pager.pauses.is_evicting() {
            self.pager.budget.work.ring();
        }
    }
}
