//! Write notifications: who is told of first writes to memory under a pager.
//!
//! A page can have one userfaultfd only, so a tracker or a snapshotter over a region works through
//! the region's pager. An *observer* says which pages are *write-protected*: nothing may be written
//! to them before it was told. The pager keeps one promise: **a page that the observer has
//! protected is protected in the kernel too, if it is present**. So whatever installs a page asks
//! first, and only the fault handler ends the protection, by asking the observer.
//!
//! The observer's protecting pages and the pager's installing them must not cross: an install
//! decided before and done after would leave a protected page writable. So fault handlers and the
//! evictor look and act within a *read section*. The observer protects pages while there is none
//! ([`WriteNotifications::begin_protecting`]), or marks them protected, waits until all sections
//! that were open have ended, and protects them then.
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use pagetide_kernel::sync::{futex_wait, futex_wake, now_ns};
use pagetide_kernel::{PageNumber, PageRange};

/// What became of the first write to a protected page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstWrite {
    /// The page may be written to.
    Allowed,
    /// Another thread is busy with the page: try again.
    Busy,
    /// Its old bytes have no room at the moment: try again when [`WriteObserver::wait_for_room`]
    /// returns.
    NoRoom,
}

/// What is told of first writes. All of it may run in a signal handler: no allocation, no locks
/// that a thread may hold.
pub trait WriteObserver: Send + Sync {
    /// Whether nothing may be written to the page yet.
    fn is_write_protected(&self, page: PageNumber) -> bool;
    /// The page is about to be written to. It is present, stays so, and nobody writes to it: its
    /// bytes are the old ones. `unprotect` makes it writable, to be called once the bytes are safe.
    fn before_write(&self, page: PageNumber, unprotect: &mut dyn FnMut()) -> FirstWrite;
    /// Waits until there may be room for old bytes, about a millisecond at most.
    fn wait_for_room(&self);
}

/// The pager's side: the observer, and the read sections that are open.
pub struct WriteNotifications {
    /// The observer in a box, for a thin pointer.
    observer: AtomicPtr<&'static dyn WriteObserver>,
    sections: AtomicU32,
    protecting: AtomicU32,
}

/// A read section, until this is dropped.
pub struct ReadSection<'w> {
    notifications: &'w WriteNotifications,
    observer: Option<&'w dyn WriteObserver>,
}

impl Drop for ReadSection<'_> {
    fn drop(&mut self) {
        if self.observer.is_some() {
            self.notifications.sections.fetch_sub(1, SeqCst);
        }
    }
}

impl<'w> ReadSection<'w> {
    /// The observer of `page`, if the page is protected.
    pub fn observer_of(&self, page: PageNumber) -> Option<&'w dyn WriteObserver> {
        self.observer
            .filter(|observer| observer.is_write_protected(page))
    }

    /// Whether `page` must be installed write-protected.
    pub fn is_write_protected(&self, page: PageNumber) -> bool {
        self.observer_of(page).is_some()
    }

    /// Whether a page of `range` must be installed write-protected.
    pub fn any_write_protected(&self, range: PageRange) -> bool {
        self.observer.is_some() && range.iter().any(|page| self.is_write_protected(page))
    }
}

impl WriteNotifications {
    /// Nobody observes.
    pub const fn new() -> WriteNotifications {
        WriteNotifications {
            observer: AtomicPtr::new(std::ptr::null_mut()),
            sections: AtomicU32::new(0),
            protecting: AtomicU32::new(0),
        }
    }

    /// Whether anybody observes.
    pub fn is_observed(&self) -> bool {
        !self.observer.load(SeqCst).is_null()
    }

    /// The observer, if any.
    fn observer(&self) -> Option<&dyn WriteObserver> {
        // SAFETY: an observer that was set is freed only after everybody who might have seen it has
        // ended its section ([`WriteNotifications::end`]).
        unsafe { self.observer.load(SeqCst).as_ref() }.map(|observer| &**observer)
    }

    /// Opens a read section, to be held from asking what is protected until having acted on it.
    /// None while pages are being protected: try again.
    pub fn enter(&self) -> Option<ReadSection<'_>> {
        if self.observer.load(SeqCst).is_null() {
            return Some(ReadSection {
                notifications: self,
                observer: None,
            });
        }
        self.sections.fetch_add(1, SeqCst);
        if self.protecting.load(SeqCst) != 0 {
            self.sections.fetch_sub(1, SeqCst);
            return None;
        }
        let observer = self.observer();
        if observer.is_none() {
            self.sections.fetch_sub(1, SeqCst);
        }
        Some(ReadSection {
            notifications: self,
            observer,
        })
    }

    /// The same, waiting: for the evictor, which must hold nothing that others wait for in a read
    /// section (the gate).
    pub fn enter_waiting(&self) -> ReadSection<'_> {
        loop {
            if let Some(section) = self.enter() {
                return section;
            }
            futex_wait(&self.protecting, 1, None);
        }
    }

    /// Lets nobody open a read section until [`WriteNotifications::end_protecting`], and waits
    /// until none is open. False if that took longer than `patience`: threads may be parked that
    /// somebody waits for in one, by way of the allocator's lock and the store's.
    pub fn begin_protecting(&self, patience: Duration) -> bool {
        self.protecting.store(1, SeqCst);
        let deadline = now_ns() + patience.as_nanos() as u64;
        let mut spins = 0u32;
        while self.sections.load(SeqCst) != 0 {
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

    /// Ends [`WriteNotifications::begin_protecting`].
    pub fn end_protecting(&self) {
        self.protecting.store(0, SeqCst);
        futex_wake(&self.protecting, i32::MAX as u32);
    }
}

impl Default for WriteNotifications {
    fn default() -> WriteNotifications {
        WriteNotifications::new()
    }
}

impl WriteNotifications {
    /// Has `observer` told of writes to this pager's memory; false if somebody is already. Whoever
    /// serves or evicts when this returns may not know of it yet: no page may be protected until
    /// each of them has finished once.
    ///
    /// # Safety
    /// `observer` lives until [`WriteNotifications::end`] has returned.
    pub unsafe fn begin(&self, observer: *const dyn WriteObserver) -> bool {
        // SAFETY: the caller keeps it alive for as long as it is known here.
        let observer: &'static dyn WriteObserver = unsafe { &*observer };
        let boxed = Box::into_raw(Box::new(observer));
        let set = self
            .observer
            .compare_exchange(std::ptr::null_mut(), boxed, SeqCst, SeqCst);
        if set.is_err() {
            // SAFETY: made above and not published.
            drop(unsafe { Box::from_raw(boxed) });
            return false;
        }
        true
    }

    /// Ends the observing. Pages that are protected then stay so until they are written to.
    pub fn end(&self) {
        let boxed = self.observer.swap(std::ptr::null_mut(), SeqCst);
        if boxed.is_null() {
            return;
        }
        while !self.begin_protecting(Duration::from_secs(1)) {}
        self.end_protecting();
        // SAFETY: taken out above, and whoever saw it before has ended its section.
        drop(unsafe { Box::from_raw(boxed) });
    }
}
