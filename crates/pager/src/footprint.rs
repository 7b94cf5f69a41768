//! What a process has of the machine's memory in all, and the bound on that (`run --memory`).
//!
//! Three things are bounded together: the resident pages, the store's shared memory as it is
//! mapped, and the *others*: all other anonymous memory of the process, such as stacks, the data
//! of libraries, tables and Pagetide's own heap. The others are measured, not reckoned: what the
//! kernel counts as anonymous less what the pager counts as resident.
//!
//! The pages that may be resident are what the bound leaves beside the store and the others. A page
//! that is evicted frees more than it takes in the store, so with each round both come nearer to
//! where all fits, from one side; where nothing compresses they never do, and the store refuses.
//! The margin is what one round may take before the next division: so the bound holds meanwhile.
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::evict::staging::BATCH_PAGES;

/// What two readings of what is anonymous may differ by although nothing has changed, in pages.
pub(crate) const NOISE: u64 = 64;
/// Of the bound, one part in so many is left to resident pages whatever the store would take.
const LEAST_PART: u64 = 16;
/// Tables of the store grow by 29 bytes for a page; so does what is stored of pages that do not
/// compress. One part of the bound in so many is more than that.
const TABLES_PART: u64 = 128;
/// A store begins with a slab for each size that pages compress to: so much is set aside, in pages.
const FIRST_SLABS: u64 = 512;

/// What is known when a bound is divided, in pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// The bound.
    pub(crate) bound: u64,
    /// The most that may be resident whatever there is.
    pub(crate) most: u64,
    /// Anonymous memory of the process that is not the pager's pages.
    pub(crate) others: u64,
    /// In the store's shared memory.
    pub(crate) stored: u64,
    /// What has no room there goes elsewhere.
    pub(crate) spills: bool,
}

/// How a bound is divided, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    /// So many may be resident.
    pub(crate) resident: u64,
    /// The store may have so many in shared memory.
    pub(crate) stored: u64,
}

/// What is kept free for one round, and for what cannot be seen in time.
fn margin(bound: u64) -> u64 {
    BATCH_PAGES as u64 + 2 * NOISE + bound / TABLES_PART
}

impl Seen {
    /// The division.
    pub(crate) fn divide(self) -> Division {
        let left = self.bound.saturating_sub(self.others + margin(self.bound));
        let most = self.most.max(1);
        let least = (self.bound / LEAST_PART).clamp(1, most);
        // Where the rest can go elsewhere, the store in memory has at most half.
        let kept = match self.spills {
            true => (left / 2).clamp(least, most),
            false => least,
        };
        let stored = self.stored.max(FIRST_SLABS.min(self.bound / 32));
        Division {
            resident: left.saturating_sub(stored).clamp(least, most),
            stored: left.saturating_sub(kept),
        }
    }
}

/// The process's memory in all.
#[derive(Debug)]
pub(crate) struct Footprint {
    /// In pages; 0 where there is no bound.
    bound: AtomicU64,
    /// In pages.
    others: AtomicU64,
    /// The pages that may be resident by the last division.
    resident_max: AtomicU64,
    /// What the store has of a page in memory is wanted for others: a copy of one that is resident
    /// is not worth it.
    is_scarce: AtomicBool,
}

impl Default for Footprint {
    fn default() -> Footprint {
        Footprint {
            bound: AtomicU64::new(0),
            others: AtomicU64::new(0),
            resident_max: AtomicU64::new(u64::MAX),
            is_scarce: AtomicBool::new(false),
        }
    }
}

impl Footprint {
    /// The bound on memory in all, in pages, if there is one.
    pub(crate) fn bound(&self) -> Option<u64> {
        match self.bound.load(Relaxed) {
            0 => None,
            pages => Some(pages),
        }
    }

    /// Sets the bound, in pages (at least one).
    pub(crate) fn set_bound(&self, pages: u64) {
        self.bound.store(pages.max(1), Relaxed);
    }

    /// Anonymous memory of the process that is not the pager's pages, in pages; 0 if nobody has
    /// looked.
    pub(crate) fn others(&self) -> u64 {
        self.others.load(Relaxed)
    }

    /// So many are others. Whether that is a change: each costs evictions, so small ones are left
    /// out.
    pub(crate) fn note_others(&self, pages: u64) -> bool {
        let is_new = pages.abs_diff(self.others()) > NOISE;
        if is_new {
            self.others.store(pages, Relaxed);
        }
        is_new
    }

