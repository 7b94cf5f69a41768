//! A process's part while the kernel fills its memory unasked: registration is deferred as long as
//! the run as a whole is far from its budget.
//!
//! Such a process is granted what it was counted to have. What it fills between two counts has
//! been asked of nobody, so a *margin* of the budget stays free while there is such a process: one
//! for all of them, as the processors that fill memory are the same. Once what is granted and asked
//! for reaches into the margin, each puts its memory under its pager when it counts next, and
//! divides what is left of the margin with the others that are to do so.
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use pagetide_kernel::sync::now_ns;

use super::file::{FLOOR_PAGES, Slot};
use super::member::Member;
use crate::budget::Budget;

/// How long whoever has the lock is waited for: it takes microseconds, unless its process was
/// stopped.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_micros(100);

/// Pages that may be filled before the margin of a budget of `whole` pages is reached.
fn room(whole: u64, margin: u64, granted: u64, asked: u64) -> u64 {
    let before_margin = whole.saturating_sub(margin);
    before_margin.saturating_sub(granted.saturating_add(asked))
}

/// What a process that has `resident` pages is granted when it puts them under its pager: these,
/// and an even part of what is left, as `sharers` processes are to do the same. Where others have
/// it, what they leave, with the floor for the least.
fn taken_over(whole: u64, others: u64, resident: u64, sharers: u64) -> u64 {
    let left = whole.saturating_sub(others);
    match left.checked_sub(resident) {
        Some(spare) => resident + spare / sharers.max(1),
        None => left.max(FLOOR_PAGES.min(whole)),
    }
}

impl Member {
    /// Defers registration if the run as it is leaves room for that, with `margin` pages free for
    /// what comes until the next count; whether it is deferred. Before the pager's threads run, as
    /// the evictor acts where it is not.
    pub fn begin_deferral(&self, budget: &Budget, resident: u64, margin: u64) -> bool {
        match self.slot() {
            Some(slot) if self.room(margin) > resident => {
                self.note_deferred(slot, budget, resident, margin);
                true
            }
            _ => false,
        }
    }

    /// On the scanner, while registration is deferred: so many pages are resident. Pages that all
    /// processes of the run together may still fill, with `margin` of them free beside; 0 if this
    /// one is to put its memory under its pager.
    pub fn count_deferred(&self, budget: &Budget, resident: u64, margin: u64) -> u64 {
        match self.slot() {
            Some(slot) if slot.is_deferred() => {
                self.note_deferred(slot, budget, resident, margin);
                self.room(margin)
            }
            _ => 0,
        }
    }

    fn note_deferred(&self, slot: &Slot, budget: &Budget, resident: u64, margin: u64) {
        let granted = resident.max(FLOOR_PAGES);
        slot.granted.store(granted, SeqCst);
        slot.used.store(resident, Relaxed);
        slot.margin.store(margin.max(1), SeqCst);
        // Nothing is held to it before the memory is governed.
        let most = self.most();
        if budget.get() != most {
            budget.set(most);
        }
        budget.show_granted(granted);
    }

    fn room(&self, margin: u64) -> u64 {
        let asked = |now| {
            let hungry = self.taken_slots().filter(move |slot| slot.is_hungry(now));
            hungry.map(|slot| slot.wanted.load(Relaxed)).sum()
        };
        let now = now_ns();
        let room = || room(self.whole(), margin, self.granted_to_all(), asked(now));
        let found = room();
        if found >= margin {
            return found;
        }
        // Some of it may be of processes that have ended.
        let lock = match found {
            0 => self.divides_soon(),
            _ => self.divides(),
        };
        match lock {
            Some(_divides) => {
                self.sweep(now, found == 0);
                room()
            }
            None => found,
        }
    }

    /// On the scanner: this process's memory, of which `resident` pages are resident, comes under
    /// its pager now. Sets `budget` to what it is granted.
    pub fn end_deferral(&self, budget: &Budget, resident: u64) {
        let Some(slot) = self.slot().filter(|slot| slot.is_deferred()) else {
            return;
        };
        let lock = self.divides_soon();
        let others = self.granted_to_all() - slot.granted.load(SeqCst);
        let sharers = match lock {
            Some(_) => self.taken_slots().filter(|slot| slot.is_deferred()).count() as u64,
            // Nothing is taken beyond what is there already.
            None => u64::MAX,
        };
        let granted = taken_over(self.whole(), others, resident, sharers);
        slot.granted.store(granted, SeqCst);
        budget.set(granted.min(slot.goal()));
        drop(lock);
        // From here on the evictor acts, with the same lock.
        slot.margin.store(0, SeqCst);
    }

    /// The lock, unless somebody keeps it.
    fn divides_soon(&self) -> Option<super::member::Divides<'_>> {
        (0..LOCK_TRIES).find_map(|_| {
            let lock = self.divides();
            if lock.is_none() {
                std::thread::sleep(LOCK_PAUSE);
            }
            lock
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_and_the_margin_leave_no_room_and_corpses_none_below_nothing() {
        assert_eq!(room(1000, 200, 500, 100), 200);
        assert_eq!(room(1000, 200, 500, 300), 0);
        assert_eq!(room(1000, 200, 900, 300), 0);
        assert_eq!(room(100, 200, 0, 0), 0);
    }

    #[test]
    fn what_is_taken_over_is_within_the_budget_and_the_margin_is_shared_evenly() {
        let mut others = vec![3000, 2000, 1000];
        let whole = 6600;
        let mut granted = vec![];
        while let Some(resident) = others.pop() {
            let all = others.iter().chain(&granted).sum();
            let sharers = others.len() as u64 + 1;
            granted.push(taken_over(whole, all, resident, sharers));
        }
        assert_eq!(granted, [1200, 2200, 3200]);
        assert_eq!(taken_over(whole, 0, 10, u64::MAX), 10);
        // A forked child came with what nobody has room for.
        assert_eq!(taken_over(whole, 6000, 1000, 2), 600);
        assert_eq!(taken_over(whole, 7000, 1000, 2), FLOOR_PAGES);
        assert_eq!(taken_over(10, 7000, 1000, 2), 10);
    }
}
