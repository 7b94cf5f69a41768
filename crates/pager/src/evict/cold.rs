//! Memory that the program does not use, found by trial.
//!
//! There is no accessed bit to look at. So one page of each region, 256 KiB, is taken out now and
//! then. If the program wants it back soon, the region is in use, and is left alone for a time that
//! doubles with every such trial. If it stays out, so do the others: the regions whose page has
//! been out for longest are taken as wholes, as far as may be taken. One fault tells of 64 pages
//! what a queue, which takes each out to learn of its use, needs 64 for.
use std::collections::BTreeMap;

use pagetide_kernel::{PageNumber, PageRange};

use crate::measure::probes::hash;

/// Pages of a region.
const REGION_PAGES: u64 = 64;
/// How long a page must have been out for its region to be taken.
const COLD_NS: u64 = 300_000_000;
/// How long a region that is in use is left alone at first, and at most.
const ALONE_NS: u64 = 1_000_000_000;
const ALONE_MAX_NS: u64 = 32 * ALONE_NS;
/// Memory is looked at in pieces of so many pages, until so many were seen, or so many pieces.
const PIECE_PAGES: u64 = 1 << 14;
const SEEN_MAX: u64 = 1 << 16;
const PIECES_MAX: usize = 1 << 12;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In memory.
    There,
    /// In the store, or on its way there.
    Out,
    /// Neither, or pinned.
    Elsewhere,
}

/// The memory that is looked at.
pub(super) trait Memory {
    /// Calls `each` with every page of `range` that the program uses.
    fn each_in(&self, range: PageRange, each: &mut dyn FnMut(PageNumber, Whereabouts));
    /// Where `page` is.
    fn whereabouts(&self, page: PageNumber) -> Whereabouts;
}

/// What may be done in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Allowance {
    /// Pages that may be taken.
    pub taken: u64,
    /// Regions that may be tried.
    pub tried: u64,
}

/// What is known of a region.
#[derive(Debug, Clone, Copy)]
struct Region {
    /// The page that was taken out to see whether the region is in use.
    tried: Option<PageNumber>,
    /// When that was, or when the next may be.
    at_ns: u64,
    /// How long it is left alone after the next trial.
    alone_ns: u64,
    /// The round in which it was seen last.
    round: u64,
}

/// What is known of the program's memory.
#[derive(Default)]
pub(super) struct ColdMemory {
    regions: BTreeMap<u64, Region>,
    /// The page that is looked at next.
    cursor: u64,
    round: u64,
    /// Pages that are to go.
    going: Vec<PageNumber>,
}

/// One step: what may still be done in it, and what is cold.
struct Step {
    now_ns: u64,
    left: Allowance,
    /// Since when, the region, and how many of its pages are there.
    cold: Vec<(u64, u64, u64)>,
}

impl ColdMemory {
    /// Looks at the next part of `ranges` of `memory`, which are in order, and notes which pages
    /// are to go.
    pub(super) fn step(
        &mut self,
        memory: &impl Memory,
        ranges: &[PageRange],
        now_ns: u64,
        allowance: Allowance,
    ) {
        let mut step = Step {
            now_ns,
            left: allowance,
            cold: Vec::new(),
        };
        let mut seen = 0;
        for _ in 0..PIECES_MAX {
            let Some(piece) = self.next_piece(ranges) else {
                break;
            };
            seen += self.look(memory, piece, &mut step);
            if seen >= SEEN_MAX {
                break;
            }
        }
        step.cold.sort_unstable();
        for (_, region, there) in step.cold {
            if there > step.left.taken {
                break;
            }
            step.left.taken -= there;
            let pages = PageRange::of(PageNumber(region * REGION_PAGES), REGION_PAGES);
            memory.each_in(pages, &mut |page, whereabouts| {
                if whereabouts == Whereabouts::There {
                    self.going.push(page);
                }
            });
            let entry = self.regions.get_mut(&region).expect("it was just seen");
            (entry.tried, entry.at_ns) = (None, now_ns + ALONE_NS);
        }
    }

