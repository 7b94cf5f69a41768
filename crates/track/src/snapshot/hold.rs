//! Holding the writers still while memory is armed.
use std::time::{Duration, Instant};

use pagetide_kernel::park::{self, ParkError};

/// The least time for one try to park all threads.
const LEAST: Duration = Duration::from_millis(1);

/// Holds every writer still, calls `arm`, and lets them go: this is the whole pause of a snapshot.
///
/// What is written to the memory while `arm` runs is in the snapshot, up to each thread's first
/// write to a page that is protected already: there it waits for the end of `arm`. So no thread has
/// to be held for memory to be that of one instant. Those that change several places together are,
/// not to be in the middle of it; and the fewer threads write, the sooner `arm` is done. Any
/// closure that takes the locks the writers take will do:
///
/// ```
/// use pagetide::track::Hold;
/// # fn is_hold(_: impl Hold) {}
///
/// let writers = std::sync::RwLock::new(());
/// let hold = |arm: &mut dyn FnMut()| {
///     let _alone = writers.write();
///     arm();
/// };
/// # is_hold(hold);
/// ```
pub trait Hold {
    /// Does it. An error is only returned if `arm` was not called.
    fn hold(self, arm: &mut dyn FnMut()) -> Result<(), ParkError>;
}

impl<F: FnOnce(&mut dyn FnMut())> Hold for F {
    fn hold(self, arm: &mut dyn FnMut()) -> Result<(), ParkError> {
        self(arm);
        Ok(())
    }
}

/// Parks all other threads of the process by a signal, but for those that block it: these go on
/// until they write to a page that is protected already, where they wait. Blocking calls that the
/// kernel does not restart (`poll`, `nanosleep`) return `EINTR` in parked threads. Writes by the
/// kernel on the program's behalf that are under way (`io_uring`, direct I/O) are not held.
///
/// ```
/// use pagetide::track::{Hold, ParkThreads};
///
/// let mut armed = false;
/// match ParkThreads::default().hold(&mut || armed = true) {
///     Ok(()) => assert!(armed, "no other thread ran meanwhile"),
///     Err(error) => eprintln!("{error}"), // names the thread that would not stop
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ParkThreads {
    /// How long to wait for the last thread before giving up.
    pub patience: Duration,
}

impl Default for ParkThreads {
    fn default() -> ParkThreads {
        ParkThreads {
            patience: Duration::from_secs(1),
        }
    }
}

impl Hold for ParkThreads {
    fn hold(self, arm: &mut dyn FnMut()) -> Result<(), ParkError> {
        let deadline = Instant::now() + self.patience;
        let mut at_once = (self.patience / 64).max(LEAST);
        let parked = loop {
            // Not all of it at once: a thread may be kept from stopping by what one that has
            // stopped holds, the allocator's lock for example. That one goes on for a while, then,
            // and the next time it is likely to be elsewhere.
            match park::park_others(at_once) {
                Err(ParkError::Stubborn { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(at_once / 2);
                    at_once = (at_once * 2).min((self.patience / 4).max(LEAST));
                }
                Err(ParkError::Stubborn { thread, signal, .. }) => {
                    return Err(ParkError::Stubborn {
                        thread,
                        signal,
                        after: self.patience,
                    });
                }
                result => break result?,
            }
        };
        arm();
        drop(parked);
        Ok(())
    }
}
