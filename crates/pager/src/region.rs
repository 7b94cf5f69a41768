//! [`Region`]: a span of memory whose resident part is bounded.
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::Mutex;
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use crate::budget::Budget;
use crate::fault::pool::HandlerPool;
use crate::fault::signal::Registration;
use crate::page::word::State;
use crate::pager::Pager;
use crate::report::Statistics;
use crate::requests::{Completion, Request};
use crate::write_notification::WriteObserver;

mod builder;
mod discard;
mod error;
mod pin;

pub use builder::Builder;
pub use error::RegionError;
pub use pin::PinGuard;

/// How a fault reaches the pager.
///
/// ```
/// use std::io::Read as _;
///
/// use pagetide::{Delivery, Region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let builder = Region::builder().length(1 << 20).delivery(Delivery::Signal);
/// let Ok(region) = builder.build() else { return Ok(()) }; // the system has no userfaultfd
/// let mut program = std::fs::File::open("/proc/self/exe")?;
/// region.with_resident(0..4096, |bytes| {
///     // SAFETY: nobody else uses these bytes meanwhile.
///     program.read_exact(unsafe { &mut *bytes }) // a system call, so the bytes must be resident
/// })??;
/// assert_eq!(&region.as_slice()[..4], b"\x7fELF");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// A handler thread reads the userfaultfd. System calls on missing pages work.
    #[default]
    Thread,
    /// The faulting thread serves its fault itself, in a SIGBUS handler: no other thread has to
    /// wake up, which about halves the cost, and no privilege is needed.
    ///
    /// The price: a system call on a missing page (or a write by one to a protected page) fails
    /// with EFAULT, so pass memory to system calls only inside [`Region::with_resident`] or under a
    /// [`Region::pin`]. A SIGBUS handler that the program installs later must pass on what it does
    /// not know; one installed before gets what is not ours. The handler runs on the thread's
    /// alternate stack if it has one and needs little there: it goes on to a stack of its own.
    /// Thread stacks must not lie in the region. At most 256 such regions, and spans tracked by
    /// signals, at a time.
    Signal,
}

/// Memory of which at most a budget is resident; the rest is in a store and comes back when
/// touched.
///
/// # Access
///
/// The memory is plain memory at [`Region::as_ptr`], for any thread and any system call. It starts
/// as zeros. It must not be unmapped, moved (`mremap`), emptied (`madvise`) or shared with a forked
/// child: the child finds no memory there.
///
/// # Safety of references
///
/// [`Region::as_slice`] and [`Region::as_mut_slice`] borrow the region as memory; paging does not
/// change what bytes they show. A page the store lost raises SIGBUS, as a failing disk does under a
/// mapped file.
///
/// ```
/// use pagetide::Region;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let builder = Region::builder().length(16 << 20).resident(1 << 20); // bytes
/// let Ok(mut region) = builder.build() else { return Ok(()) }; // no right to open a userfaultfd
/// for page in region.as_mut_slice().chunks_exact_mut(4096) {
///     page[0] = 7; // 4096 pages, of which 256 are resident at a time
/// }
/// let stats = region.stats();
/// assert!(stats.resident_bytes_max <= 1 << 20 && stats.evictions >= 4096 - 256);
///
/// region.set_budget(4 << 20)?; // more of it, from here on
/// assert!(region.as_slice().iter().step_by(4096).all(|byte| *byte == 7)); // from the store
/// # Ok(())
/// # }
/// ```
pub struct Region {
    served: Arc<Served>,
}

