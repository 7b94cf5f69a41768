//! What a policy is asked.
use crate::page::word::Word;

/// One of the eviction queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Where pages begin.
    Small,
    /// For pages that have shown that they are used.
    Main,
    /// For pages that were read ahead: nobody has asked for them.
    Ahead,
}

impl Queue {
    /// All of them.
    pub const ALL: [Queue; 3] = [Queue::Small, Queue::Main, Queue::Ahead];
}

/// Entries of each queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Waiting {
    pub small: u64,
    pub main: u64,
    pub ahead: u64,
}

/// What becomes of a page taken from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be evicted; its word shall carry this history.
    Evict(Word),
    /// It stays, at the end of this queue, with this history.
    Keep(Word, Queue),
}

/// Chooses. Called by the threads that serve faults and by the evictor, at the same time: no locks,
/// no allocation.
pub trait Policy: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// A page was made resident; `word` carries what was remembered when it was evicted. Returns
    /// what to remember now, and its queue.
    fn admit(&self, word: Word) -> (Word, Queue);

    /// The same of a page that was read ahead. By default it is a page as others are.
    fn admit_ahead(&self, word: Word) -> (Word, Queue) {
        self.admit(word)
    }

    /// Whether a page that is wanted back would still be resident with twice the budget; `word`
    /// carries what was remembered when it was evicted. By default each might be.
    fn is_near_miss(&self, _word: Word) -> bool {
        true
    }

    /// A page that was to be evicted is wanted while it was still held aside, so it is in use;
    /// `word` carries what was remembered when it was chosen. Returns what to remember now, and its
    /// queue. By default it is a page as others are.
    fn readmit(&self, word: Word) -> (Word, Queue) {
        self.admit(word)
    }

    /// Pages to be evicted are held aside for a while first, to see whether they are wanted: one in
    /// so many pages of the budget. By default none is.
    fn held_share(&self) -> Option<u64> {
        None
    }

    /// The queue whose pages are watched from when they enter it, so that whether one was used is
    /// known when its turn comes. By default none is.
    fn watched(&self) -> Option<Queue> {
        None
    }

    /// The queue to take the next candidate from, by the entries in each and the pages that may be
    /// resident. An empty one must not be named unless all are.
    fn next(&self, waiting: Waiting, budget: u64) -> Queue;

    /// What becomes of a candidate taken from `queue`. One that is watched and was used is not
    /// asked about: it stays, at the end of that queue.
    fn judge(&self, word: Word, queue: Queue, budget: u64) -> Verdict;
}
