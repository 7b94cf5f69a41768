//! Least recently used.
use std::collections::BTreeMap;

use super::Cache;
use super::trace::Trace;

/// See the module's text.
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
