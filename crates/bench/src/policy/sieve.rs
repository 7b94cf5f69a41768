//! SIEVE: a hand that moves from the oldest page to the newest and evicts the first that was not
//! visited; visited ones stay where they are (Zhang et al., NSDI 2024).
use super::cache::Cache;
use super::trace::Trace;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    present: bool,
    visited: bool,
}

/// See the module's text.
pub struct Sieve {
    nodes: Vec<Node>,
    newest: u32,
    oldest: u32,
    hand: u32,
    count: usize,
    pages: usize,
}

impl Sieve {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize) -> Sieve {
        let absent = Node {
            newer: NONE,
            older: NONE,
            present: false,
            visited: false,
        };
        Sieve {
            nodes: vec![absent; trace.pages],
            newest: NONE,
            oldest: NONE,
            hand: NONE,
            count: 0,
            pages,
        }
    }

    fn evict(&mut self) {
        let mut hand = if self.hand == NONE {
            self.oldest
        } else {
            self.hand
        };
        while self.nodes[hand as usize].visited {
            self.nodes[hand as usize].visited = false;
            hand = match self.nodes[hand as usize].newer {
                NONE => self.oldest,
                newer => newer,
            };
        }
        let Node { newer, older, .. } = self.nodes[hand as usize];
        self.hand = newer;
        match newer {
            NONE => self.newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
        self.nodes[hand as usize].present = false;
        self.count -= 1;
    }
}

impl Cache for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.nodes[page as usize].present {
            self.nodes[page as usize].visited = true;
            return true;
        }
        if self.count == self.pages {
            self.evict();
        }
        self.nodes[page as usize] = Node {
            newer: NONE,
            older: self.newest,
            present: true,
            visited: false,
        };
        match self.newest {
            NONE => self.oldest = page,
            newest => self.nodes[newest as usize].newer = page,
        }
        self.newest = page;
        self.count += 1;
        false
    }
}
