//! First in, first out: remembers nothing.
use super::contract::{Policy, Queue, Verdict, Waiting};
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

    fn next(&self, waiting: Waiting, _budget: u64) -> Queue {
        match waiting {
            Waiting {
                small: 0,
                main: 1..,
                ..
            } => Queue::Main,
            _ => Queue::Small,
        }
    }

    fn judge(&self, word: Word, _queue: Queue, _budget: u64) -> Verdict {
        Verdict::Evict(word)
    }
}
