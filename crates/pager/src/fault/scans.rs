//! Scans: streams that go on through a source for long, read ahead of while the program uses what
//! was read before.
//!
//! A page that was read ahead and is used causes no fault, so a stream would wait at the end of
//! each window while the next is read. Of a scan one page in so many is left out, its mark: the
//! fault there says how far the program is, and what comes after the mark is there already. Threads
//! of their own read on meanwhile, up to the next mark and as far again.
use pagetide_kernel::sync::{Doorbell, Mutex};
use pagetide_kernel::{PageNumber, PageRange};

use super::streams::WINDOW_MAX;

/// The most pages that are kept free over a source, as scans read far ahead.
pub(crate) const RESERVE_PAGES: u64 = 2048;
/// Scans followed at a time.
const SCANS: usize = 4;
/// Fewest and most pages from one mark to the next: 256 KiB, 4 MiB.
const STRIDE_MIN: u64 = WINDOW_MAX as u64;
const STRIDE_MAX: u64 = 1024;
/// One stride is at most so small a part of the budget.
const BUDGET_PART: u64 = 16;

#[derive(Debug, Clone, Copy, Default)]
struct Scan {
    /// The next page whose fault is waited for; it is not read ahead.
    mark: u64,
    /// The first page that was not read ahead.
    next: u64,
    /// Pages are read ahead to here, where the next mark is.
    end: u64,
    /// Pages from one mark to the next.
    stride: u64,
    /// Pages that were read ahead and not yet counted as used.
    read: u64,
    /// When a page of it was missed last; 0: there is no scan.
    used: u64,
}

impl Scan {
    /// Whether `page` is of it.
    fn has(&self, page: PageNumber) -> bool {
        (self.mark.saturating_sub(STRIDE_MAX)..self.end).contains(&page.0)
    }

    /// Takes the next pages to be read, at most `most`.
    fn take(&mut self, most: u64) -> Option<PageRange> {
        self.next += u64::from(self.next == self.mark);
        let stop = match self.next < self.mark {
            true => self.mark,
            false => self.end,
        };
        let count = stop.saturating_sub(self.next).min(most);
        let pages = PageRange::of(PageNumber(self.next), count);
        self.next += count;
        (count > 0).then_some(pages)
    }

    /// `page` of it was missed.
    fn missed(&mut self, page: u64, stride_max: u64) -> Miss {
        if page == self.mark {
            let used = self.read.min(self.stride);
            self.read -= used;
            self.stride = (2 * self.stride).min(stride_max);
            self.mark = self.end;
            self.end = self.mark + 1 + self.stride;
            let next = PageNumber(self.mark);
            return Miss::Mark { used, next };
        }
        if page >= self.next {
            self.next = page + 1;
            return Miss::Late;
        }
        // It was read ahead, and is gone again, or there was no room for it.
        self.stride /= 2;
        match self.stride < STRIDE_MIN {
            true => Miss::Other,
            false => Miss::Late,
        }
    }
}

#[derive(Debug, Default)]
struct Followed {
    scans: [Scan; SCANS],
    clock: u64,
}

/// What a miss means to the scans.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// It is of none.
    Other,
    /// The program was quicker than the reading, or that is not known just now.
    Late,
    /// A mark was passed.
    Mark {
        /// So many pages that were read ahead have been used.
        used: u64,
        /// The next mark.
        next: PageNumber,
    },
}

/// The scans of a pager. Nobody who serves a fault waits: who finds them in use goes without.
pub(crate) struct Scans {
    followed: Mutex<Followed>,
    /// Rung when there is something to be read.
    pub(crate) asked: Doorbell,
}

impl Default for Scans {
    fn default() -> Scans {
        Scans {
            followed: Mutex::new(Followed::default()),
            asked: Doorbell::new(),
        }
    }
}

