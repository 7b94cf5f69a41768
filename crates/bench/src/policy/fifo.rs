//! First in, first out.
use std::collections::VecDeque;

use super::Cache;
use super::trace::Trace;

/// See the module's text.
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