    /// Moves the next `most` pages that are to go to `pages`.
    pub(super) fn take(&mut self, pages: &mut Vec<PageNumber>, most: usize) {
        pages.clear();
        let first = self.going.len().saturating_sub(most);
        pages.extend(self.going.drain(first..));
    }

    /// Whether pages are to go.
    pub(super) fn has_going(&self) -> bool {
        !self.going.is_empty()
    }

    /// The next piece of `ranges`; none at their end, once.
    fn next_piece(&mut self, ranges: &[PageRange]) -> Option<PageRange> {
        let next = ranges.partition_point(|range| range.end.0 <= self.cursor);
        let Some(range) = ranges.get(next) else {
            self.cursor = 0;
            let round = self.round;
            self.regions.retain(|_, region| region.round == round);
            self.round += 1;
            return None;
        };
        let start = range.start.0.max(self.cursor);
        let end = (start / PIECE_PAGES + 1) * PIECE_PAGES;
        self.cursor = end.min(range.end.0);
        Some(PageRange {
            start: PageNumber(start),
            end: PageNumber(self.cursor),
        })
    }

    /// Looks at each region of `piece`. The number of pages seen.
    fn look(&mut self, memory: &impl Memory, piece: PageRange, step: &mut Step) -> u64 {
        // Of the pages that are there, another each time.
        let salt = step.now_ns;
        let (mut seen, mut there, mut current) = (0, 0, u64::MAX);
        let mut any: Option<(u64, PageNumber)> = None;
        let mut end_region = |region: u64, there: u64, any: Option<(u64, PageNumber)>| {
            if let Some((_, any)) = any {
                self.judge(memory, region, there, any, step);
            }
        };
        memory.each_in(piece, &mut |page, whereabouts| {
            seen += 1;
            let region = page.0 / REGION_PAGES;
            if region != current {
                end_region(current, there, any.take());
                (current, there) = (region, 0);
            }
            if whereabouts == Whereabouts::There {
                there += 1;
                let drawn = (hash(PageNumber(page.0 ^ salt)), page);
                any = Some(any.map_or(drawn, |best| best.min(drawn)));
            }
        });
        end_region(current, there, any);
        seen
    }

