//! Whether what the store has of a page that was fetched is worth its room, where the page's
//! content tells if it was written
//! ([`Handles::content_tells`](crate::handles::Handles::content_tells)).
//!
//! A page that is evicted as it was fetched need not be put again, if the store still has it: that
//! saves its compression. One that was written has kept its old bytes for nothing. So they are kept
//! while most pages of late were evicted as they were fetched; and of the others one in a few,
//! which shows what is true now.
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The share of all.
const ONE: u32 = 1 << 16;
/// The share is that of about so many evictions.
const MEMORY: u32 = 128;

/// What became of the pages whose bytes were kept.
#[derive(Debug, Default)]
pub(crate) struct Backings {
    /// Of those evicted of late, the share that was not changed, in parts of [`ONE`]. The evictor
    /// changes it.
    unchanged: AtomicU32,
}

impl Backings {
    /// A page was evicted whose bytes had been kept. Only for the evictor.
    pub(crate) fn note(&self, is_changed: bool) {
        let share = self.unchanged.load(Relaxed);
        let gained = if is_changed { 0 } else { ONE / MEMORY };
        self.unchanged
            .store(share - share / MEMORY + gained, Relaxed);
    }

    /// Whether at least half of them need not be put again.
    pub(crate) fn are_useful(&self) -> bool {
        self.unchanged.load(Relaxed) >= ONE / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_useful_while_most_pages_are_not_changed() {
        let backings = Backings::default();
        assert!(!backings.are_useful(), "nothing is known");
        (0..200).for_each(|_| backings.note(false));
        assert!(backings.are_useful());
        (0..40).for_each(|_| backings.note(true));
        assert!(backings.are_useful(), "some changed pages say nothing yet");
        (0..200).for_each(|_| backings.note(true));
        assert!(!backings.are_useful());
        (0..2000).for_each(|turn| backings.note(turn % 3 == 0));
        assert!(backings.are_useful(), "two in three are not changed");
        (0..100_000).for_each(|_| backings.note(false));
        assert!(backings.unchanged.load(Relaxed) <= ONE);
    }
}
