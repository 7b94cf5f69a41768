//! What is known of each page, in one word: a lock bit, the last snapshot that saved it, and the
//! epoch of its last write.
//!
//! ```text
//!  bit  0       BUSY     someone copies or opens the page; others wait, for less than a
//!                        microsecond of copying and one system call
//!       1..32   saved    the last epoch in which it was dealt with: its bytes went to the
//!                        snapshot, or it was left out and then written
//!      32..64   written  the last epoch in which it was opened to writers, 0: not since
//!                        tracking began
//! ```
//!
//! *Epochs* count snapshots: epoch `e` begins at the instant of snapshot `e`. A page is *needed* by
//! snapshot `e` while `saved != e`, and, for one that builds on the snapshot of epoch `b`, only if
//! `written >= b`: it was opened after that instant. Nothing has to be reset between snapshots, nor
//! after one that failed.
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const BUSY: u64 = 1;
/// Snapshots a snapshotter can take.
pub(crate) const EPOCH_MAX: u32 = (1 << 31) - 1;

/// A page word's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageWord(u64);

impl PageWord {
    fn saved(self) -> u32 {
        (self.0 as u32) >> 1
    }

    fn written(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn with_saved(self, epoch: u32) -> PageWord {
        PageWord(self.0 & !0xFFFF_FFFE | u64::from(epoch) << 1)
    }

    fn with_written(self, epoch: u32) -> PageWord {
        PageWord(self.0 & 0xFFFF_FFFF | u64::from(epoch) << 32)
    }
}

/// What the snapshot being taken, if any, wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Phase {
    /// The current epoch.
    pub epoch: u32,
    /// The epoch it builds on; 0 takes every page. `None`: no snapshot is being taken.
    pub base: Option<u32>,
}

impl Phase {
    /// In one word, so that both parts change together.
    pub fn encode(self) -> u64 {
        u64::from(self.epoch) << 32 | self.base.map_or(0, |base| u64::from(base) << 1 | 1)
    }

    pub fn decode(value: u64) -> Phase {
        let taking = value & 1 == 1;
        Phase {
            epoch: (value >> 32) as u32,
            base: taking.then_some((value as u32) >> 1),
        }
    }

    /// Whether the bytes of a page with `word` are still to be saved.
    pub fn needs(self, word: PageWord) -> bool {
        self.base
            .is_some_and(|base| word.saved() != self.epoch && word.written() >= base)
    }
}

/// The words of all pages.
#[derive(Debug)]
pub(crate) struct Pages(Box<[AtomicU64]>);

/// A page's lock is held; given back with the changes made, on drop.
pub(crate) struct Held<'p> {
    word: &'p AtomicU64,
    value: PageWord,
}

impl Pages {
    pub fn new(count: usize) -> Pages {
        Pages((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn load(&self, index: usize) -> PageWord {
        PageWord(self.0[index].load(SeqCst) & !BUSY)
    }

    /// Takes the page's lock if it is free.
    pub fn try_hold(&self, index: usize) -> Option<Held<'_>> {
        let word = &self.0[index];
        let value = word.load(SeqCst);
        if value & BUSY != 0 {
            return None;
        }
        word.compare_exchange(value, value | BUSY, SeqCst, SeqCst)
            .is_ok()
            // Made only when the lock was taken: one that is dropped gives it back.
            .then(|| Held {
                word,
                value: PageWord(value),
            })
    }

    /// Takes the page's lock, spinning: its holder runs a bounded, short section and is never
    /// parked in it.
    pub fn hold(&self, index: usize) -> Held<'_> {
        let mut spins = 0u32;
        loop {
            if let Some(held) = self.try_hold(index) {
                return held;
            }
            spins += 1;
            if spins.is_multiple_of(128) {
                // The holder may have lost its processor.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Notes that pages `from..to` were opened in `epoch`. The pages are saved, so nobody copies
    /// them; a holder may be opening them as well.
    pub fn set_written(&self, from: usize, to: usize, epoch: u32) {
        for word in &self.0[from..to] {
            let _ = word.fetch_update(SeqCst, SeqCst, |value| {
                let busy = value & BUSY;
                Some(PageWord(value).with_written(epoch).0 | busy)
            });
        }
    }
}

impl Held<'_> {
    pub fn word(&self) -> PageWord {
        self.value
    }

    pub fn set_saved(&mut self, epoch: u32) {
        self.value = self.value.with_saved(epoch);
    }

    pub fn set_written(&mut self, epoch: u32) {
        self.value = self.value.with_written(epoch);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // `set_written` may have come in between; everything else is the holder's.
        let _ = self.word.fetch_update(SeqCst, SeqCst, |now| {
            let written = self.value.written().max(PageWord(now).written());
            Some(self.value.with_written(written).0 & !BUSY)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_do_not_disturb_each_other(
            raw in any::<u64>(),
            saved in 0..=EPOCH_MAX,
            written in any::<u32>(),
        ) {
            let word = PageWord(raw & !BUSY).with_saved(saved).with_written(written);
            prop_assert_eq!((word.saved(), word.written(), word.0 & BUSY), (saved, written, 0));
            let phase = Phase { epoch: saved, base: Some(written & EPOCH_MAX) };
            prop_assert_eq!(Phase::decode(phase.encode()), phase);
            let idle = Phase { base: None, ..phase };
            prop_assert_eq!(Phase::decode(idle.encode()), idle);
        }
    }

    #[test]
    fn a_page_is_needed_until_saved_and_only_if_written_since_the_base() {
        let never = PageWord(0);
        let written_in = |epoch| PageWord(0).with_written(epoch);
        let full = Phase {
            epoch: 5,
            base: Some(0),
        };
        let since_3 = Phase {
            epoch: 5,
            base: Some(3),
        };
        assert!(full.needs(never) && !since_3.needs(never));
        assert!(!since_3.needs(written_in(2)) && since_3.needs(written_in(3)));
        assert!(!full.needs(never.with_saved(5)) && full.needs(never.with_saved(4)));
        assert!(
            !Phase {
                epoch: 5,
                base: None
            }
            .needs(never)
        );
    }

    #[test]
    fn a_lock_that_was_not_taken_is_not_given_back() {
        let pages = Pages::new(1);
        let held = pages.hold(0);
        assert!(pages.try_hold(0).is_none() && pages.try_hold(0).is_none());
        drop(held);
        assert!(pages.try_hold(0).is_some());
    }

    #[test]
    fn what_is_noted_while_a_page_is_held_is_kept() {
        let pages = Pages::new(1);
        let held = pages.hold(0);
        pages.set_written(0, 1, 7);
        drop(held);
        assert_eq!(
            (pages.load(0).written(), pages.try_hold(0).is_some()),
            (7, true)
        );
    }

    #[test]
    fn a_page_is_claimed_once_by_many_threads() {
        let pages = Pages::new(1);
        let claims = AtomicU64::new(0);
        let together = std::sync::Barrier::new(4);
        const EPOCHS: u32 = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    for epoch in 1..=EPOCHS {
                        let base = Some(0);
                        let mut held = pages.hold(0);
                        // Some threads are behind: theirs is no longer a claim.
                        if held.word().saved() < epoch && (Phase { epoch, base }).needs(held.word())
                        {
                            held.set_saved(epoch);
                            claims.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(claims.load(SeqCst), u64::from(EPOCHS));
    }
}
