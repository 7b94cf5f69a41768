//! Tracking what is written to memory under a pager.
//!
//! A page can have one userfaultfd only, so a tracker or a snapshotter over a region works through
//! the region's pager. A *watcher* says which pages are *closed*: nothing may be written to them
//! before it was told. The pager keeps one promise: **a closed page that is present is
//! write-protected**. So whatever installs a page asks first, and only the fault handler opens one,
//! by asking the watcher.
//!
//! The watcher's closing pages and the pager's installing them must not cross: an install decided
//! before the closing and done after it would leave a closed page writable. So both the servers and
//! the evictor *enter* before they look and leave when they have acted, and the watcher closes
//! pages while nobody is inside ([`Watch::close_begins`]), or marks them closed, waits until all
//! who were inside have left, and protects them then.
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use pagetide_kernel::sync::{futex_wait, futex_wake, now_ns};
use pagetide_kernel::{PageNumber, PageRange};

/// What became of a write to a closed page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// The page is open.
    Yes,
    /// Another thread is busy with the page: try again.
    Busy,
    /// Its old bytes have no room at the moment: try again when [`Watcher::wait_for_room`] returns.
    NoRoom,
}

/// What is told of first writes. All of it may run in a signal handler: no allocation, no locks
/// that a thread may hold.
pub trait Watcher: Send + Sync {
    /// Whether the page may not be written to yet.
    fn is_closed(&self, page: PageNumber) -> bool;
    /// The page is about to be written to. It is present, stays so, and nobody writes to it: its
    /// bytes are the old ones. `unprotect` makes it writable, to be called once the bytes are safe.
    fn open(&self, page: PageNumber, unprotect: &mut dyn FnMut()) -> Opened;
    /// Waits until there may be room for old bytes, about a millisecond at most.
    fn wait_for_room(&self);
}

/// The pager's side: who watches, and who is inside.
pub struct Watch {
    /// The watcher in a box, for a thin pointer.
    watcher: AtomicPtr<&'static dyn Watcher>,
    inside: AtomicU32,
    closing: AtomicU32,
}

/// Inside while this lives.
pub struct Inside<'w> {
    watch: &'w Watch,
    watcher: Option<&'w dyn Watcher>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.watcher.is_some() {
            self.watch.inside.fetch_sub(1, SeqCst);
        }
    }
}

impl<'w> Inside<'w> {
    /// The watcher of `page`, if the page is closed.
    pub fn watcher_of(&self, page: PageNumber) -> Option<&'w dyn Watcher> {
        self.watcher.filter(|watcher| watcher.is_closed(page))
    }

    /// Whether `page` must be installed write-protected.
    pub fn is_closed(&self, page: PageNumber) -> bool {
        self.watcher_of(page).is_some()
    }

    /// Whether a page of `range` must be installed write-protected.
    pub fn any_closed(&self, range: PageRange) -> bool {
        self.watcher.is_some() && range.iter().any(|page| self.is_closed(page))
    }
}

impl Watch {
    /// Nobody watches.
    pub const fn new() -> Watch {
        Watch {
            watcher: AtomicPtr::new(std::ptr::null_mut()),
            inside: AtomicU32::new(0),
            closing: AtomicU32::new(0),
        }
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        !self.watcher.load(SeqCst).is_null()
    }

    /// The watcher, if any.
    fn watcher(&self) -> Option<&dyn Watcher> {
        // SAFETY: a watcher that was set is freed only after everybody who might have seen it has
        // left ([`Watch::end`]).
        unsafe { self.watcher.load(SeqCst).as_ref() }.map(|watcher| &**watcher)
    }

    /// To be held from asking what is closed until having acted on it. None while pages are being
    /// closed: try again.
    pub fn enter(&self) -> Option<Inside<'_>> {
        if self.watcher.load(SeqCst).is_null() {
            return Some(Inside {
                watch: self,
                watcher: None,
            });
        }
        self.inside.fetch_add(1, SeqCst);
        if self.closing.load(SeqCst) != 0 {
            self.inside.fetch_sub(1, SeqCst);
            return None;
        }
        let watcher = self.watcher();
        if watcher.is_none() {
            self.inside.fetch_sub(1, SeqCst);
        }
        Some(Inside {
            watch: self,
            watcher,
        })
    }

    /// The same, waiting: for the evictor, which must hold nothing that those inside wait for (the
    /// gate).
    pub fn enter_waiting(&self) -> Inside<'_> {
        loop {
            if let Some(inside) = self.enter() {
                return inside;
            }
            futex_wait(&self.closing, 1, None);
        }
    }

    /// Keeps everybody out until [`Watch::close_ends`], and waits until nobody is inside. False if
    /// that took longer than `patience`: threads may be parked that somebody inside waits for, by
    /// way of the allocator's lock and the store's.
    pub fn close_begins(&self, patience: Duration) -> bool {
        self.closing.store(1, SeqCst);
        let deadline = now_ns() + patience.as_nanos() as u64;
        let mut spins = 0u32;
        while self.inside.load(SeqCst) != 0 {
            spins += 1;
            if spins.is_multiple_of(64) {
                if now_ns() > deadline {
                    return false;
                }
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        true
    }

    /// Ends [`Watch::close_begins`].
    pub fn close_ends(&self) {
        self.closing.store(0, SeqCst);
        futex_wake(&self.closing, i32::MAX as u32);
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new()
    }
}

impl Watch {
    /// Has `watcher` watch this pager's memory; false if somebody does already. Whoever serves or
    /// evicts when this returns may not know of it yet: no page may be closed until each of them
    /// has finished once.
    ///
    /// # Safety
    /// `watcher` lives until [`Watch::end`] has returned.
    pub unsafe fn begin(&self, watcher: *const dyn Watcher) -> bool {
        // SAFETY: the caller keeps it alive for as long as it is known here.
        let watcher: &'static dyn Watcher = unsafe { &*watcher };
        let boxed = Box::into_raw(Box::new(watcher));
        let set = self
            .watcher
            .compare_exchange(std::ptr::null_mut(), boxed, SeqCst, SeqCst);
        if set.is_err() {
            // SAFETY: made above and not published.
            drop(unsafe { Box::from_raw(boxed) });
            return false;
        }
        true
    }

    /// Ends the watching. Pages that are closed then stay write-protected until they are written
    /// to.
    pub fn end(&self) {
        let boxed = self.watcher.swap(std::ptr::null_mut(), SeqCst);
        if boxed.is_null() {
            return;
        }
        while !self.close_begins(Duration::from_secs(1)) {}
        self.close_ends();
        // SAFETY: taken out above, and whoever saw it before has left.
        drop(unsafe { Box::from_raw(boxed) });
    }
}
