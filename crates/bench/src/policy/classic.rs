//! The classic policies: FIFO, LRU, CLOCK, and MIN, which needs the future.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::cache::Cache;
use super::trace::Trace;

/// First in, first out.
pub struct Fifo {
    present: Vec<bool>,
    order: VecDeque<u32>,
    pages: usize,
}

impl Fifo {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize) -> Fifo {
        Fifo {
            present: vec![false; trace.pages],
            order: VecDeque::new(),
            pages,
        }
    }
}

impl Cache for Fifo {
    fn access(&mut self, page: u32) -> bool {
        if self.present[page as usize] {
            return true;
        }
        if self.order.len() == self.pages
            && let Some(victim) = self.order.pop_front()
        {
            self.present[victim as usize] = false;
        }
        self.order.push_back(page);
        self.present[page as usize] = true;
        false
    }
}

/// Least recently used.
pub struct Lru {
    /// When each page was accessed last; 0 for absent.
    last: Vec<u64>,
    by_age: BTreeMap<u64, u32>,
    now: u64,
    pages: usize,
}

impl Lru {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize) -> Lru {
        Lru {
            last: vec![0; trace.pages],
            by_age: BTreeMap::new(),
            now: 0,
            pages,
        }
    }
}

impl Cache for Lru {
    fn access(&mut self, page: u32) -> bool {
        self.now += 1;
        let last = std::mem::replace(&mut self.last[page as usize], self.now);
        let hit = last != 0;
        if hit {
            self.by_age.remove(&last);
        } else if self.by_age.len() == self.pages
            && let Some((_, victim)) = self.by_age.pop_first()
        {
            self.last[victim as usize] = 0;
        }
        self.by_age.insert(self.now, page);
        hit
    }
}

/// FIFO in which a page touched since the hand passed gets another round (Corbató, 1968).
pub struct Clock {
    /// None for absent, else whether it was touched.
    touched: Vec<Option<bool>>,
    ring: VecDeque<u32>,
    pages: usize,
}

impl Clock {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize) -> Clock {
        Clock {
            touched: vec![None; trace.pages],
            ring: VecDeque::new(),
            pages,
        }
    }
}

impl Cache for Clock {
    fn access(&mut self, page: u32) -> bool {
        if let Some(touched) = &mut self.touched[page as usize] {
            *touched = true;
            return true;
        }
        while self.ring.len() == self.pages
            && let Some(candidate) = self.ring.pop_front()
        {
            let touched = &mut self.touched[candidate as usize];
            if *touched == Some(true) {
                *touched = Some(false);
                self.ring.push_back(candidate);
            } else {
                *touched = None;
            }
        }
        self.ring.push_back(page);
        self.touched[page as usize] = Some(false);
        false
    }
}

/// Belady's MIN: the page goes whose next use lies furthest ahead (1966). Nothing misses less.
pub struct Min {
    /// For each access of the trace, when its page is accessed again.
    next_use: Vec<u64>,
    /// When each present page is used next; 0 for absent.
    next: Vec<u64>,
    by_next: BTreeSet<(u64, u32)>,
    now: usize,
    pages: usize,
}

impl Min {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize) -> Min {
        let mut next_use = vec![0; trace.accesses.len()];
        // A page that is not used again is used after everything.
        let mut upcoming = vec![u64::MAX; trace.pages];
        for (now, page) in trace.accesses.iter().enumerate().rev() {
            next_use[now] = upcoming[*page as usize];
            upcoming[*page as usize] = now as u64 + 1;
        }
        Min {
            next_use,
            next: vec![0; trace.pages],
            by_next: BTreeSet::new(),
            now: 0,
            pages,
        }
    }
}

impl Cache for Min {
    fn access(&mut self, page: u32) -> bool {
        let next = self.next_use[self.now];
        self.now += 1;
        let was = std::mem::replace(&mut self.next[page as usize], next);
        let hit = was != 0;
        if hit {
            self.by_next.remove(&(was, page));
        } else if self.by_next.len() == self.pages
            && let Some((_, victim)) = self.by_next.pop_last()
        {
            self.next[victim as usize] = 0;
        }
        self.by_next.insert((next, page));
        hit
    }
}
