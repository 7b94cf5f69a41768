//! The agent of this process: its pager, its threads, and whether it governs.
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_kernel::sync::{Mutex, futex_wait, futex_wake};
use pagetide_kernel::thread::RawThread;
use pagetide_pager::Pager;
use pagetide_pager::protocol::refusal::Refusal;

use crate::config::Config;

/// The agent of this process.
pub struct Agent {
    /// The launcher's wishes.
    pub config: Config,
    /// The pager.
    pub pager: Pager,
    /// Descriptors in the agent's table that a forked child needs.
    pub kept: Mutex<Kept>,
}

/// Descriptors in the agent's own table that a forked child must have as well.
#[derive(Debug, Default, Clone)]
pub struct Kept {
    /// `/dev/userfaultfd`, if it could be opened: a child may have lost the right to.
    pub device: Option<RawFd>,
    /// `/proc`, which a child may not be able to reach by name (a changed root directory).
    pub proc: Option<RawFd>,
    /// The run's file of lines, which a child may not be able to open.
    pub lines: Option<RawFd>,
    /// The run's common budget, if it has one, from which a child opens its own part.
    pub share: Option<RawFd>,
    /// For each store generation, what it reads through.
    pub stores: Vec<Vec<RawFd>>,
    /// Write ends of the leases this process holds on its ancestors' stores.
    pub leases: Vec<RawFd>,
}

impl Kept {
    /// All of them, in the order that [`Kept::renumber`] expects.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        let single = [self.device, self.proc, self.lines, self.share];
        let single = single.into_iter().flatten();
        let stores = self.stores.iter().flatten();
        single.chain(stores.chain(&self.leases).copied())
    }

    /// Puts other numbers in their places, as many as there are.
    pub fn renumber(&mut self, numbers: impl Iterator<Item = RawFd>) {
        let single = [
            &mut self.device,
            &mut self.proc,
            &mut self.lines,
            &mut self.share,
        ];
        let single = single.into_iter().flatten();
        let stores = self.stores.iter_mut().flatten();
        let places = single.chain(stores.chain(&mut self.leases));
        places
            .zip(numbers)
            .for_each(|(place, number)| *place = number);
    }
}

/// The agent's threads, set aside on the program's first thread.
pub struct Threads {
    /// Finds memory and starts the others.
    pub scanner: RawThread,
    /// Serves faults.
    pub fault: RawThread,
    /// Makes pages non-resident.
    pub evictor: RawThread,
    /// Serves the socket.
    pub control: RawThread,
}

impl Threads {
    /// Sets them aside.
    pub fn set_aside() -> Result<&'static Threads, rustix::io::Errno> {
        let threads = Threads {
            scanner: RawThread::new()?,
            fault: RawThread::new()?,
            evictor: RawThread::new()?,
            control: RawThread::new()?,
        };
        Ok(THREADS.get_or_init(|| threads))
    }

    /// Once they are set aside, which is before any of them starts.
    pub fn get() -> &'static Threads {
        THREADS.get().expect("set aside before any of them starts")
    }

    /// How many of them run.
    pub fn running(&self) -> usize {
        let all = [&self.scanner, &self.fault, &self.evictor, &self.control];
        all.iter().filter(|thread| thread.tid() != 0).count()
    }
}

/// Thread ID of the agent's descriptor table's owner; 0 where it does not live.
pub fn scanner_tid() -> u32 {
    THREADS.get().map_or(0, |threads| threads.scanner.tid())
}

static AGENT: OnceLock<Agent> = OnceLock::new();
static THREADS: OnceLock<Threads> = OnceLock::new();
static STATE: AtomicU32 = AtomicU32::new(STARTING);
const STARTING: u32 = 0;
const GOVERNED: u32 = 1;
/// For [`REASON`].
const REFUSED: u32 = 2;
static REASON: Mutex<Option<Refusal>> = Mutex::new(None);

/// The agent, once the process is governed.
pub fn agent() -> Option<&'static Agent> {
    match STATE.load(Ordering::Acquire) {
        GOVERNED => AGENT.get(),
        _ => None,
    }
}

/// The agent, also while it starts.
pub fn made() -> Option<&'static Agent> {
    AGENT.get()
}

/// Keeps the agent for good.
pub fn make(agent: Agent) -> &'static Agent {
    if AGENT.set(agent).is_err() {
        pagetide_kernel::memory::kill_self();
    }
    AGENT.get().expect("just set")
}

/// On the scanner: the process is governed.
pub fn announce() {
    set_state(GOVERNED);
}

/// On the scanner: there will be no agent. Why is for the program's thread to say.
pub fn refuse(refusal: Refusal) {
    *REASON.lock() = Some(refusal);
    set_state(REFUSED);
}

fn set_state(state: u32) {
    STATE.store(state, Ordering::Release);
    futex_wake(&STATE, i32::MAX as u32);
}

/// In a forked child: not governed yet.
pub fn begin_again() {
    STATE.store(STARTING, Ordering::Release);
}

/// On the program's thread: waits until the process is governed, or it is clear that it will not
/// be.
pub fn wait_for_start() -> Result<(), Refusal> {
    while STATE.load(Ordering::Acquire) == STARTING {
        futex_wait(&STATE, STARTING, None);
    }
    REASON.lock().take().map_or(Ok(()), Err)
}
