//! The first write to a page after the instant: its old bytes are put aside, and the page is opened
//! at once.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::uffd::Uffd;
use pagetide_kernel::{PAGE_SIZE, PageNumber};

use super::pages::{Held, Pages, Phase};
use super::pool::{Pool, SlotIndex};
use super::start::Start;
use super::writers::Writers;
use crate::faults::OnWrite;
use crate::guard::Guard;
use pagetide_pager::write_notification::{FirstWrite, WriteObserver};

/// What writers, the sweep and the arming share.
pub(crate) struct Shared {
    pub guard: Guard,
    pub pages: Pages,
    pub pool: Pool,
    /// [`Phase`], encoded.
    phase: AtomicU64,
    /// First writes to protected pages served, copies among them, and waits for room.
    pub faults: AtomicU64,
    pub copies: AtomicU64,
    pub waits: AtomicU64,
    pub writers: Writers,
    pub start: Start,
    /// Pages may have been opened unsaved since the snapshot began.
    pub failed: AtomicBool,
}

impl Shared {
    pub fn new(guard: Guard, pool: Pool) -> Shared {
        Shared {
            pages: Pages::new(guard.spans.pages()),
            guard,
            pool,
            phase: AtomicU64::new(
                Phase {
                    epoch: 1,
                    base: None,
                }
                .encode(),
            ),
            faults: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            writers: Writers::default(),
            start: Start::default(),
            failed: AtomicBool::new(false),
        }
    }

    pub fn phase(&self) -> Phase {
        Phase::decode(self.phase.load(SeqCst))
    }

    /// Begins the snapshot of the next epoch: called between the holding of the writers and the
    /// arming, while faults are barred, when pages written from now on must be saved first.
    pub fn begin(&self, base: u32) -> u32 {
        let epoch = self.phase().epoch + 1;
        let phase = Phase {
            epoch,
            base: Some(base),
        };
        self.failed.store(false, SeqCst);
        self.phase.store(phase.encode(), SeqCst);
        // A fault being served may have seen the phase before; it opens its page as one of that
        // phase, before the arming closes it again.
        self.guard.settle();
        epoch
    }

    /// No page is needed any more: the snapshot is complete, failed or cancelled. Writers that wait
    /// for room go on.
    pub fn end(&self) {
        let phase = Phase {
            base: None,
            ..self.phase()
        };
        self.phase.store(phase.encode(), SeqCst);
        self.pool.wake_all();
        // Whoever still copies aside for it finishes first.
        self.guard.settle();
    }

    /// Copies the page into `slot` if the snapshot still needs it; the slot goes back to the pool
    /// otherwise.
    fn save(&self, index: usize, held: &mut Held<'_>, slot: SlotIndex) {
        let phase = self.phase();
        if !phase.needs(held.word()) {
            return self.pool.give_back(slot);
        }
        let page = self.guard.spans.page(index).address() as *const u8;
        // SAFETY: the page is one of the spans', which stay mapped; it is protected while its lock
        // is held and it is needed, so nobody writes to it. The slot is ours until filled.
        unsafe { std::ptr::copy_nonoverlapping(page, self.pool.room(slot), PAGE_SIZE) };
        held.set_saved(phase.epoch);
        self.copies.fetch_add(1, SeqCst);
        self.pool.fill(slot, index);
    }
}

impl OnWrite for Shared {
    fn uffd(&self) -> Option<&Uffd> {
        self.guard.uffd()
    }

    fn on_write(&self, page: PageNumber) -> bool {
        let Some(index) = self.guard.spans.index(page) else {
            return false;
        };
        let _serving = self.guard.serving();
        self.faults.fetch_add(1, SeqCst);
        // A slot is taken before the page's lock: the wait for one may be long, and the sweep must
        // not wait for the lock meanwhile.
        let needed = || self.phase().needs(self.pages.load(index));
        let still_needed = || {
            // Nobody makes room before the writers are let go, unless they are told.
            self.start.go_if_armed();
            needed()
        };
        let slot = if needed() {
            self.pool.take(still_needed, &self.waits)
        } else {
            None
        };
        let mut held = self.pages.hold(index);
        if let Some(slot) = slot {
            self.save(index, &mut held, slot);
        }
        let phase = self.phase();
        if phase.needs(held.word()) {
            // The instant of a snapshot came between the look and the lock, without its writers
            // being held, or the wait ended early: try again.
            return false;
        }
        held.set_written(phase.epoch);
        if phase.base.is_some() {
            // Saved or left out: what is written from now on is not this snapshot's.
            held.set_saved(phase.epoch);
        }
        let before = now_ns();
        let opened = self.guard.unprotect(index, index + 1);
        self.writers.note_opening(now_ns() - before);
        opened.is_ok()
    }

    fn is_open(&self, page: PageNumber) -> bool {
        let index = self.guard.spans.index(page);
        index.is_some_and(|index| !self.guard.is_protected(index))
    }

    fn note_faulting_thread(&self) {
        self.writers.note();
    }
}

/// Pages of a region: their pager brings the faults, and waits where this may not.
impl WriteObserver for Shared {
    fn is_write_protected(&self, page: PageNumber) -> bool {
        let index = self.guard.spans.index(page);
        index.is_some_and(|index| self.guard.is_protected(index))
    }

    fn before_write(&self, page: PageNumber, unprotect: &mut dyn FnMut()) -> FirstWrite {
        let (Some(index), Some(_serving)) =
            (self.guard.spans.index(page), self.guard.try_serving())
        else {
            return FirstWrite::Busy;
        };
        let Some(mut held) = self.pages.try_hold(index) else {
            return FirstWrite::Busy;
        };
        if self.phase().needs(held.word()) {
            let Some(slot) = self.pool.try_take() else {
                self.waits.fetch_add(1, SeqCst);
                self.start.go_if_armed();
                return FirstWrite::NoRoom;
            };
            self.save(index, &mut held, slot);
        }
        let phase = self.phase();
        if phase.needs(held.word()) {
            return FirstWrite::Busy;
        }
        self.faults.fetch_add(1, SeqCst);
        held.set_written(phase.epoch);
        if phase.base.is_some() {
            held.set_saved(phase.epoch);
        }
        unprotect();
        self.guard.mark_writable(index, index + 1);
        FirstWrite::Allowed
    }

    fn wait_for_room(&self) {
        self.pool.wait(Duration::from_millis(1));
    }
}
