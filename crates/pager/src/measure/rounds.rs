//! Which pages are looked at when: all of a sample once a round, in an order and at a pace that do
//! not depend on what the program does.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::PageNumber;

use super::probes::{ONE_IN_MIN, Probes, SAMPLE_MAX, Whereabouts, hash, is_sampled};
use crate::protocol::measured::{MeasuredCells, OpenLooks};

/// How often looks are begun.
pub const TICK_NS: u64 = 10_000_000;
/// The most looks begun at once: each may take a page out, and cost the program a fault.
pub const LOOKS_MAX: usize = 20;
/// The least time of a round: a smaller sample is not looked at more often.
const ROUND_NS: u64 = 100_000_000;
/// The sample grows by a page in so long: a round then takes about a quarter of the time up to
/// now, until the sample has its full size, and what a short program has just begun to use is soon
/// looked at.
const NS_A_PAGE: u64 = 2_000_000;
/// It begins with so many.
const SAMPLE_MIN: usize = 256;
/// Length of the first parts of the time.
const PART_NS: u64 = 125_000_000;
/// In each part the pages in use are counted so often at least.
const COUNTS_A_PART: u64 = 4;
/// Ticks between two publications of what was seen.
const PUBLISH_TICKS: u64 = 10;

/// The evictor's part in measuring.
#[derive(Default)]
pub struct Rounds {
    sample: Vec<PageNumber>,
    next: usize,
    began_ns: u64,
    began_cpu_ns: u64,
    last_tick_ns: u64,
    last_count_ns: u64,
    ticks: u64,
    round: u64,
    is_on: bool,
    open: OpenLooks,
}

/// The memory that is measured.
pub trait Memory {
    /// Calls `each` with every page that the program uses.
    fn each_used(&self, each: &mut dyn FnMut(PageNumber));
    /// Where a page is; none while that changes.
    fn whereabouts(&self, page: PageNumber) -> Option<Whereabouts>;
}

impl Rounds {
    /// What is due at `now_ns`, when the program has used so much processor time: begins looks, and
    /// gives the pages that are to be taken out to `take`, at most [`LOOKS_MAX`].
    pub fn tick(
        &mut self,
        probes: &Probes,
        cells: &MeasuredCells,
        memory: &impl Memory,
        now_ns: u64,
        program_cpu_ns: u64,
        mut take: impl FnMut(PageNumber),
    ) {
        if !self.is_on {
            *self = Rounds::default();
            self.is_on = true;
            self.began_cpu_ns = program_cpu_ns;
            probes.clear();
            probes.set_one_in(ONE_IN_MIN);
            cells.begin(now_ns, PART_NS);
        }
        if !self.is_due(now_ns) {
            return;
        }
        self.last_tick_ns = now_ns;
        self.ticks += 1;
        cells.make_room(now_ns);
        let used_ns = program_cpu_ns.saturating_sub(self.began_cpu_ns);
        cells.program_cpu_ns.store(used_ns, Relaxed);
        if self.next >= self.sample.len() && now_ns - self.began_ns >= ROUND_NS {
            self.begin_round(probes, cells, memory, now_ns);
        }
        if now_ns - self.last_count_ns >= cells.part_ns.load(Relaxed) / COUNTS_A_PART {
            let mut pages = 0;
            memory.each_used(&mut |_| pages += 1);
            self.note_pages(cells, now_ns, pages);
        }
        for _ in 0..self.due(now_ns) {
            let page = self.sample[self.next];
            self.next += 1;
            if let Some(whereabouts) = memory.whereabouts(page)
                && probes.look(cells, page, whereabouts, now_ns)
            {
                cells.takes.fetch_add(1, Relaxed);
                take(page);
            }
        }
        if self.ticks.is_multiple_of(PUBLISH_TICKS) {
            probes.publish(cells, &mut self.open, now_ns);
        }
    }

    /// Whether measuring goes on, as far as this knows.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether it is time for the next looks.
    pub fn is_due(&self, now_ns: u64) -> bool {
        !self.is_on || now_ns - self.last_tick_ns >= TICK_NS
    }

    /// Measuring is over: what was seen is counted.
    pub fn end(&mut self, probes: &Probes, cells: &MeasuredCells, now_ns: u64) {
        if self.is_on {
            cells.make_room(now_ns);
            probes.publish(cells, &mut self.open, now_ns);
            cells.on.store(0, Relaxed);
            self.is_on = false;
        }
    }

    /// How many looks are to begin now, so that they lie evenly in the round.
    fn due(&self, now_ns: u64) -> usize {
        let all = self.sample.len();
        let at_least = (all.div_ceil(LOOKS_MAX) as u64 * TICK_NS).max(ROUND_NS);
        let share = (now_ns - self.began_ns + TICK_NS) as f64 / at_least as f64;
        let by_now = ((all as f64 * share) as usize).min(all);
        by_now.saturating_sub(self.next).min(LOOKS_MAX)
    }

    /// Finds the sample anew.
    fn begin_round(
        &mut self,
        probes: &Probes,
        cells: &MeasuredCells,
        memory: &impl Memory,
        now_ns: u64,
    ) {
        let since_ns = now_ns - cells.began_ns.load(Relaxed);
        let most = ((since_ns / NS_A_PAGE) as usize).clamp(SAMPLE_MIN, SAMPLE_MAX);
        let was = probes.one_in();
        // With half of one and a half of them it is not too large again at once.
        let mut one_in = match self.sample.len() < most / 3 {
            true => (was / 2).max(ONE_IN_MIN),
            false => was,
        };
        let sample = &mut self.sample;
        let mut pages = 0;
        sample.clear();
        memory.each_used(&mut |page| {
            pages += 1;
            if is_sampled(page, one_in) {
                sample.push(page);
            }
            if sample.len() > most {
                one_in *= 2;
                sample.retain(|page| is_sampled(*page, one_in));
            }
        });
        probes.set_one_in(one_in);
        self.round += 1;
        // Another order each round, so that no rhythm of the program's meets one of ours.
        let salt = hash(PageNumber(self.round));
        sample.sort_unstable_by_key(|page| hash(*page) ^ salt);
        probes.retain(cells, now_ns, |page| {
            let found = memory.whereabouts(page);
            found.unwrap_or(Whereabouts::There)
        });
        self.note_pages(cells, now_ns, pages);
        cells.one_in.store(one_in, Relaxed);
        (self.next, self.began_ns) = (0, now_ns);
    }

    fn note_pages(&mut self, cells: &MeasuredCells, now_ns: u64, pages: u64) {
        self.last_count_ns = now_ns;
        cells.note_pages(now_ns, pages);
    }
}
