//! Pages that are write-protected, which of them a write has made writable since, and protecting
//! them again.
//!
//! The invariant that everything rests on: **when no fault is being served, a page that is not
//! marked writable is write-protected.** A page marked writable may be protected in fact; that
//! costs a fault.
//!
//! Serving a fault unprotects the page, then marks it. Protecting takes the mark away, then
//! protects. However the two interleave, the last unprotecting is followed by a mark of the same
//! thread, so a mark that stays away was taken after it, and protecting followed.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagetide_kernel::PageRange;
use pagetide_kernel::memory::set_writable;
use pagetide_kernel::sync::{futex_wait, futex_wake};
use pagetide_kernel::uffd::{Stop, Uffd};
use rustix::io::Errno;

use super::spans::Spans;
use pagetide_pager::region::Served;
use pagetide_pager::write_notification::WriteNotifications;

/// Protected pages in a gap between writable ones that are protected along with them rather than in
/// a call of their own.
const GAP_PAGES_MAX: usize = 16;

fn process() -> u32 {
    std::process::id()
}

/// A word with `count` bits from bit `first` on.
fn bits(first: usize, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << first
}

/// The runs of set bits of a word: first bit and length.
pub(crate) fn runs(mut word: u64) -> impl Iterator<Item = (usize, usize)> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let first = word.trailing_zeros() as usize;
        let count = (!(word >> first)).trailing_zeros() as usize;
        word &= !bits(first, count);
        Some((first, count))
    })
}

/// How long a region's pager may take to finish the faults it is at.
const PATIENCE: Duration = Duration::from_secs(1);

/// By what pages are protected.
#[derive(Debug)]
pub(crate) enum Protector {
    /// A userfaultfd whose write-protect faults someone serves.
    Uffd(Uffd),
    /// The mapping's own protection, with a SIGSEGV handler.
    Mprotect,
}

fn write_protect(uffd: &Uffd, range: PageRange, protect: bool) -> Result<(), Errno> {
    loop {
        match uffd.write_protect(range, protect) {
            Ok(()) => return Ok(()),
            Err(Stop::EventPending) => std::hint::spin_loop(),
            // Unmapped meanwhile: there is nothing to be protected.
            Err(Stop::Absent | Stop::Gone) => return Err(Errno::NOENT),
            Err(Stop::Other(errno)) => return Err(errno),
            Err(_) => return Err(Errno::INVAL),
        }
    }
}

impl Protector {
    fn protect(&self, range: PageRange, protect: bool) -> Result<(), Errno> {
        match self {
            Protector::Uffd(uffd) => write_protect(uffd, range, protect),
            // SAFETY: the range was given as writable memory that stays so, and a write to it while
            // it is read-only is served by our trap.
            Protector::Mprotect => unsafe { set_writable(range, !protect) },
        }
    }
}

/// Spans of memory whose pages are writable or write-protected.
#[derive(Debug)]
pub(crate) struct Guard {
    pub spans: Spans,
    /// For spans that are mappings; a region's pages are protected through its pager.
    protector: Option<Protector>,
    /// One bit a page: marked writable.
    writable: Box<[AtomicU64]>,
    /// Faults being served, by the generation they began in: even ones and odd ones. Whoever waits
    /// for those under way begins a new generation, and waits for the old one alone; new faults
    /// never hold it up.
    serving: [AtomicU32; 2],
    generation: AtomicU32,
    /// Held while an old generation ends.
    settling: Mutex<()>,
    /// While faults are to wait before they are served: the process that bars them. In a forked
    /// child nobody will open a parent's bar.
    barred: AtomicU32,
}

/// A fault is being served while this lives.
pub(crate) struct Serving<'g>(&'g AtomicU32);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Guard {
    /// All pages writable.
    pub fn new(spans: Spans, protector: Option<Protector>) -> Guard {
        let pages = spans.pages();
        let writable = (0..pages.div_ceil(64))
            .map(|word| AtomicU64::new(bits(0, (pages - word * 64).min(64))));
        Guard {
            writable: writable.collect(),
            spans,
            protector,
            serving: [AtomicU32::new(0), AtomicU32::new(0)],
            generation: AtomicU32::new(0),
            settling: Mutex::new(()),
            barred: AtomicU32::new(0),
        }
    }

