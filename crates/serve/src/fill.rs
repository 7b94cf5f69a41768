//! What comes next when nobody waits: the neighbours of pages that were waited for, the recorded
//! working set, the rest of the image. This decides; it installs nothing.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};

use crate::memory::{Area, Memory};
use crate::plan::{Plan, Rate};

/// Pages installed before the client is looked at again.
const STEP_PAGES: u64 = 64;
/// Blocks whose neighbours are still to come; the oldest are forgotten.
const BLOCKS_MAX: usize = 64;

/// Why a page came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A neighbour was waited for.
    Block,
    /// It is of the recorded working set.
    WorkingSet,
    /// Everything comes.
    Background,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Install these pages.
    Pages(Area, Why),
    /// Nothing before this moment.
    At(Instant),
    /// All that was to come has been dealt with.
    Done,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Fill {
    /// Pages that come before all others, and why.
    blocks: VecDeque<(PageRange, Why)>,
    /// Of the working set, what has been dealt with.
    replayed: usize,
    /// Where the background is.
    cursor: PageNumber,
    /// When the rate allows more.
    allowed: Instant,
}

impl Fill {
    /// Nothing has come yet.
    pub fn new(now: Instant) -> Fill {
        Fill {
            blocks: VecDeque::new(),
            replayed: 0,
            cursor: PageNumber(0),
            allowed: now,
        }
    }

    /// Someone waited for `page`: its block is to come.
    pub fn note_fault(&mut self, page: PageNumber, plan: &Plan) {
        let pages = plan.block_pages;
        if pages <= 1 {
            return;
        }
        let block = PageRange::of(PageNumber(page.0 / pages * pages), pages);
        let block = (block, Why::Block);
        if self.blocks.back() == Some(&block) {
            return;
        }
        if self.blocks.len() == BLOCKS_MAX
            && let Some((forgotten, Why::Background)) = self.blocks.pop_front()
        {
            self.cursor = self.cursor.min(forgotten.start);
        }
        self.blocks.push_back(block);
    }

    /// Memory has moved to `to`: it may have been passed by at its old place only.
    pub fn note_move(&mut self, to: PageNumber) {
        self.cursor = self.cursor.min(to);
    }

    /// What to do now. What is given out is not given out again, but by [`Fill::again`].
    pub fn next(&mut self, memory: &Memory, plan: &Plan, now: Instant) -> Next {
        loop {
            while let Some((block, why)) = self.blocks.front_mut() {
                if let Some(area) = memory.absent_in(*block, STEP_PAGES) {
                    block.start = area.range.end.min(block.end);
                    return Next::Pages(area, *why);
                }
                self.blocks.pop_front();
            }
            match self.next_of_working_set(memory, plan) {
                Some(range) => self.blocks.push_back((range, Why::WorkingSet)),
                None => return self.next_of_rest(memory, plan, now),
            }
        }
    }

    /// As many pages of the working set as follow each other.
    fn next_of_working_set(&mut self, memory: &Memory, plan: &Plan) -> Option<PageRange> {
        let pages = plan.replay.as_ref()?.pages();
        while let Some(first) = pages.get(self.replayed) {
            self.replayed += 1;
            let Some(unit) = memory.unit_with(*first) else {
                continue;
            };
            let mut end = *first + 1;
            while end - first < STEP_PAGES && pages.get(self.replayed) == Some(&end) {
                self.replayed += 1;
                end += 1;
            }
            let count = unit.unit.max(end - first);
            return Some(PageRange::of(unit.range.start, count));
        }
        None
    }

    fn next_of_rest(&mut self, memory: &Memory, plan: &Plan, now: Instant) -> Next {
        if plan.rate == Rate::Never {
            return Next::Done;
        }
        let all = PageRange {
            start: self.cursor,
            end: PageNumber(u64::MAX),
        };
        let Some(area) = memory.absent_in(all, STEP_PAGES) else {
            return Next::Done;
        };
        if let Rate::BytesPerSecond(rate) = plan.rate {
            if now < self.allowed {
                return Next::At(self.allowed);
            }
            let bytes = area.range.pages() * PAGE_SIZE as u64;
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            self.allowed = now + takes.min(Duration::from_secs(86_400));
        }
        self.cursor = area.range.end;
        Next::Pages(area, Why::Background)
    }

    /// What was given out of the background is to be given out again.
    pub fn bring_back(&mut self, area: Area) {
        self.cursor = self.cursor.min(area.range.start);
    }

    /// What was given out could not be installed yet.
    pub fn again(&mut self, area: Area, why: Why) {
        self.blocks.push_front((area.range, why));
    }