    /// Keeps what follows from a division.
    pub(crate) fn note(&self, division: Division, is_scarce: bool) {
        self.is_scarce.store(is_scarce, Relaxed);
        self.resident_max.store(division.resident, Relaxed);
    }

    /// Whether what is resident should not be in the store as well.
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_scarce.load(Relaxed)
    }

    /// The most pages that may be resident beside what else there is; any number, without a bound.
    pub(crate) fn resident_max(&self) -> u64 {
        self.resident_max.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 256;
    const SEEN: Seen = Seen {
        bound: 300 * MIB,
        most: u64::MAX,
        others: 5 * MIB,
        stored: 0,
        spills: false,
    };

    /// A program of so many pages, of which each takes `ratio` of a page in the store; where it
    /// comes to when it is divided after every round. `None`: the store refuses.
    fn settle(managed: u64, ratio: f64, spills: bool) -> Option<(u64, u64)> {
        let (mut resident, mut stored) = (0_u64, 0.0_f64);
        for touched in (0..=managed).step_by(64) {
            // Room for 64 more.
            let mut rounds = 0;
            loop {
                let now = Seen {
                    stored: stored as u64,
                    spills,
                    ..SEEN
                }
                .divide();
                let need = (resident + 64).saturating_sub(now.resident);
                assert!(
                    resident + stored as u64 + SEEN.others <= SEEN.bound,
                    "{touched}"
                );
                if need == 0 {
                    break;
                }
                let batch = need.min(BATCH_PAGES as u64).min(resident);
                let after = stored + batch as f64 * ratio;
                if after > now.stored as f64 {
                    // A tier moves pages away; a store alone refuses them.
                    match spills {
                        true => stored = now.stored as f64 - batch as f64 * ratio,
                        false => return None,
                    }
                }
                // While they are packed they are in both.
                let both = resident as f64 + stored + batch as f64 * ratio + SEEN.others as f64;
                assert!(both <= SEEN.bound as f64, "{both} with {touched} touched");
                (resident, stored) = (resident - batch, stored + batch as f64 * ratio);
                rounds += 1;
                assert!(rounds < 10_000, "no end with {touched} touched");
            }
            resident += 64;
        }
        Some((resident, stored as u64))
    }

    #[test]
    fn what_fits_is_resident_and_more_is_divided_where_both_fit() {
        assert_eq!(settle(200 * MIB, 0.4, false), Some((200 * MIB + 64, 0)));
        let (resident, stored) = settle(535 * MIB, 0.4, false).expect("it fits");
        // resident + 0.4 (535 - resident) + 5 = 300, but for the margin.
        let fixed = (300.0 - 5.0 - 0.4 * 535.0) / 0.6 * MIB as f64;
        assert!(
            (resident as f64) < fixed && resident as f64 > 0.9 * fixed,
            "{resident}"
        );
        assert!(resident + stored > 290 * MIB, "room is left unused");
    }

    #[test]
    fn what_does_not_compress_ends_with_the_store_refusing_and_within_the_bound() {
        assert_eq!(settle(400 * MIB, 1.0, false), None);
        assert_eq!(settle(700 * MIB, 0.5, false), None);
        let (resident, _) = settle(540 * MIB, 0.5, false).expect("it fits still");
        assert!(resident >= SEEN.bound / LEAST_PART);
    }

    #[test]
    fn a_tier_has_half_and_the_rest_goes_behind_it() {
        let (resident, stored) = settle(4000 * MIB, 0.9, true).expect("the rest goes elsewhere");
        assert!(
            resident > 140 * MIB && stored > 130 * MIB,
            "{resident} {stored}"
        );
    }

    #[test]
    fn a_smaller_resident_part_leaves_the_rest_to_the_store() {
        let seen = Seen {
            most: 40 * MIB,
            ..SEEN
        };
        assert_eq!(seen.divide().resident, 40 * MIB);
        let division = Seen {
            stored: 280 * MIB,
            ..seen
        }
        .divide();
        assert!(division.resident < 40 * MIB && division.stored > 270 * MIB);
        let tier = Seen {
            spills: true,
            ..seen
        }
        .divide();
        assert!(tier.stored > 250 * MIB, "{tier:?}");
    }

    #[test]
    fn a_part_is_left_to_resident_pages_whatever_else_there_is() {
        let full = Seen {
            stored: 400 * MIB,
            others: 400 * MIB,
            ..SEEN
        }
        .divide();
        assert_eq!(full.resident, SEEN.bound / LEAST_PART);
        assert_eq!(full.stored, 0);
        let tiny = Seen { most: 1, ..SEEN }.divide();
        assert_eq!(tiny.resident, 1);
    }
}
