//! First in, first out: remembers nothing.
use super::contract::{Policy, Queue, Verdict};
use crate::page::word::Word;

/// See the module's text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn admit(&self, word: Word) -> (Word, Queue) {
        (word, Queue::Small)
    }

    fn next(&self, small: u64, main: u64, _budget: u64) -> Queue {
        if small == 0 && main > 0 {
            Queue::Main
        } else {
            Queue::Small
        }
    }

    fn judge(&self, word: Word, _queue: Queue, _budget: u64) -> Verdict {
        Verdict::Evict(word)
    }
}
