//! Whether filling the rest of a block ([`super::scattered`]) is of use.
//!
//! Whoever uses fresh memory writes to it, as a rule. A page that was filled ahead and holds zeros
//! when it is evicted was filled in vain: it has taken the room of one that was used. When too many
//! were, nothing is filled so for a while, and twice as long each time, until a trial shows that
//! things have changed.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages filled after which it is decided anew.
const SAMPLE: u64 = 1024;
/// It is of use if less than one in so many was evicted as zeros.
const UNUSED: u64 = 8;
/// Blocks that are not filled after the first sample that was not used, and at most.
const REST: u64 = 64;
const REST_MOST: u64 = 4096;

/// What became of them. Pages are filled by one thread at a time, as a rule; where several do, a
/// count may be lost, and nothing but the time of a decision depends on it.
#[derive(Debug, Default)]
pub(crate) struct FilledAhead {
    /// Pages filled, and those found not used, since it was decided last.
    pages: AtomicU64,
    unused: AtomicU64,
    /// Blocks that are not to be filled from now on, and how many it was last time.
    rest: AtomicU64,
    last_rest: AtomicU64,
}

impl FilledAhead {
    /// Whether to fill the rest of a block.
    pub(crate) fn is_worth_trying(&self) -> bool {
        let rest = self.rest.load(Relaxed);
        self.rest.store(rest.saturating_sub(1), Relaxed);
        rest == 0
    }

    /// `pages` pages were filled.
    pub(crate) fn note(&self, pages: u64) {
        let filled = self.pages.load(Relaxed) + pages;
        if filled < SAMPLE {
            return self.pages.store(filled, Relaxed);
        }
        self.pages.store(0, Relaxed);
        let rest = match self.unused.swap(0, Relaxed) * UNUSED < filled {
            true => 0,
            false => (self.last_rest.load(Relaxed) * 2).clamp(REST, REST_MOST),
        };
        self.rest.store(rest, Relaxed);
        self.last_rest.store(rest, Relaxed);
    }

    /// So many of them were evicted, and held zeros.
    pub(crate) fn note_unused(&self, pages: u64) {
        self.unused.fetch_add(pages, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that are not filled before the next one is.
    fn rest(ahead: &FilledAhead) -> u64 {
        (0..).take_while(|_| !ahead.is_worth_trying()).count() as u64
    }

    #[test]
    fn it_rests_while_pages_are_filled_in_vain() {
        let ahead = FilledAhead::default();
        assert_eq!(rest(&ahead), 0, "nothing is known");
        ahead.note_unused(SAMPLE / 10);
        ahead.note(SAMPLE);
        assert_eq!(rest(&ahead), 0, "one in ten");
        for expected in [REST, 2 * REST, 4 * REST] {
            ahead.note_unused(SAMPLE / 4);
            (0..SAMPLE).for_each(|_| ahead.note(1));
            assert_eq!(rest(&ahead), expected, "a quarter");
        }
        ahead.note(SAMPLE);
        assert_eq!(rest(&ahead), 0);
        ahead.note_unused(SAMPLE);
        ahead.note(SAMPLE);
        assert_eq!(rest(&ahead), REST);
    }
}
