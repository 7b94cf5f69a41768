//! Faults of a region that come as signals.
use std::sync::Arc;

use pagetide_kernel::trap::{Access, Serve, Signal, Trap};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::pool::HandlerPool;

impl Serve for HandlerPool {
    fn serve(&self, access: Access) -> bool {
        let page = PageNumber::containing(access.address);
        self.serve_in_signal(page, access.write, access.present)
    }
}

/// Keeps a region's faults served; ends on drop, after the last handler has left.
pub struct Registration {
    _trap: Trap,
    // Used by handlers for as long as the trap is set, so it is dropped after it.
    _pool: Arc<HandlerPool>,
}

impl Registration {
    /// Has faults in `range` served by `pool`. Fails with `NOSPC` when there are too many traps.
    pub fn new(range: PageRange, pool: &Arc<HandlerPool>) -> Result<Registration, Errno> {
        // SAFETY: the pool waits for no lock that a faulting thread may hold, serves on stacks of
        // its own, allocates at most the words of a store's error, and lives as long as the trap.
        let trap = unsafe { Trap::set(Signal::Bus, range, Arc::as_ptr(pool)) }?;
        Ok(Registration {
            _trap: trap,
            _pool: Arc::clone(pool),
        })
    }
}
