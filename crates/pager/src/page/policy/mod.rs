//! Which page goes next.
//!
//! A policy here sees little: that a page came in, and that one it gave up is wanted again. There
//! is no accessed bit on anonymous memory, so a page that is used every microsecond and one that is
//! never used look the same until they are evicted. What a policy remembers of a page stands in the
//! page's own word ([`Word::with_history`]), so it costs no memory, no lock and no allocation, and
//! survives the page's eviction.
//!
//! The pager keeps two queues, [`Queue::Small`] and [`Queue::Main`]; a policy says which one a page
//! enters, which one is taken from, and what becomes of the page taken. Decisions are pure
//! arithmetic on words and a few atomics: the simulator of `bench policy` runs the same code.
pub mod fifo;
pub mod s3fifo;

use crate::page::word::Word;

/// One of the two eviction queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Where pages begin.
    Small,
    /// For pages that have shown that they are used.
    Main,
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

    /// The queue to take the next candidate from, by the entries in each and the pages that may be
    /// resident. An empty one must not be named unless both are.
    fn next(&self, small: u64, main: u64, budget: u64) -> Queue;

    /// What becomes of a candidate taken from `queue`.
    fn judge(&self, word: Word, queue: Queue, budget: u64) -> Verdict;
}

/// The policies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// [`fifo::Fifo`].
    Fifo,
    /// [`s3fifo::S3Fifo`].
    #[default]
    S3Fifo,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::Fifo, Kind::S3Fifo];

    /// A new policy of this kind.
    pub fn make(self) -> Box<dyn Policy> {
        match self {
            Kind::Fifo => Box::new(fifo::Fifo),
            Kind::S3Fifo => Box::new(s3fifo::S3Fifo::default()),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fifo => "fifo",
            Kind::S3Fifo => "s3fifo",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("'{text}' is no eviction policy; expected fifo or s3fifo"))
    }
}