    /// Looks at one region, of which so many pages are there, `any` among them.
    fn judge(
        &mut self,
        memory: &impl Memory,
        number: u64,
        there: u64,
        any: PageNumber,
        step: &mut Step,
    ) {
        let (now_ns, round) = (step.now_ns, self.round);
        let region = self.regions.entry(number).or_insert(Region {
            tried: None,
            at_ns: now_ns,
            alone_ns: ALONE_NS,
            round,
        });
        region.round = round;
        match region.tried {
            Some(page) if memory.whereabouts(page) != Whereabouts::Out => {
                region.tried = None;
                region.at_ns = now_ns + region.alone_ns;
                region.alone_ns = (2 * region.alone_ns).min(ALONE_MAX_NS);
            }
            Some(_) if now_ns.saturating_sub(region.at_ns) >= COLD_NS => {
                step.cold.push((region.at_ns, number, there));
                region.alone_ns = ALONE_NS;
            }
            None if now_ns >= region.at_ns && step.left.tried > 0 => {
                step.left.tried -= 1;
                (region.tried, region.at_ns) = (Some(any), now_ns);
                self.going.push(any);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    const STEP_NS: u64 = 100_000_000;
    const ALL: Allowance = Allowance {
        taken: 1 << 20,
        tried: 1 << 20,
    };

    /// Pages of a program. What is in use comes back in the step in which it was taken.
    struct Pages(RefCell<BTreeMap<u64, Whereabouts>>);

    impl Memory for Pages {
        fn each_in(&self, range: PageRange, each: &mut dyn FnMut(PageNumber, Whereabouts)) {
            let pages = self.0.borrow().clone();
            for (page, whereabouts) in pages.range(range.start.0..range.end.0) {
                each(PageNumber(*page), *whereabouts);
            }
        }

        fn whereabouts(&self, page: PageNumber) -> Whereabouts {
            self.0.borrow()[&page.0]
        }
    }

    /// A program with so many pages from page 10 on.
    fn program(pages: u64) -> (Pages, Vec<PageRange>) {
        let range = PageRange::of(PageNumber(10), pages);
        let all = range.iter().map(|page| (page.0, Whereabouts::There));
        (Pages(RefCell::new(all.collect())), vec![range])
    }

    /// Runs so many steps; the pages that were taken, those in use as often as they were.
    fn run(
        cold: &mut ColdMemory,
        (pages, ranges): &(Pages, Vec<PageRange>),
        steps: std::ops::Range<u64>,
        allowance: Allowance,
        is_used: impl Fn(u64) -> bool,
    ) -> Vec<u64> {
        let (mut taken, mut going) = (Vec::new(), Vec::new());
        for step in steps {
            cold.step(pages, ranges, step * STEP_NS, allowance);
            while cold.has_going() {
                cold.take(&mut going, 7);
                taken.extend(going.iter().map(|page| page.0));
                let out = going.iter().filter(|page| !is_used(page.0));
                let mut pages = pages.0.borrow_mut();
                out.for_each(|page| {
                    pages.insert(page.0, Whereabouts::Out);
                });
            }
        }
        taken
    }

    #[test]
    fn what_is_not_used_goes_as_a_whole_and_of_what_is_used_one_page_now_and_then() {
        let program = program(64 * REGION_PAGES);
        let is_used = |page: u64| page < 32 * REGION_PAGES;
        let steps = 0..30_000_000_000 / STEP_NS;
        let taken = run(&mut ColdMemory::default(), &program, steps, ALL, is_used);
        let unused: Vec<u64> = taken
            .iter()
            .copied()
            .filter(|page| !is_used(*page))
            .collect();
        assert_eq!(unused.len() as u64, 32 * REGION_PAGES + 10);
        // After 1, 2, 4 and 8 seconds, and at the beginning; 16 seconds are not over.
        let tries = taken.len() - unused.len();
        assert_eq!(tries, 32 * 5);
    }

    #[test]
    fn no_more_goes_than_is_allowed_and_what_has_been_out_longest_goes_first() {
        let program = program(64 * REGION_PAGES);
        let mut cold = ColdMemory::default();
        let few = |taken, tried| Allowance { taken, tried };
        let first = run(&mut cold, &program, 0..1, few(0, 3), |_| false);
        assert_eq!(first.len(), 3);
        assert_eq!(
            run(&mut cold, &program, 1..2, few(0, 100), |_| false).len(),
            62
        );
        let later = run(
            &mut cold,
            &program,
            20..21,
            few(2 * REGION_PAGES, 0),
            |_| false,
        );
        let regions = |pages: &[u64]| -> std::collections::BTreeSet<u64> {
            pages.iter().map(|page| page / REGION_PAGES).collect()
        };
        assert!(regions(&later).is_subset(&regions(&first)), "{later:?}");
        assert!(later.len() as u64 <= 2 * REGION_PAGES && later.len() > 60);
    }

    #[test]
    fn memory_that_is_gone_is_forgotten_and_large_memory_is_looked_at_in_parts() {
        let program = program(2 * SEEN_MAX);
        let mut cold = ColdMemory::default();
        run(&mut cold, &program, 0..1, ALL, |_| true);
        let part = cold.regions.len() as u64;
        assert!(part > 0 && part < 2 * SEEN_MAX / REGION_PAGES, "{part}");
        run(&mut cold, &program, 1..4, ALL, |_| true);
        assert_eq!(cold.regions.len() as u64, 2 * SEEN_MAX / REGION_PAGES + 1);
        let fewer = (program.0, vec![PageRange::of(PageNumber(10), 54)]);
        run(&mut cold, &fewer, 4..8, ALL, |_| true);
        assert_eq!(cold.regions.len(), 1);
    }
}
