//! CLOCK: FIFO in which a page touched since the hand passed gets another round (Corbató, 1968).
use std::collections::VecDeque;

use super::Cache;
use super::trace::Trace;

/// See the module's text.
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
