//! Candidates for the pager's policy: S3-FIFO told of misses alone, as in the pager, with two
//! things more.
//!
//! - *A small queue that adapts.* It has nearly all pages at first, so that all is FIFO. Counted
//!   is, for each queue, which part of the pages it gives up comes back so soon that a queue of the
//!   whole budget would still have had them; the queue that loses more so grows. While the small
//!   queue has more than nine in ten pages, one in sixteen ghosts enters the main queue, so that
//!   something is known of that, and the others go where all go in FIFO.
//! - *An area* of pages that are unmapped and still in memory. A page that leaves a queue goes
//!   there, and leaves memory at the area's other end. If it is accessed before, that is a *soft
//!   fault*: cheaper than a fetch, and a sign that the page is in use, so it goes round its queue
//!   some times more before it is unmapped again. The area opens late.
use std::collections::VecDeque;

use super::cache::Cache;
use super::trace::Trace;

/// Epochs in a budget's worth of evictions; for so long an evicted page is remembered.
const WINDOW: u64 = 16;
/// Epochs that can be told apart.
const EPOCHS: u64 = 255;
/// Pages given up by the main queue after which the account is halved.
const ACCOUNT: u64 = 256;
/// Of the ghosts that ask for a place in a main queue that holds the right pages, one in so many
/// gets it.
const LOT: u64 = 16;
/// Most and least of a small queue that adapts, as shares of the pages; above which share it counts
/// as FIFO.
const MOST: f64 = 0.95;
const LEAST: f64 = 0.05;
const NEARLY_ALL: f64 = 0.9;
/// Pages it grows or shrinks by with each ghost that comes back.
const STEP: f64 = 4.0;
/// Evictions after which the queues' losses are halved.
const MEMORY: f64 = 1024.0;

/// The small queue's share of the pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Small {
    /// One in so many.
    OneIn(usize),
    /// All, as if there were no other queue and no ghosts.
    All,
    /// See the module's text.
    Adapts,
}

/// A candidate's constants.
#[derive(Debug, Clone, Copy)]
pub struct Constants {
    /// The small queue.
    pub small: Small,
    /// The area's share of the pages, in percent.
    pub area: usize,
    /// Epochs after which the area opens.
    pub opens: u64,
    /// Rounds that a page found in the area stays beyond the first.
    pub laps: u8,
}

/// What a queue gave up, and what came back of that too soon.
#[derive(Debug, Clone, Copy, Default)]
struct Losses {
    given_up: f64,
    missed: f64,
}

impl Losses {
    fn rate(self) -> f64 {
        self.missed / (self.given_up + 4.0)
    }

    fn halve(&mut self) {
        self.given_up /= 2.0;
        self.missed /= 2.0;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Nowhere,
    Queue,
    /// The entry of the area with this number; an older entry is void.
    Area(u64),
}

#[derive(Debug, Clone, Copy)]
struct Page {
    at: At,
    main: bool,
    laps: u8,
    /// The epoch of its last eviction.
    evicted: Option<u64>,
}

/// The main queue's account, as in the pager.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    given_up: u64,
    came_back: u64,
    asked: u64,
}

impl Account {
    fn give_up(&mut self) {
        self.given_up += 1;
        if self.given_up > ACCOUNT {
            self.given_up = ACCOUNT / 2;
            self.came_back /= 2;
        }
    }

    fn holds_the_right_pages(&self) -> bool {
        self.given_up >= ACCOUNT / 8 && self.came_back * 3 > self.given_up * 2
    }

    fn draw(&mut self) -> bool {
        self.asked += 1;
        (self.asked - 1).is_multiple_of(LOT)
    }
}

/// See the module's text.
pub struct Candidate {
    constants: Constants,
    pages: Vec<Page>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    area: VecDeque<(u32, u64)>,
    in_area: usize,
    entries: u64,
    budget: usize,
    evictions: u64,
    epoch: u64,
    account: Account,
    /// The small queue's share and the losses of both queues, if it adapts.
    share: f64,
    losses: [Losses; 2],
    soft_faults: u64,
}

impl Candidate {
    /// Empty.
    pub fn new(trace: &Trace, budget: usize, constants: Constants) -> Candidate {
        let stranger = Page {
            at: At::Nowhere,
            main: false,
            laps: 0,
            evicted: None,
        };
        Candidate {
            constants,
            pages: vec![stranger; trace.pages],
            small: VecDeque::new(),
            main: VecDeque::new(),
            area: VecDeque::new(),
            in_area: 0,
            entries: 0,
            budget,
            evictions: 0,
            epoch: 0,
            account: Account::default(),
            share: MOST,
            losses: [Losses::default(); 2],
            soft_faults: 0,
        }
    }