    /// What was given out could not be had as a whole: its halves may be.
    pub fn halves_again(&mut self, area: Area, why: Why) {
        let half = (area.range.pages() / area.unit / 2).max(1) * area.unit;
        let first = PageRange::of(area.range.start, half);
        self.blocks.push_front((area.range.after(half), why));
        self.blocks.push_front((first, why));
    }

    /// Whether the background is through, as far as it is to come.
    pub fn is_through(&self, memory: &Memory, plan: &Plan) -> bool {
        plan.rate != Rate::Never && !memory.has_absent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Replay;
    use pagetide_track::{SnapshotId, WorkingSet};
    use std::sync::Arc;

    fn memory() -> Memory {
        Memory::new(vec![Area {
            range: PageRange::of(PageNumber(1000), 300),
            first: 0,
            unit: 1,
        }])
    }

    fn all(
        fill: &mut Fill,
        memory: &mut Memory,
        plan: &Plan,
        now: Instant,
    ) -> Vec<(u64, u64, Why)> {
        let mut given = Vec::new();
        while let Next::Pages(area, why) = fill.next(memory, plan, now) {
            memory.note_placed(area.first, area.range.pages());
            given.push((area.first, area.range.pages(), why));
        }
        given
    }

    #[test]
    fn neighbours_come_first_then_the_working_set_then_the_rest() {
        let (now, mut memory) = (Instant::now(), memory());
        let set = WorkingSet {
            snapshot: SnapshotId::NONE,
            pages: vec![200, 201, 202, 9, 5000, 40],
        };
        let plan = Plan {
            replay: Some(Arc::new(Replay::new(set, 300))),
            rate: Rate::Unlimited,
            ..Plan::default()
        };
        let mut fill = Fill::new(now);
        memory.note_placed(10, 1);
        fill.note_fault(PageNumber(1010), &plan);
        let given = all(&mut fill, &mut memory, &plan, now);
        // Page 1010 is in the block that begins with 1008, which is page 8.
        let expected = [
            (8, 2, Why::Block),
            (11, 13, Why::Block),
            (200, 3, Why::WorkingSet),
            (40, 1, Why::WorkingSet),
            (0, 8, Why::Background),
            (24, 16, Why::Background),
            (41, 64, Why::Background),
        ];
        assert_eq!(given[..7], expected);
        let pages: u64 = given.iter().map(|(_, pages, _)| pages).sum();
        assert_eq!(pages, 299);
        assert!(fill.is_through(&memory, &plan));
    }

    #[test]
    fn what_is_brought_back_or_forgotten_comes_again() {
        let (now, mut memory) = (Instant::now(), memory());
        let plan = Plan {
            rate: Rate::Unlimited,
            ..Plan::default()
        };
        let mut fill = Fill::new(now);
        let Next::Pages(first, Why::Background) = fill.next(&memory, &plan, now) else {
            panic!("nothing came");
        };
        let Next::Pages(second, Why::Background) = fill.next(&memory, &plan, now) else {
            panic!("no more came");
        };
        memory.note_placed(second.first, second.range.pages());
        fill.bring_back(first);
        let next = Next::Pages(first, Why::Background);
        assert_eq!(fill.next(&memory, &plan, now), next);
        // It is to be tried again, and so many wait meanwhile that it is forgotten.
        fill.again(first, Why::Background);
        for block in 0..BLOCKS_MAX as u64 {
            fill.note_fault(PageNumber(10_000 + block * plan.block_pages), &plan);
        }
        let given = all(&mut fill, &mut memory, &plan, now);
        assert_eq!(given.first(), Some(&(0, 64, Why::Background)));
        assert!(fill.is_through(&memory, &plan));
    }

    #[test]
    fn the_rate_is_kept_and_what_failed_comes_again() {
        let (now, memory) = (Instant::now(), memory());
        let plan = Plan {
            rate: Rate::BytesPerSecond(64 * 4096),
            ..Plan::default()
        };
        let mut fill = Fill::new(now);
        let Next::Pages(first, Why::Background) = fill.next(&memory, &plan, now) else {
            panic!("nothing came");
        };
        let later = now + Duration::from_secs(1);
        assert_eq!(fill.next(&memory, &plan, now), Next::At(later));
        fill.again(first, Why::Background);
        assert_eq!(
            fill.next(&memory, &plan, later),
            Next::Pages(first, Why::Background)
        );
        assert!(!fill.is_through(&memory, &plan));
        let never = Plan::default();
        assert_eq!(fill.next(&memory, &never, later), Next::Done);
    }
}
