//! The looks at sampled pages that are open: begun by the evictor, ended by the fault that brings
//! the page back.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::*};

use pagetide_kernel::PageNumber;
use pagetide_kernel::sync::now_ns;

use crate::protocol::measured::{MeasuredCells, OpenLooks, Seen};

/// The most pages in the sample.
pub const SAMPLE_MAX: usize = 2048;
/// Places for pages with open looks: four for each page of a sample.
const PLACES: usize = 4 * SAMPLE_MAX;
/// At most one page of so many neighbours is in the sample: where more are out, they are read ahead
/// together, and nothing is known of their own use.
pub const ONE_IN_MIN: u64 = 16;
/// Of a page looked at very often in vain, so many looks are counted, each for several.
const COUNTED_MAX: u64 = 64;

/// A number that says nothing of where the page lies (the finisher of MurmurHash3).
pub fn hash(page: PageNumber) -> u64 {
    let mut x = page.0;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Whether the page is that one of `one_in` neighbours, a power of two, that is in the sample: of
/// each two it is one by a hash, of each two such pairs it is one of them, and so on. So any part
/// of the memory is in the sample in proportion, and a smaller sample is part of a larger one.
pub fn is_sampled(page: PageNumber, one_in: u64) -> bool {
    (1..=one_in.max(1).trailing_zeros()).all(|level| {
        let group = page.0 >> level;
        let half = hash(PageNumber(group << 6 | u64::from(level))) & 1;
        page.0 >> (level - 1) & 1 == half
    })
}

/// Open looks at one page, evenly from the first to the last.
#[derive(Clone, Copy)]
struct Looks {
    first_ns: u64,
    last_ns: u64,
    count: u64,
}

impl Looks {
    /// Calls `each` with when looks began, and how many looks it stands for.
    fn each(self, mut each: impl FnMut(u64, u32)) {
        let calls = self.count.min(COUNTED_MAX);
        for call in 0..calls {
            let (from, to) = (call * self.count / calls, (call + 1) * self.count / calls);
            let middle = (from + to - 1) as f64 / 2.0 / (self.count - 1).max(1) as f64;
            let at = self.first_ns + ((self.last_ns - self.first_ns) as f64 * middle) as u64;
            each(at, (to - from) as u32);
        }
    }
}

/// A page with open looks. Written by the evictor, but for `used_ns`.
#[derive(Default)]
struct Entry {
    /// 0 for none.
    page: AtomicU64,
    /// When it was used after them; 0 if it was not.
    used_ns: AtomicU64,
    /// When the first of them began, and the last: the others lie evenly between.
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    count: AtomicU64,
}

impl Entry {
    fn looks(&self) -> Looks {
        Looks {
            first_ns: self.first_ns.load(Relaxed),
            last_ns: self.last_ns.load(Relaxed),
            count: self.count.load(Relaxed),
        }
    }

    fn begin(&self, now_ns: u64) {
        self.first_ns.store(now_ns, Relaxed);
        self.last_ns.store(now_ns, Relaxed);
        self.count.store(1, Relaxed);
        self.used_ns.store(0, Release);
    }

    /// Its looks are over if the page was used.
    fn settle(&self, cells: &MeasuredCells) {
        let used_ns = self.used_ns.load(Acquire);
        if used_ns != 0 {
            let age = |at: u64| Seen::Used(used_ns.saturating_sub(at));
            let seen = |at, count| cells.note_seen(at, age(at), count);
            self.looks().each(seen);
            self.count.store(0, Relaxed);
        }
    }
}

/// Whether there is measuring, and the looks that are open.
#[derive(Default)]
pub struct Probes {
    /// `CLOCK_MONOTONIC` until which there is measuring; 0 for not at all.
    until_ns: AtomicU64,
    one_in: AtomicU64,
    /// Made when measuring begins: the fault path never allocates.
    entries: OnceLock<Box<[Entry]>>,
}

/// Where a page is, for a look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// A use of it is not seen.
    There,
    /// A use of it is a fault.
    Out,
    /// The program has given it up.
    Gone,
}