    fn area_pages(&self) -> usize {
        match self.epoch >= self.constants.opens {
            true => self.budget * self.constants.area / 100,
            false => 0,
        }
    }

    fn small_pages(&self) -> usize {
        match self.constants.small {
            Small::OneIn(parts) => self.budget / parts,
            Small::All => self.budget,
            Small::Adapts => (self.share * (self.budget - self.area_pages()) as f64) as usize,
        }
    }

    /// A page leaves memory.
    fn evict(&mut self, page: u32) {
        self.evictions += 1;
        if self.evictions >= (self.budget as u64 / WINDOW).max(1) {
            self.evictions = 0;
            self.epoch += 1;
        }
        let page = &mut self.pages[page as usize];
        page.at = At::Nowhere;
        page.evicted = Some(self.epoch);
        self.losses[usize::from(page.main)].given_up += 1.0;
        if self.losses[0].given_up + self.losses[1].given_up > MEMORY {
            self.losses.iter_mut().for_each(Losses::halve);
        }
        if page.main {
            self.account.give_up();
        }
    }

    /// A page leaves a queue, for the area if there is one.
    fn unmap(&mut self) {
        let (small, area) = (self.small_pages(), self.area_pages());
        loop {
            let from_small = self.main.is_empty() || self.small.len() > small;
            let queue = match from_small && !self.small.is_empty() {
                true => &mut self.small,
                false => &mut self.main,
            };
            let Some(page) = queue.pop_front() else {
                return;
            };
            let known = &mut self.pages[page as usize];
            if known.laps > 0 {
                known.laps -= 1;
                queue.push_back(page);
            } else if area == 0 {
                return self.evict(page);
            } else {
                self.entries += 1;
                known.at = At::Area(self.entries);
                self.area.push_back((page, self.entries));
                self.in_area += 1;
                return;
            }
        }
    }

    fn evict_from_area(&mut self) {
        while let Some((page, entry)) = self.area.pop_front() {
            if self.pages[page as usize].at == At::Area(entry) {
                self.in_area -= 1;
                return self.evict(page);
            }
        }
    }

    fn make_room(&mut self) {
        if self.small.len() + self.main.len() + self.in_area < self.budget {
            return;
        }
        if self.in_area == 0 {
            self.unmap();
        }
        self.evict_from_area();
    }

    /// A page came back after so many epochs: the queue that would still have had it grows.
    fn adapt(&mut self, from_main: bool, age: u64) {
        let budget = self.budget as f64;
        let queue = match from_main {
            true => &self.main,
            false => &self.small,
        };
        if age as f64 * budget / WINDOW as f64 <= budget - queue.len() as f64 {
            self.losses[usize::from(from_main)].missed += 1.0;
        }
        let [small, main] = self.losses.map(Losses::rate);
        let step = if small > main { STEP } else { -STEP };
        self.share = (self.share + step / budget).clamp(LEAST, MOST);
    }

    /// Whether a page fetched now enters the main queue, and its rounds beyond the first.
    fn admit(&mut self, page: u32) -> (bool, u8) {
        let known = self.pages[page as usize];
        let age = known.evicted.map(|epoch| (self.epoch - epoch) % EPOCHS);
        let Some(age) = age.filter(|age| *age <= WINDOW) else {
            return (false, 0);
        };
        self.account.came_back += u64::from(known.main);
        match self.constants.small {
            Small::All => return (false, 0),
            Small::OneIn(_) => (),
            Small::Adapts => self.adapt(known.main, age),
        }
        if self.constants.small == Small::Adapts && self.share > NEARLY_ALL {
            return (self.account.draw(), 0);
        }
        if self.account.holds_the_right_pages() && !self.account.draw() {
            return (false, 0);
        }
        (true, u8::from(age == 0))
    }
}

impl Cache for Candidate {
    fn access(&mut self, page: u32) -> bool {
        let at = self.pages[page as usize].at;
        let (main, laps) = match at {
            At::Queue => return true,
            At::Area(_) => {
                self.soft_faults += 1;
                self.in_area -= 1;
                (self.pages[page as usize].main, self.constants.laps)
            }
            At::Nowhere => {
                self.make_room();
                self.admit(page)
            }
        };
        let known = &mut self.pages[page as usize];
        (known.at, known.main, known.laps) = (At::Queue, main, laps);
        match main {
            true => self.main.push_back(page),
            false => self.small.push_back(page),
        }
        let mapped = self.budget - self.area_pages();
        while self.small.len() + self.main.len() > mapped {
            self.unmap();
        }
        at != At::Nowhere
    }

    fn soft_faults(&self) -> u64 {
        self.soft_faults
    }
}
