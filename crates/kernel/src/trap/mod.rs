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
mod table;

use std::sync::atomic::Ordering::SeqCst;

use rustix::io::Errno;

use crate::page::PageRange;
pub use table::{Access, Serve, Signal, TRAPS_MAX};
use table::{CHANGE, Call, ENTRIES, Entry, RANGES, USED};

/// A range whose faults are served while this lives.
#[derive(Debug)]
pub struct Trap {
    index: usize,
    range: PageRange,
}

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
        let mut process = CHANGE.lock();
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
        let owner = *CHANGE.lock();
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

#[cfg(test)]
mod tests;
