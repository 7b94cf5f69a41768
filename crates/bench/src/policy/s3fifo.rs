//! S3-FIFO as published (Yang et al., SOSP 2023), hits counted: a small queue of a tenth, a main
//! queue, and ghosts as many as the main queue holds.
use std::collections::VecDeque;

use super::cache::Cache;
use super::trace::Trace;

#[derive(Clone, Copy, PartialEq)]
enum At {
    Nowhere,
    Small,
    Main,
    /// Remembered, by the number of its eviction.
    Ghost(u64),
}

/// See the module's text.
pub struct S3Fifo {
    at: Vec<At>,
    hits: Vec<u8>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    small_pages: usize,
    pages: usize,
    evictions: u64,
}

impl S3Fifo {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize) -> S3Fifo {
        S3Fifo {
            at: vec![At::Nowhere; trace.pages],
            hits: vec![0; trace.pages],
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_pages: (pages / 10).max(1),
            pages,
            evictions: 0,
        }
    }

    fn evict(&mut self) {
        while self.small.len() + self.main.len() >= self.pages {
            if self.small.len() >= self.small_pages || self.main.is_empty() {
                self.evict_from_small();
            } else {
                self.evict_from_main();
            }
        }
    }

    fn evict_from_small(&mut self) {
        let Some(page) = self.small.pop_front() else {
            return;
        };
        if self.hits[page as usize] > 1 {
            self.hits[page as usize] = 0;
            self.at[page as usize] = At::Main;
            self.main.push_back(page);
        } else {
            self.evictions += 1;
            self.at[page as usize] = At::Ghost(self.evictions);
        }
    }

    fn evict_from_main(&mut self) {
        let Some(page) = self.main.pop_front() else {
            return;
        };
        let hits = &mut self.hits[page as usize];
        if *hits > 0 {
            *hits -= 1;
            self.main.push_back(page);
        } else {
            self.at[page as usize] = At::Nowhere;
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        let at = self.at[page as usize];
        if matches!(at, At::Small | At::Main) {
            let hits = &mut self.hits[page as usize];
            *hits = (*hits + 1).min(3);
            return true;
        }
        self.evict();
        self.hits[page as usize] = 0;
        let remembered = (self.pages - self.small_pages) as u64;
        let is_ghost = matches!(at, At::Ghost(number) if self.evictions - number < remembered);
        if is_ghost {
            self.at[page as usize] = At::Main;
            self.main.push_back(page);
        } else {
            self.at[page as usize] = At::Small;
            self.small.push_back(page);
        }
        false
    }
}
