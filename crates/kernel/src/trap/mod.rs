//! Access faults that arrive as signals: SIGBUS of a userfaultfd with
//! [`crate::uffd::feature::SIGBUS`], SIGSEGV of memory made read-only with `mprotect`. A *trap* is
//! a range of addresses and what serves a fault in it; all other faults go on to the handler that
//! was there before. There is one handler for each of the two signals in a process, whoever sets
//! traps.
//!
//! The handler runs in the faulting thread with all signals blocked, so it is never entered twice
//! there, and nothing runs between a fault being served and the access that follows. It looks traps
//! up in a dense table of ranges: no lock, no allocation, a few nanoseconds a trap.
mod handler;
mod stale;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

use rustix::io::Errno;

use crate::page::PageRange;

/// Traps a process can have at a time.
pub const TRAPS_MAX: usize = 256;

/// Which signal brings the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGBUS, from a userfaultfd.
    Bus,
    /// SIGSEGV, from the mapping's protection.
    Segv,
}

/// A memory access that raised a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The address touched.
    pub address: usize,
    /// It was a write.
    pub write: bool,
    /// A page is there, but does not allow the access (write protection); otherwise none is.
    pub present: bool,
}

/// What serves the faults of a trap.
pub trait Serve: Sync {
    /// Serves an access: true to have the instruction tried again, false if the fault is not its
    /// own.
    ///
    /// Runs in a signal handler of the faulting thread, whatever that thread was doing, on a stack
    /// that may be small: no allocation, no lock that the thread may hold, no thread-local storage,
    /// no touching memory that faults this way.
    fn serve(&self, access: Access) -> bool;
}

/// A range that a fault is looked up by. `end` 0: no trap. The signal is in the low bit of `start`,
/// which is a multiple of the page size.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// What is to be done about faults in the range of the same index.
struct Entry {
    /// The server, and the function that calls it. 0: the entry is free.
    data: AtomicUsize,
    call: AtomicUsize,
    /// Handlers that use the entry now.
    users: AtomicU32,
}

static RANGES: [Range; TRAPS_MAX] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; TRAPS_MAX];
static ENTRIES: [Entry; TRAPS_MAX] = [const {
    Entry {
        data: AtomicUsize::new(0),
        call: AtomicUsize::new(0),
        users: AtomicU32::new(0),
    }
}; TRAPS_MAX];
/// Entries from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Taken by [`Trap::set`], never by a handler. The process whose handlers `users` counts.
static CHANGE: Mutex<u32> = Mutex::new(0);

impl Range {
    fn covers(&self, signal: Signal, address: usize) -> bool {
        let start = self.start.load(SeqCst);
        start & 1 == signal as usize && start & !1 <= address && address < self.end.load(SeqCst)
    }
}

/// A range whose faults are served while this lives.
#[derive(Debug)]
pub struct Trap {
    index: usize,
    range: PageRange,
}

type Call = fn(usize, Access) -> bool;

impl Trap {
    /// Serves faults of `range` that come by `signal` with `server`. The handler is installed with
    /// the first trap and stays; one that the program installs later must pass on what it does not
    /// know, as this one does.
    ///
    /// # Errors
    /// `NOSPC` when there are [`TRAPS_MAX`] traps.
    ///
    /// # Safety
    /// `server` keeps the promise of [`Serve::serve`], and lives until the trap is dropped.
    pub unsafe fn set<S: Serve>(
        signal: Signal,
        range: PageRange,
        server: *const S,
    ) -> Result<Trap, Errno> {
        fn call<S: Serve>(data: usize, access: Access) -> bool {
            // SAFETY: `data` is the server given to `set`, which lives while the trap is set; drop
            // waits for handlers that use it.
            unsafe { &*(data as *const S) }.serve(access)
        }
        handler::install(signal)?;
        let mut process = CHANGE.lock().unwrap_or_else(|held| held.into_inner());
        if *process != std::process::id() {
            // In a forked child the threads whose handlers were counted do not exist.
            ENTRIES
                .iter()
                .for_each(|entry| entry.users.store(0, SeqCst));
            *process = std::process::id();
        }
        let free = |entry: &Entry| entry.data.load(SeqCst) == 0;
        let index = ENTRIES.iter().position(free).ok_or(Errno::NOSPC)?;
        let (entry, place) = (&ENTRIES[index], &RANGES[index]);
        entry.data.store(server as usize, SeqCst);
        entry.call.store(call::<S> as Call as usize, SeqCst);
        place.start.store(range.address() | signal as usize, SeqCst);
        place.end.store(range.address() + range.bytes(), SeqCst);
        USED.fetch_max(index + 1, SeqCst);
        Ok(Trap { index, range })
    }
}

impl Drop for Trap {
    /// Ends the trap, and waits until no handler uses its server. A fault that was under way is
    /// tried again, once: by then the memory must allow the access.
    fn drop(&mut self) {
        let (entry, place) = (&ENTRIES[self.index], &RANGES[self.index]);
        let owner = *CHANGE.lock().unwrap_or_else(|held| held.into_inner());
        // Known as removed before it is gone: a handler finds one or the other.
        stale::note(self.range);
        place.end.store(0, SeqCst);
        // A child's copy of a trap has no handler that a thread of the child runs.
        while entry.users.load(SeqCst) != 0 && owner == std::process::id() {
            std::thread::yield_now();
        }
        entry.data.store(0, SeqCst);
    }
}

/// Has the trap that covers the access serve it. None: there is no such trap.
fn serve(signal: Signal, access: Access) -> Option<bool> {
    let used = USED.load(SeqCst);
    for (place, entry) in RANGES[..used].iter().zip(&ENTRIES[..used]) {
        if !place.covers(signal, access.address) {
            continue;
        }
        // Counted first, then looked again: either the trap's end waits for this handler, or this
        // handler sees the end.
        entry.users.fetch_add(1, SeqCst);
        let served = place.covers(signal, access.address).then(|| {
            let data = entry.data.load(SeqCst);
            // SAFETY: written by `set` from a function of exactly this type before `end` made the
            // trap known; not changed while `users` counts this handler.
            let call = unsafe { std::mem::transmute::<usize, Call>(entry.call.load(SeqCst)) };
            call(data, access)
        });
        entry.users.fetch_sub(1, SeqCst);
        if served.is_some() {
            return served;
        }
    }
    None
}

#[cfg(test)]
mod tests;