/// The memory and all that serves it. A tracker or a snapshotter of the region shares it, so that
/// it lasts as long as they do.
pub struct Served {
    /// The memory.
    pub memory: Mapping,
    signals: Option<Registration>,
    pool: Arc<HandlerPool>,
    /// Its pager.
    pub pager: Arc<Pager>,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// Held by whoever begins to observe, or does what an observer would miss.
    observing: Mutex<()>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Served {
    /// Has `observer` told of first writes to pages it has protected; false if somebody is
    /// already. When this returns, everybody who serves knows.
    ///
    /// # Safety
    /// `observer` lives until that has ended
    /// ([`crate::write_notification::WriteNotifications::end`]).
    pub unsafe fn observe_writes(&self, observer: *const dyn WriteObserver) -> bool {
        let _one = self.observing.lock();
        // SAFETY: passed on.
        if !unsafe { self.pager.write_notifications.begin(observer) } {
            return false;
        }
        // The pager's threads, and those that serve their own faults, have finished what they were
        // at.
        self.pager.pause();
        self.pager.resume();
        self.pool.wait_for_all();
        true
    }
}

impl Region {
    /// A builder with the defaults: `ram:` store, thread delivery, everything resident.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.served.memory.as_ptr()
    }

    /// Bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.served.memory.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for the region's life; writes need `&mut self` or raw pointers, whose
        // users answer for aliasing.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The memory, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, exclusive by the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// The statistics now.
    pub fn stats(&self) -> Statistics {
        self.served.pager.note_store();
        self.served.pager.ledger.statistics()
    }

    /// Changes the most bytes that may be resident (at least one page) and waits, at most ten
    /// seconds, until the bound holds.
    pub fn set_budget(&self, bytes: u64) -> Result<(), RegionError> {
        const PATIENCE: Duration = Duration::from_secs(10);
        self.served.pager.budget.set(Budget::pages_of(bytes));
        match wait_within_budget(&self.served.pager, PATIENCE) {
            true => Ok(()),
            false => Err(RegionError::Budget(bytes, PATIENCE)),
        }
    }

    /// Page number `index` of the region (its 4096 bytes), made resident first if it is not:
    /// without a trap, so at a fraction of a fault's cost. For code that can ask before it touches,
    /// such as a database or a graph engine; a page that is resident costs one load and a
    /// comparison. The page may be evicted at any time, then the next access is a fault as usual.
    ///
    /// # Panics
    /// If the region has no such page.
    pub fn get(&self, index: usize) -> Result<&[u8; PAGE_SIZE], RegionError> {
        assert!(
            index < self.len() / PAGE_SIZE,
            "page {index} of a region of {} pages",
            self.len() / PAGE_SIZE
        );
        let page = self.served.memory.range().start.add(index as u64);
        if !self.served.pager.table.load(page).is_resident()
            && !self.served.pool.serve(page, false, false)
        {
            return Err(RegionError::Load(Errno::IO));
        }
        // SAFETY: inside the memory, mapped for the region's life; as `as_slice` otherwise.
        Ok(unsafe { &*(page.address() as *const [u8; PAGE_SIZE]) })
    }

    /// Calls `action` with the bytes of `range`, all resident and writable without a fault, so that
    /// system calls can read and write them in any delivery. They must fit in the budget.
    pub fn with_resident<R>(
        &self,
        range: Range<usize>,
        action: impl FnOnce(*mut [u8]) -> R,
    ) -> Result<R, RegionError> {
        let _pinned = self.pin(range.clone())?;
        if self.served.signals.is_none() {
            self.make_writable(self.pages(range.clone())?)?;
        }
        // SAFETY: `pages` has checked that the range lies in the region.
        let start = unsafe { self.as_ptr().add(range.start) };
        Ok(action(std::ptr::slice_from_raw_parts_mut(
            start,
            range.end - range.start,
        )))
    }

    /// Starts making `range` (bytes) resident as far as the budget has room, without waiting.
    pub fn prefetch(&self, range: Range<usize>) -> Result<(), RegionError> {
        let range = self.pages(range)?;
        self.ask(Request::Load {
            range,
            must: false,
            done: Completion::new(),
        });
        Ok(())
    }

