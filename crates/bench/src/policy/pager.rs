//! The pager's own policies, run on words and queues as the pager runs them: told of misses alone.
//! Pages that S3-FIFO gives up are gone at once: that the pager holds them aside for a while, from
//! Linux 6.8 on, is not simulated.
use std::collections::VecDeque;

use pagetide_pager::page::policy::{Kind, Policy, Queue, Verdict};
use pagetide_pager::page::word::Word;

use super::cache::Cache;
use super::trace::Trace;

/// See the module's text.
pub struct Pager {
    policy: Box<dyn Policy>,
    words: Vec<Word>,
    present: Vec<bool>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    pages: usize,
}

impl Pager {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize, kind: Kind) -> Pager {
        Pager {
            policy: kind.make(),
            words: vec![Word::default(); trace.pages],
            present: vec![false; trace.pages],
            small: VecDeque::new(),
            main: VecDeque::new(),
            pages,
        }
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<u32> {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    fn evict(&mut self) {
        let budget = self.pages as u64;
        loop {
            let (small, main) = (self.small.len() as u64, self.main.len() as u64);
            let queue = self.policy.next(small, main, budget);
            let Some(page) = self.queue(queue).pop_front() else {
                return;
            };
            match self.policy.judge(self.words[page as usize], queue, budget) {
                Verdict::Keep(word, to) => {
                    self.words[page as usize] = word;
                    self.queue(to).push_back(page);
                }
                Verdict::Evict(word) => {
                    self.words[page as usize] = word;
                    self.present[page as usize] = false;
                    return;
                }
            }
        }
    }
}

impl Cache for Pager {
    fn access(&mut self, page: u32) -> bool {
        if self.present[page as usize] {
            return true;
        }
        if self.small.len() + self.main.len() >= self.pages {
            self.evict();
        }
        let (word, queue) = self.policy.admit(self.words[page as usize]);
        self.words[page as usize] = word;
        self.present[page as usize] = true;
        self.queue(queue).push_back(page);
        false
    }
}
