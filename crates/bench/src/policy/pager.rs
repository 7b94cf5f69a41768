//! The pager's own policies, run on words and queues as the pager runs them: told of misses, and of
//! accesses to pages that are held aside for a while before they are evicted (soft faults), and of
//! first accesses to pages that are watched (by the kernel alone).
use std::collections::VecDeque;

use pagetide_pager::page::policy::{Kind, Policy, Queue, Verdict, Waiting};
use pagetide_pager::page::word::Word;

use super::cache::Cache;
use super::trace::Trace;

#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Nowhere,
    Queue,
    /// The entry of the held pages with this number; an older entry is void.
    Held(u64),
}

/// See the module's text.
pub struct Pager {
    policy: Box<dyn Policy>,
    words: Vec<Word>,
    at: Vec<At>,
    /// Accessed since it came to a watched queue.
    used: Vec<bool>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// The oldest first, with void entries.
    held: VecDeque<(u32, u64)>,
    held_pages: usize,
    entries: u64,
    pages: usize,
    soft_faults: u64,
}

impl Pager {
    /// Empty.
    pub fn new(trace: &Trace, pages: usize, kind: Kind) -> Pager {
        Pager {
            policy: kind.make(),
            words: vec![Word::default(); trace.pages],
            at: vec![At::Nowhere; trace.pages],
            used: vec![false; trace.pages],
            small: VecDeque::new(),
            main: VecDeque::new(),
            held: VecDeque::new(),
            held_pages: 0,
            entries: 0,
            pages,
            soft_faults: 0,
        }
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<u32> {
        match queue {
            // Nothing is read ahead here.
            Queue::Small | Queue::Ahead => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    /// Pages that may be held.
    fn most_held(&self) -> usize {
        let share = self.policy.held_share();
        share.map_or(0, |share| self.pages / share as usize)
    }

    /// Moves the policy's choice to the held pages.
    fn hold_one(&mut self) {
        let budget = self.pages as u64;
        loop {
            let waiting = Waiting {
                small: self.small.len() as u64,
                main: self.main.len() as u64,
                ahead: 0,
            };
            let queue = self.policy.next(waiting, budget);
            let Some(page) = self.queue(queue).pop_front() else {
                return;
            };
            let word = self.words[page as usize];
            let is_watched = self.policy.watched() == Some(queue);
            let verdict = match is_watched && self.used[page as usize] {
                true => Verdict::Keep(word, queue),
                false => self.policy.judge(word, queue, budget),
            };
            self.used[page as usize] = false;
            match verdict {
                Verdict::Keep(word, to) => {
                    self.words[page as usize] = word;
                    self.queue(to).push_back(page);
                }
                Verdict::Evict(word) => {
                    self.words[page as usize] = word;
                    self.entries += 1;
                    self.at[page as usize] = At::Held(self.entries);
                    self.held.push_back((page, self.entries));
                    self.held_pages += 1;
                    return;
                }
            }
        }
    }

    fn evict_oldest_held(&mut self) {
        while let Some((page, entry)) = self.held.pop_front() {
            if self.at[page as usize] == At::Held(entry) {
                self.at[page as usize] = At::Nowhere;
                self.held_pages -= 1;
                return;
            }
        }
    }

    fn make_room(&mut self) {
        if self.small.len() + self.main.len() + self.held_pages < self.pages {
            return;
        }
        while self.held_pages <= self.most_held() && self.small.len() + self.main.len() > 0 {
            self.hold_one();
        }
        self.evict_oldest_held();
    }
}

impl Cache for Pager {
    fn access(&mut self, page: u32) -> bool {
        let at = self.at[page as usize];
        let word = self.words[page as usize];
        let (word, queue) = match at {
            At::Queue => {
                self.used[page as usize] = true;
                return true;
            }
            At::Held(_) => {
                self.soft_faults += 1;
                self.held_pages -= 1;
                self.policy.readmit(word)
            }
            At::Nowhere => {
                self.make_room();
                self.policy.admit(word)
            }
        };
        self.words[page as usize] = word;
        self.at[page as usize] = At::Queue;
        self.queue(queue).push_back(page);
        at != At::Nowhere
    }

    fn soft_faults(&self) -> u64 {
        self.soft_faults
    }
}
