//! Belady's MIN: the page goes whose next use lies furthest ahead (1966). It needs the future;
//! nothing misses less.
use std::collections::BTreeSet;

use super::Cache;
use super::trace::Trace;

/// See the module's text.
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
