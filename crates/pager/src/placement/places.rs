//! The hooks by which the pager's threads say what they are about to do, and what is behind them.
use std::time::Duration;

use pagetide_kernel::sync::now_ns;

use super::evictor::EvictorPlace;
use super::faults::FaultProcessors;
use super::hold::HeldThread;
use super::holder::{Holder, QUIET_NS};

/// What all threads know of where faults come from.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    faults: FaultProcessors,
    held: HeldThread,
}

impl Placement {
    /// `thread`'s fault was read from the userfaultfd.
    pub(crate) fn faulted(&self, thread: u32) {
        self.faults.note_thread(thread);
    }

    /// The calling thread has served a fault of its own.
    pub(crate) fn faulted_here(&self) {
        self.faults.note();
    }

    /// Whether a thread of the program shares the fault thread's processor just now: looking on
    /// there only keeps it from its next fault.
    pub(crate) fn shares_processor(&self) -> bool {
        self.held.is_holding()
    }

    /// Whether interrupting another processor was found to take long.
    pub(crate) fn is_interrupting_expensive(&self) -> bool {
        self.faults.is_interrupting_expensive()
    }

    /// Whether the evictor waits for the processor that the calling thread runs on.
    pub(crate) fn evictor_is_here(&self) -> bool {
        self.faults.evictor_is_here()
    }

    /// How long one of the pager's threads sleeps at most before it looks whether a thread is to be
    /// let go; none when none is held.
    pub(crate) fn quiet_after(&self) -> Option<Duration> {
        self.shares_processor()
            .then_some(Duration::from_nanos(QUIET_NS))
    }

    /// The program's thread may run anywhere: see [`crate::Pager::let_threads_go`].
    pub(crate) fn let_go(&self) {
        self.held.let_go();
    }

    /// The same until [`Placement::end_call`].
    pub(crate) fn begin_call(&self) {
        self.held.begin_call();
    }

    /// Ends one [`Placement::begin_call`].
    pub(crate) fn end_call(&self) {
        self.held.end_call();
    }

    /// In a forked child: whoever was held is in the parent.
    pub(crate) fn reset_after_fork(&self) {
        self.held.forget();
    }
}

/// How many moves of a round there were, and how long they took in all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moves {
    pub(crate) count: u64,
    pub(crate) ns: u64,
}

/// A turn that has ended.
pub(crate) struct Turn<'a> {
    pub(crate) now_ns: u64,
    /// There was nothing to do, and the thread sleeps.
    pub(crate) is_idle: bool,
    /// Faults since the pager began.
    pub(crate) faults: u64,
    /// The processor of the server that has the pages, if that is known.
    pub(crate) server_cpu: &'a dyn Fn() -> Option<usize>,
}

/// Where one thread of the pager works. Every hook does nothing by default.
pub(crate) trait Place {
    /// A turn of work begins. Pages are on a server that keeps to processor `server_cpu`, if that
    /// is known. Returns the most pages the turn may have.
    fn begin(&mut self, _on: &Placement, _server_cpu: Option<usize>) -> u64 {
        u64::MAX
    }

    /// In the middle of the turn: `moves` were made, and `work`, which packs `pages` pages and
    /// interrupts nobody, is to be done now.
    fn pack(&mut self, _on: &Placement, _moves: Moves, _pages: usize, work: &mut dyn FnMut()) {
        work();
    }

    /// A turn has ended.
    fn end(&mut self, _on: &Placement, _turn: &Turn<'_>) {}

    /// Everybody may run anywhere.
    fn leave(&mut self, _on: &Placement) {}
}

/// Where the scheduler says.
struct Anywhere;
impl Place for Anywhere {}

/// The fault thread's: beside the one thread that faults. Threads that serve their own faults
/// (`by_signal`) wait for none, and on one processor there is nothing to choose.
pub(crate) fn fault_thread(by_signal: bool, processors: usize) -> Box<dyn Place> {
    match by_signal || processors < 2 {
        true => Box::new(Anywhere),
        false => Box::new(FaultThreadPlace(Holder::default())),
    }
}

struct FaultThreadPlace(Holder);

impl Place for FaultThreadPlace {
    fn end(&mut self, on: &Placement, turn: &Turn<'_>) {
        if turn.is_idle {
            self.leave(on);
        } else if self.0.is_due(turn.now_ns) {
            let server_cpu = (turn.server_cpu)();
            (self.0).consider(&on.held, &on.faults, server_cpu, turn.now_ns);
        }
    }

    fn leave(&mut self, on: &Placement) {
        self.0.leave(&on.held, &on.faults);
    }
}

/// The evictor's: beside the one thread that faults while it moves pages out. Where threads serve
/// their own faults (`by_signal`) it keeps that thread there meanwhile.
pub(crate) fn evictor(by_signal: bool, processors: usize) -> Box<dyn Place> {
    match processors < 2 {
        true => Box::new(Anywhere),
        false => Box::new(BesideFaults {
            place: EvictorPlace::default(),
            holder: by_signal.then(Holder::where_it_is),
            faulting: (0, 0),
        }),
    }
}

struct BesideFaults {
    place: EvictorPlace,
    holder: Option<Holder>,
    /// When faults were last seen to have come, and how many there were: a thread that has some is
    /// held between rounds too.
    faulting: (u64, u64),
}

impl Place for BesideFaults {
    fn begin(&mut self, on: &Placement, server_cpu: Option<usize>) -> u64 {
        // Where another thread serves the faults, that one takes the program to its server, and the
        // evictor follows.
        let server_cpu = server_cpu.filter(|_| self.holder.is_some());
        let most = self.place.choose(&on.faults, server_cpu);
        if let Some(holder) = &mut self.holder {
            holder.consider(&on.held, &on.faults, server_cpu, now_ns());
        }
        most
    }

    fn pack(&mut self, on: &Placement, moves: Moves, pages: usize, work: &mut dyn FnMut()) {
        self.place.note_moves(&on.faults, moves.ns, moves.count);
        match pages {
            0 => work(),
            _ => self.place.pack(pages, work),
        }
    }

    fn end(&mut self, on: &Placement, turn: &Turn<'_>) {
        if self.faulting.1 != turn.faults {
            self.faulting = (turn.now_ns, turn.faults);
        }
        let is_quiet = turn.now_ns - self.faulting.0 > QUIET_NS;
        if turn.is_idle && on.held.is_holding() && is_quiet {
            self.leave(on);
        }
    }

    fn leave(&mut self, on: &Placement) {
        if let Some(holder) = &mut self.holder {
            holder.leave(&on.held, &on.faults);
        }
    }
}