impl Scans {
    /// The stream at `page` is read ahead by whole windows: it is a scan from the next page on,
    /// unless the `budget`, in pages, has no room for one.
    pub(crate) fn begin(&self, page: PageNumber, budget: u64) -> bool {
        if budget / BUDGET_PART < STRIDE_MIN {
            return false;
        }
        let Some(mut followed) = self.followed.try_lock() else {
            return false;
        };
        followed.clock += 1;
        let (clock, next) = (followed.clock, page.0 + 1);
        if let Some(oldest) = followed.scans.iter_mut().min_by_key(|scan| scan.used) {
            let mark = next + STRIDE_MIN;
            *oldest = Scan {
                mark,
                next,
                end: mark + 1 + STRIDE_MIN,
                stride: STRIDE_MIN,
                read: 0,
                used: clock,
            };
        }
        drop(followed);
        self.asked.ring();
        true
    }

    /// `page` was missed, with a `budget` of so many pages.
    pub(crate) fn missed(&self, page: PageNumber, budget: u64) -> Miss {
        let Some(mut followed) = self.followed.try_lock() else {
            return Miss::Late;
        };
        followed.clock += 1;
        let clock = followed.clock;
        let mut scans = followed.scans.iter_mut().filter(|scan| scan.used > 0);
        let Some(scan) = scans.find(|scan| scan.has(page)) else {
            return Miss::Other;
        };
        let miss = scan.missed(page.0, (budget / BUDGET_PART).min(STRIDE_MAX));
        scan.used = if miss == Miss::Other { 0 } else { clock };
        drop(followed);
        self.asked.ring();
        miss
    }

    /// So many pages from `start` on, which were taken, have been read.
    pub(crate) fn note_read(&self, start: PageNumber, pages: u64) {
        let mut followed = self.followed.lock();
        let mut scans = followed.scans.iter_mut().filter(|scan| scan.used > 0);
        if let Some(scan) = scans.find(|scan| scan.has(start)) {
            scan.read += pages;
        }
    }

    /// Takes pages to be read ahead, at most `most`.
    pub(crate) fn take(&self, most: u64) -> Option<PageRange> {
        let mut followed = self.followed.lock();
        let mut scans = followed.scans.iter_mut().filter(|scan| scan.used > 0);
        scans.find_map(|scan| scan.take(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 100_000;

    fn read_all(scans: &Scans) -> Vec<u64> {
        let ranges = std::iter::from_fn(|| scans.take(256));
        ranges
            .inspect(|range| scans.note_read(range.start, range.pages()))
            .flat_map(|range| range.iter().map(|page| page.0))
            .collect()
    }

    #[test]
    fn what_follows_a_mark_is_there_when_it_is_missed() {
        let scans = Scans::default();
        assert!(scans.begin(PageNumber(999), BUDGET));
        let mut present: std::collections::HashSet<u64> = read_all(&scans).into_iter().collect();
        let (mut misses, mut used) = (0, 0);
        for page in 1000..101_000 {
            if present.contains(&page) {
                continue;
            }
            misses += 1;
            let Miss::Mark { used: more, .. } = scans.missed(PageNumber(page), BUDGET) else {
                panic!("page {page} is no mark");
            };
            used += more;
            assert!(present.contains(&(page + 1)));
            present.extend(read_all(&scans));
        }
        assert!((95..110).contains(&misses), "{misses} misses");
        assert!(used > 95_000, "{used}");
    }

    #[test]
    fn a_program_that_is_quicker_is_followed() {
        let scans = Scans::default();
        scans.begin(PageNumber(999), BUDGET);
        assert_eq!(scans.take(10).map(|range| range.start.0), Some(1000));
        // The mark is at 1064.
        assert_eq!(scans.missed(PageNumber(1066), BUDGET), Miss::Late);
        assert_eq!(read_all(&scans).first(), Some(&1067));
    }

    #[test]
    fn pages_that_are_gone_again_end_the_scan() {
        let scans = Scans::default();
        assert!(!scans.begin(PageNumber(999), 1000), "a small budget");
        scans.begin(PageNumber(999), BUDGET);
        read_all(&scans);
        let (used, next) = (64, PageNumber(1129));
        assert_eq!(
            scans.missed(PageNumber(1064), BUDGET),
            Miss::Mark { used, next }
        );
        read_all(&scans);
        assert_eq!(scans.missed(PageNumber(1070), BUDGET), Miss::Late);
        assert_eq!(scans.missed(PageNumber(1071), BUDGET), Miss::Other);
        assert_eq!(scans.missed(PageNumber(1129), BUDGET), Miss::Other);
    }
}