impl Probes {
    /// Whether there is measuring: one relaxed load.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.until_ns.load(Relaxed) != 0
    }

    /// Measuring begins, and ends when [`Probes::end_at`] finds that it is time. Allocates, if it
    /// is the first time; not for the fault path.
    pub fn begin(&self, until_ns: u64) {
        let make = || (0..PLACES).map(|_| Entry::default()).collect();
        self.entries.get_or_init(make);
        self.until_ns.store(until_ns.max(1), SeqCst);
    }

    /// Measuring ends, if it is time at `now_ns`.
    pub fn end_at(&self, now_ns: u64) {
        if self.until_ns.load(Relaxed) <= now_ns {
            self.until_ns.store(0, SeqCst);
        }
    }

    /// One page in so many, a power of two, is in the sample.
    pub fn one_in(&self) -> u64 {
        self.one_in.load(Relaxed).max(ONE_IN_MIN)
    }

    /// Changes that.
    pub fn set_one_in(&self, one_in: u64) {
        self.one_in.store(one_in, Relaxed);
    }

    fn entries(&self) -> &[Entry] {
        self.entries.get().map_or(&[], |entries| entries)
    }

    /// The places where `page` may be.
    fn chain(&self, page: PageNumber) -> impl Iterator<Item = &Entry> {
        let (entries, start) = (self.entries(), hash(page) as usize);
        (0..entries.len()).map(move |step| &entries[start.wrapping_add(step) % entries.len()])
    }

    fn find(&self, page: PageNumber) -> Option<&Entry> {
        let mut chain = self.chain(page);
        chain
            .find(|entry| [0, page.0].contains(&entry.page.load(Acquire)))
            .filter(|entry| entry.page.load(Relaxed) == page.0)
    }

    /// `page` was brought back by a fault. May be called in a signal handler.
    #[inline]
    pub fn note_use(&self, page: PageNumber) {
        if self.is_on() && is_sampled(page, self.one_in()) {
            self.note_use_at(page, now_ns());
        }
    }

    /// The same, at a given time.
    pub(super) fn note_use_at(&self, page: PageNumber, now_ns: u64) {
        if let Some(entry) = self.find(page) {
            let _ = (entry.used_ns).compare_exchange(0, now_ns.max(1), AcqRel, Relaxed);
        }
    }

    /// Begins a look at `page`, of a sample, which is there, or out. Whether it is to be taken out
    /// now. For the evictor alone.
    pub fn look(
        &self,
        cells: &MeasuredCells,
        page: PageNumber,
        whereabouts: Whereabouts,
        now_ns: u64,
    ) -> bool {
        let mut chain = self.chain(page);
        let Some(entry) = chain.find(|e| [0, page.0].contains(&e.page.load(Relaxed))) else {
            return false;
        };
        entry.settle(cells);
        let is_open = entry.count.load(Relaxed) > 0;
        match whereabouts {
            Whereabouts::Gone => return false,
            // Another way brought it back, so nothing is known of its last looks.
            Whereabouts::There => entry.begin(now_ns),
            Whereabouts::Out if is_open => {
                entry.last_ns.store(now_ns, Relaxed);
                entry.count.fetch_add(1, Relaxed);
            }
            Whereabouts::Out => entry.begin(now_ns),
        }
        entry.page.store(page.0, Release);
        whereabouts == Whereabouts::There
    }

    /// Counts what became of looks, and those that are open. For the evictor alone.
    pub fn publish(&self, cells: &MeasuredCells, open: &mut OpenLooks, now_ns: u64) {
        open.clear();
        for entry in self.entries() {
            if entry.page.load(Relaxed) == 0 {
                continue;
            }
            entry.settle(cells);
            entry.looks().each(|at, count| {
                cells.count_open(open, at, now_ns.saturating_sub(at), count);
            });
        }
        cells.set_open(open);
    }

    /// Forgets pages that are no longer in the sample, or gone: `keep` says which are to stay. For
    /// the evictor alone; a use meanwhile may not be seen.
    pub fn retain(
        &self,
        cells: &MeasuredCells,
        now_ns: u64,
        keep: impl Fn(PageNumber) -> Whereabouts,
    ) {
        let taken = |entry: &Entry| {
            let page = PageNumber(entry.page.swap(0, AcqRel));
            let found = (page, entry.looks(), entry.used_ns.swap(0, AcqRel));
            entry.count.store(0, Relaxed);
            found
        };
        let entries = self.entries();
        entries.iter().for_each(|entry| entry.settle(cells));
        let all: Vec<_> = entries
            .iter()
            .map(taken)
            .filter(|(page, ..)| page.0 != 0)
            .collect();
        for (page, looks, used_ns) in all {
            if !is_sampled(page, self.one_in()) || looks.count == 0 {
                continue;
            }
            if keep(page) == Whereabouts::Gone {
                let gone = |at| Seen::Gone(now_ns.saturating_sub(at));
                looks.each(|at, count| cells.note_seen(at, gone(at), count));
                continue;
            }
            let free = self.chain(page).find(|entry| entry.page.load(Relaxed) == 0);
            let Some(entry) = free else { continue };
            entry.first_ns.store(looks.first_ns, Relaxed);
            entry.last_ns.store(looks.last_ns, Relaxed);
            entry.count.store(looks.count, Relaxed);
            entry.used_ns.store(used_ns, Relaxed);
            entry.page.store(page.0, Release);
        }
    }

    /// Forgets everything. For the evictor alone, or while it holds still.
    pub fn clear(&self) {
        for entry in self.entries() {
            entry.page.store(0, Relaxed);
            entry.count.store(0, Relaxed);
            entry.used_ns.store(0, Relaxed);
        }
    }
}