    pub fn uffd(&self) -> Option<&Uffd> {
        match &self.protector {
            Some(Protector::Uffd(uffd)) => Some(uffd),
            Some(Protector::Mprotect) | None => None,
        }
    }

    /// Whether page `index` counts as write-protected.
    pub fn is_protected(&self, index: usize) -> bool {
        self.writable[index / 64].load(SeqCst) & 1 << (index % 64) == 0
    }

    /// [`Guard::serving`] without waiting: none while faults are barred.
    pub fn try_serving(&self) -> Option<Serving<'_>> {
        let serving = self.enter();
        (self.barred.load(SeqCst) == 0).then_some(serving)
    }

    /// Counts among those of the present generation.
    fn enter(&self) -> Serving<'_> {
        loop {
            let generation = self.generation.load(SeqCst);
            let count = &self.serving[generation as usize % 2];
            count.fetch_add(1, SeqCst);
            let serving = Serving(count);
            // One that has ended meanwhile is not waited for.
            if self.generation.load(SeqCst) == generation {
                return serving;
            }
        }
    }

    /// Runs `f`, which protects pages, while no region's pager acts on what it saw before.
    /// `ETIMEDOUT` when one does for a second.
    pub fn protecting(&self, f: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let notifications = || {
            self.spans
                .regions()
                .map(|region| &region.pager.write_notifications)
        };
        let result = match notifications().all(|one| one.begin_protecting(PATIENCE)) {
            true => f(),
            false => Err(Errno::TIMEDOUT),
        };
        notifications().for_each(WriteNotifications::end_protecting);
        result
    }

    /// To be held while a fault is served. Waits while faults are barred.
    pub fn serving(&self) -> Serving<'_> {
        loop {
            let serving = self.enter();
            let barred = self.barred.load(SeqCst);
            if barred == 0 || barred != process() {
                return serving;
            }
            drop(serving);
            futex_wait(&self.barred, barred, None);
        }
    }

    /// Waits until no fault is being served that was when this was called. Only meaningful when
    /// something keeps new ones away or harmless.
    pub fn settle(&self) {
        let _alone = self
            .settling
            .lock()
            .unwrap_or_else(|held| held.into_inner());
        // The other generation has ended: the last call waited for it.
        let old = self.generation.fetch_add(1, SeqCst);
        let mut spins = 0u32;
        while self.serving[old as usize % 2].load(SeqCst) != 0 {
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Runs `f` while no fault is being served; faults that come meanwhile wait. `f` must not write
    /// to the spans, so it allocates nothing either: the allocator's memory may be among them.
    pub fn barred<R>(&self, f: impl FnOnce() -> R) -> R {
        self.barred.store(process(), SeqCst);
        self.settle();
        let result = f();
        self.barred.store(0, SeqCst);
        futex_wake(&self.barred, i32::MAX as u32);
        result
    }

    /// Makes pages `from..to` of one span writable: unprotects, then marks. To be called while
    /// [`Guard::serving`], or where nobody protects.
    pub fn unprotect(&self, from: usize, to: usize) -> Result<(), Errno> {
        // A region's clean pages must stay protected, and what is marked and protected only costs a
        // fault: its pager unprotects pages by itself.
        let result = match &self.protector {
            Some(protector) if self.served(from).is_none() => {
                protector.protect(self.spans.range(from, to), false)
            }
            _ => Ok(()),
        };
        self.mark_writable(from, to);
        result
    }

    fn served(&self, index: usize) -> Option<&Arc<Served>> {
        let span = self.spans.span_of(index);
        self.spans.span(span).served.as_ref()
    }

    /// Marks pages that are unprotected.
    pub fn mark_writable(&self, from: usize, to: usize) {
        let mut index = from;
        while index < to {
            let end = ((index / 64 + 1) * 64).min(to);
            self.writable[index / 64].fetch_or(bits(index % 64, end - index), SeqCst);
            index = end;
        }
    }

    /// Marks all pages. Right whatever is protected: what is marked and protected costs a fault.
    pub fn mark_all_writable(&self) {
        self.mark_writable(0, self.spans.pages());
    }

    /// Pages marked writable.
    pub fn writable_pages(&self) -> usize {
        self.writable
            .iter()
            .map(|word| word.load(SeqCst).count_ones() as usize)
            .sum()
    }

    /// Takes all marks away, without protecting: the caller protects everything after.
    pub fn clear_marks(&self) -> Result<(), Errno> {
        self.writable.iter().for_each(|word| word.store(0, SeqCst));
        // Pages that were installed unprotected, as they were marked, are there now and will be
        // protected with the others.
        self.protecting(|| Ok(()))
    }

    /// Protects pages `from..to` of one span.
    pub fn protect(&self, from: usize, to: usize) -> Result<(), Errno> {
        let range = self.spans.range(from, to);
        match (self.served(from), &self.protector) {
            (Some(region), _) => write_protect(&region.pager.handles().uffd, range, true),
            (None, Some(protector)) => protector.protect(range, true),
            (None, None) => Ok(()),
        }
    }

    /// Protects every writable page, telling `was_writable` the number of each word of marks and
    /// the marks in it first. After an error everything counts as writable.
    pub fn protect_writable(&self, was_writable: impl FnMut(usize, u64)) -> Result<(), Errno> {
        self.try_protect_writable(was_writable)
            .inspect_err(|_| self.mark_all_writable())
    }

    /// The same; after an error the caller marks everything.
    pub fn try_protect_writable(
        &self,
        mut was_writable: impl FnMut(usize, u64),
    ) -> Result<(), Errno> {
        // The run of pages to protect, gaps included, not yet protected.
        let mut pending: Option<(usize, usize)> = None;
        for (number, word) in self.writable.iter().enumerate() {
            if word.load(SeqCst) == 0 {
                continue;
            }
            let marks = word.swap(0, SeqCst);
            was_writable(number, marks);
            for (first, run) in runs(marks) {
                let (from, to) = (number * 64 + first, number * 64 + first + run);
                pending = match pending {
                    Some((start, end)) if from - end <= GAP_PAGES_MAX => Some((start, to)),
                    Some((start, end)) => {
                        self.protect_across_spans(start, end)?;
                        Some((from, to))
                    }
                    None => Some((from, to)),
                };
            }
        }
        if let Some((start, end)) = pending {
            self.protect_across_spans(start, end)?;
        }
        Ok(())
    }

    fn protect_across_spans(&self, from: usize, to: usize) -> Result<(), Errno> {
        let mut index = from;
        while index < to {
            let end = self.spans.indexes(self.spans.span_of(index)).end.min(to);
            self.protect(index, end)?;
            index = end;
        }
        Ok(())
    }

    /// Ends all protection.
    pub fn unprotect_all(&self) {
        for number in 0..self.spans.iter().count() {
            let indexes = self.spans.indexes(number);
            let _ = self.unprotect(indexes.start, indexes.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use pagetide_kernel::PAGE_SIZE;

    use super::*;
    use crate::mapping::Mapping;
    use crate::memory::Memory;

    #[test]
    fn settling_waits_for_those_serving_and_for_nobody_who_comes_later() {
        let page = Mapping::new(PAGE_SIZE).unwrap();
        let memory = Memory::mapping("page", &page).unwrap();
        let guard = Guard::new(Spans::new(vec![memory]).unwrap(), None);
        for round in 0..3 {
            let (serving, settled) = (guard.serving(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    guard.settle();
                    settled.store(true, SeqCst);
                });
                std::thread::sleep(Duration::from_millis(20));
                assert!(!settled.load(SeqCst), "round {round}: one is serving");
                let later = guard.serving();
                drop(serving);
                let since = std::time::Instant::now();
                while !settled.load(SeqCst) {
                    assert!(
                        since.elapsed() < Duration::from_secs(20),
                        "it waits for a later one"
                    );
                    std::thread::yield_now();
                }
                drop(later);
            });
        }
        // Barred ones do not serve.
        guard.barred(|| assert!(guard.try_serving().is_none()));
        assert!(guard.try_serving().is_some());
    }
}
