//! The traps there are, in a table that a signal handler reads without a lock.
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

use crate::sync::Mutex;

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
pub(super) struct Range {
    pub start: AtomicUsize,
    pub end: AtomicUsize,
}

/// What is to be done about faults in the range of the same index.
pub(super) struct Entry {
    /// The server, and the function that calls it. 0: the entry is free.
    pub data: AtomicUsize,
    pub call: AtomicUsize,
    /// Handlers that use the entry now.
    pub users: AtomicU32,
}

pub(super) static RANGES: [Range; TRAPS_MAX] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; TRAPS_MAX];
pub(super) static ENTRIES: [Entry; TRAPS_MAX] = [const {
    Entry {
        data: AtomicUsize::new(0),
        call: AtomicUsize::new(0),
        users: AtomicU32::new(0),
    }
}; TRAPS_MAX];
/// Entries from here on were never used.
pub(super) static USED: AtomicUsize = AtomicUsize::new(0);
/// Taken by [`Trap::set`], never by a handler. The process whose handlers `users` counts.
pub(super) static CHANGE: Mutex<u32> = Mutex::new(0);

impl Range {
    fn covers(&self, signal: Signal, address: usize) -> bool {
        let start = self.start.load(SeqCst);
        start & 1 == signal as usize && start & !1 <= address && address < self.end.load(SeqCst)
    }
}

/// A function that calls a server, given as the number in [`Entry::data`].
pub(super) type Call = fn(usize, Access) -> bool;

/// Has the trap that covers the access serve it. None: there is no such trap.
pub(super) fn serve(signal: Signal, access: Access) -> Option<bool> {
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