    /// Makes the resident pages of `range` (bytes) that are not pinned non-resident, as far as the
    /// store takes them, and waits until that is done.
    pub fn evict(&self, range: Range<usize>) -> Result<(), RegionError> {
        let range = self.pages(range)?;
        self.served.pager.evict_range(range);
        Ok(())
    }

    /// Gives up what the whole pages in `range` (bytes) hold, without storing it: their frames,
    /// their part of the budget and their slots in the store go back, and they read as zeros, or as
    /// the source has them, when next touched. Pinned pages stay as they are. A page that is
    /// written to meanwhile may keep its bytes or lose them.
    ///
    /// # Errors
    /// [`RegionError::Observed`] while the region is tracked or snapshotted;
    /// [`RegionError::Range`].
    pub fn discard(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.pages(range.clone())?;
        // Nobody begins to observe meanwhile.
        let _nobody = self.served.observing.lock();
        if self.served.pager.write_notifications.is_observed() {
            return Err(RegionError::Observed);
        }
        let start = range.start.next_multiple_of(PAGE_SIZE);
        let end = range.end / PAGE_SIZE * PAGE_SIZE;
        if start < end {
            let pass = |range| {
                let done = Completion::new();
                self.ask(Request::Load {
                    range,
                    must: false,
                    done: Arc::clone(&done),
                });
                // Nothing is to be loaded: what matters is that the fault thread has come to it.
                let _ = done.wait();
            };
            discard::discard_pages(&self.served.pager, self.pages(start..end)?, pass);
        }
        Ok(())
    }

    /// Makes `range` (bytes) resident and keeps it so until the guard is dropped. Pins nest. All
    /// pinned pages must fit in the budget. With delivery by signal system calls can write there,
    /// too, unless somebody begins to observe writes meanwhile: so there it counts as a write, to
    /// trackers and for whether a page is stored anew.
    #[inline]
    pub fn pin(&self, range: Range<usize>) -> Result<PinGuard<'_>, RegionError> {
        let range = self.pages(range)?;
        let guard = pin::pin_pages(&self.served.pager, range, |request| self.ask(request))?;
        if self.served.signals.is_some() {
            self.make_writable(range)?;
        }
        Ok(guard)
    }

    /// Takes the protection off `pages`, which are pinned.
    #[cold]
    fn make_writable(&self, pages: PageRange) -> Result<(), RegionError> {
        let by_signal = self.served.signals.is_some();
        for page in pages.iter() {
            // A page that is there but protected would fail a system call that writes to it. With
            // delivery by signal it may be whatever its word says: somebody else may be about to
            // take the protection off.
            let protected = by_signal
                || self.served.pager.write_notifications.is_observed()
                || self.served.pager.table.load(page).state() == State::Clean;
            if protected && !self.served.pool.serve(page, true, true) {
                return Err(RegionError::Load(Errno::IO));
            }
        }
        Ok(())
    }

    fn pages(&self, range: Range<usize>) -> Result<PageRange, RegionError> {
        if range.start > range.end || range.end > self.len() {
            return Err(RegionError::Range(range, self.len()));
        }
        Ok(PageRange::covering(
            self.as_ptr() as usize + range.start,
            range.end - range.start,
        ))
    }

    fn ask(&self, request: Request) {
        self.served.pager.post(request);
        self.served.pager.ring_fault_thread();
    }

    #[doc(hidden)]
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// The pager, for checks of its bookkeeping.
    #[doc(hidden)]
    pub fn pager(&self) -> &Pager {
        &self.served.pager
    }
}

/// Waits until no more than the budget is resident, at most `timeout`; whether it is.
fn wait_within_budget(pager: &Pager, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let seen = pager.budget.progress.look();
        if pager.budget.is_kept() {
            return true;
        }
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        pager.budget.work.ring();
        (pager.budget.progress).wait(seen, Some((deadline - now).min(Duration::from_millis(20))));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.pager.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.signals = None;
    }
}
