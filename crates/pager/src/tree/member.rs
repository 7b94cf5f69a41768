//! A process's part in the common budget.
//!
//! The evictor alone acts here, once it runs: before it looks what there is to evict it keeps the
//! account ([`Member::keep`]), and where it would have to evict it asks for more first
//! ([`Member::ask`]). Nothing waits for another process. Only while the kernel still fills the
//! process's memory unasked does the scanner act instead ([`super::deferred`]).
use std::os::fd::{BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU64};
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::byte_lock::{is_locked, try_lock, unlock};
use pagetide_kernel::sync::{now_ns, process_cpu_ns};
use rustix::io::Errno;

use super::division::{self, Process};
use super::file::{FLOOR_PAGES, NO_TARGET, SLOTS, Slot, TreeFile};
use super::slot::DIVIDE_NS;
use crate::budget::Budget;
use crate::ledger::Ledger;

/// What a process begins with, if there is so much: 4 MiB, but no more than one part in
/// `FIRST_PART` of the budget.
const FIRST_PAGES: u64 = 1024;
const FIRST_PART: u64 = 16;
/// The least that is asked for at a time.
const ASK_MIN: u64 = 64;
/// Of what it has, a process asks for one page in so many more at a time.
const ASK_PART: u64 = 8;
/// While more than one part in so many of the budget is free, it asks for as much as it has.
const AMPLE_PART: u64 = 4;
/// How often a process asks at most.
const ASK_NS: u64 = 2_000_000;
/// How often processes that have ended are looked for at most.
const SWEEP_NS: u64 = 20_000_000;
/// How often a process looks what it does itself.
const LOOK_NS: u64 = 20_000_000;
/// Over this time it is seen whether it uses a processor at all: for one part in `BUSY_PART`.
const BUSY_NS: u64 = 300_000_000;
const BUSY_PART: u64 = 32;
/// How long a process that starts tries to get a slot before it goes on with a floor.
const JOIN_TRIES: u32 = 100;
const JOIN_PAUSE: Duration = Duration::from_millis(1);

const NO_FILE: RawFd = -1;
const NO_SLOT: u64 = u64::MAX;

/// A process's part in the common budget.
pub struct Member {
    file: &'static TreeFile,
    /// Open in the table of the pager's threads, for good, and in no other process's.
    lock: AtomicI32,
    /// Index of the process's slot.
    slot: AtomicU64,
    weight: u64,
    near_misses: AtomicU64,
    /// When it asked last, and looked what it does.
    asked_ns: AtomicU64,
    looked_ns: AtomicU64,
    /// When it looked whether it uses a processor, and what it had used.
    measured_ns: AtomicU64,
    measured_cpu_ns: AtomicU64,
    /// The budget of the run when it looked last.
    seen_budget: AtomicU64,
}

/// The lock, given up when it is dropped.
pub(super) struct Divides<'m>(&'m Member);

impl Drop for Divides<'_> {
    fn drop(&mut self) {
        let _ = unlock(self.0.descriptor(), TreeFile::DIVISION);
    }
}

impl Member {
    /// By way of `file`, the run's, opened for this process alone; without a slot yet. It is
    /// mapped by way of `other`, the same file opened once more: forked children have the mapping
    /// too, and a lock lasts as long as what it was locked by is open or mapped.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` if it is not such a file.
    pub fn new(file: OwnedFd, other: BorrowedFd<'_>, weight: u64) -> Result<Member, Errno> {
        use std::os::fd::AsFd as _;
        let member = Member {
            file: TreeFile::map(other)?,
            lock: AtomicI32::new(NO_FILE),
            slot: AtomicU64::new(NO_SLOT),
            weight,
            near_misses: AtomicU64::new(0),
            asked_ns: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            measured_ns: AtomicU64::new(0),
            measured_cpu_ns: AtomicU64::new(0),
            seen_budget: AtomicU64::new(0),
        };
        // Whether the file can be locked at all.
        is_locked(file.as_fd(), TreeFile::DIVISION)?;
        member.lock.store(file.into_raw_fd(), Release);
        Ok(member)
    }

    /// In a forked child, whose part begins anew: by way of `file`, opened for it alone. Without
    /// one it is no part of the run's budget.
    pub fn begin_again(&self, file: Option<OwnedFd>) {
        self.slot.store(NO_SLOT, Release);
        let file = file.map_or(NO_FILE, |file| file.into_raw_fd());
        self.lock.store(file, Release);
        for counter in [&self.near_misses, &self.asked_ns, &self.looked_ns] {
            counter.store(0, Relaxed);
        }
        self.measured_ns.store(0, Relaxed);
    }

    /// The budget of the run in pages.
    pub fn whole(&self) -> u64 {
        self.file.header.budget.load(Acquire).max(1)
    }

    /// The most pages that this process may come to have.
    pub(crate) fn most(&self) -> u64 {
        let cap = self.slot().map_or(u64::MAX, |slot| slot.cap.load(Relaxed));
        self.whole().min(cap)
    }

    /// A fault on a page that would have been resident with twice the memory.
    pub(crate) fn note_near_miss(&self) {
        self.near_misses.fetch_add(1, Relaxed);
    }

    /// Takes a slot, before the pager runs, and sets `budget` to what it comes with: what is
    /// resident already, if there is so much, and the floor in any case.
    pub fn join(&self, budget: &Budget) {
        if self.is_alone() {
            return budget.set(self.whole());
        }
        for _ in 0..JOIN_TRIES {
            if self.try_join(budget) {
                return;
            }
            std::thread::sleep(JOIN_PAUSE);
        }
        // Somebody was stopped while it divided, or there are too many processes.
        budget.set(FLOOR_PAGES.min(self.whole()));
    }

    /// Its user lets this process have at most `pages` of the run's budget, as `ledger` then says.
    pub fn set_cap(&self, budget: &Budget, pages: u64, ledger: &Ledger) {
        let pages = pages.max(1);
        match self.slot() {
            Some(slot) => {
                slot.cap.store(pages, Release);
                let bytes = pages.saturating_mul(PAGE_SIZE as u64);
                ledger.run_share_max_bytes.store(bytes, Relaxed);
                if pages < budget.get() {
                    budget.set(pages);
                }
                budget.work.ring();
            }
            None => budget.set(pages),
        }
    }

    /// Whether there is no common budget for it: it has one of that size by itself.
    pub fn is_alone(&self) -> bool {
        self.lock.load(Acquire) == NO_FILE
    }

    pub(super) fn slot(&self) -> Option<&'static Slot> {
        let index = self.slot.load(Acquire);
        (index != NO_SLOT).then(|| &self.file.slots[index as usize])
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open for good in the table of the threads that come here; -1, which this is not
        // asked with, is not a descriptor.
        unsafe { BorrowedFd::borrow_raw(self.lock.load(Acquire)) }
    }

    /// The lock, if nobody has it.
    pub(super) fn divides(&self) -> Option<Divides<'_>> {
        let got = try_lock(self.descriptor(), TreeFile::DIVISION) == Ok(true);
        got.then_some(Divides(self))
    }

    /// Slots that have been used.
    fn slots(&self) -> &'static [Slot] {
        let used = self.file.header.used_slots.load(Acquire) as usize;
        &self.file.slots[..used.min(SLOTS)]
    }

    pub(super) fn taken_slots(&self) -> impl Iterator<Item = &'static Slot> {
        self.slots().iter().filter(|slot| slot.is_taken())
    }

    pub(super) fn granted_to_all(&self) -> u64 {
        let granted = |slot: &Slot| slot.granted.load(SeqCst);
        self.taken_slots().map(granted).sum()
    }

    /// Pages that may be granted: what is neither granted nor has to stay free.
    fn free(&self) -> u64 {
        let margins = self.taken_slots().map(|slot| slot.margin.load(SeqCst));
        let taken = self.granted_to_all() + margins.max().unwrap_or(0);
        self.whole().saturating_sub(taken)
    }

    /// Frees the slots of processes that have ended. The lock is held.
    pub(super) fn sweep(&self, now: u64, always: bool) {
        let header = &self.file.header;
        if !always && now.saturating_sub(header.swept_ns.load(Relaxed)) < SWEEP_NS {
            return;
        }
        header.swept_ns.store(now, Relaxed);
        let own = self.slot.load(Relaxed) as usize;
        for (index, slot) in self.slots().iter().enumerate() {
            let ended = || is_locked(self.descriptor(), TreeFile::byte_of(index)) == Ok(false);
            if index != own && slot.is_taken() && ended() {
                slot.generation.store(0, SeqCst);
            }
        }
    }

    /// Whether it has got a slot.
    fn try_join(&self, budget: &Budget) -> bool {
        let Some(_divides) = self.divides() else {
            return false;
        };
        let now = now_ns();
        let resident = budget.resident_in_all();
        let first = FIRST_PAGES.min(self.whole() / FIRST_PART);
        let wanted = first.max(resident + ASK_MIN);
        let header = &self.file.header;
        if self.free() < wanted {
            self.sweep(now, true);
        }
        let free = |(_, slot): &(usize, &Slot)| !slot.is_taken();
        let mut slots = self.file.slots.iter().enumerate();
        let Some((index, slot)) = slots.find(free) else {
            return false;
        };
        if try_lock(self.descriptor(), TreeFile::byte_of(index)) != Ok(true) {
            return false;
        }
        let granted = wanted.min(self.free());
        let granted = granted.max(FLOOR_PAGES.min(self.whole()));
        slot.begin(now, granted, resident, self.weight);
        if granted < wanted {
            slot.note_wanted(wanted - granted, now);
        }
        let used_slots = header.used_slots.load(Relaxed).max(index as u64 + 1);
        header.used_slots.store(used_slots, Release);
        let generation = header.generation.fetch_add(1, Relaxed) + 1;
        slot.generation.store(generation, SeqCst);
        self.slot.store(index as u64, Release);
        budget.set(granted);
        if granted < wanted {
            self.divide(now);
        }
        true
    }

    /// On the evictor: says what this process has, and goes towards what it is to have.
    pub(crate) fn keep(&self, budget: &Budget, ledger: &Ledger) {
        if self.is_alone() {
            return;
        }
        let now = now_ns();
        let looks = now.saturating_sub(self.looked_ns.load(Relaxed)) > LOOK_NS;
        let Some(slot) = self.slot() else {
            if looks {
                self.looked_ns.store(now, Relaxed);
                self.try_join(budget);
            }
            return;
        };
        // What it has and uses is the scanner's to say, as long as there is nothing to evict.
        let is_deferred = slot.is_deferred();
        if !is_deferred {
            self.approach(slot, budget);
            slot.used.store(budget.resident_in_all(), Relaxed);
        }
        let near_misses = self.near_misses.load(Relaxed);
        slot.near_misses.store(near_misses, Relaxed);
        if looks {
            self.looked_ns.store(now, Relaxed);
            self.measure(slot, now, ledger);
            self.note_whole(ledger);
            let whole = self.whole();
            // Changed from outside, or somebody came to whom the floor is due.
            let is_changed = self.seen_budget.load(Relaxed) != whole;
            if !is_deferred
                && (is_changed || self.granted_to_all() > whole)
                && let Some(_divides) = self.divides()
            {
                self.sweep(now, false);
                self.seen_budget.store(whole, Relaxed);
                if self.granted_to_all() > whole {
                    self.divide(now);
                }
            }
        }
    }

    /// The first half of giving up is the evictor's: nothing more becomes resident beyond the
    /// target. The second: what has gone is not this process's any more.
    fn approach(&self, slot: &Slot, budget: &Budget) {
        let granted = slot.granted.load(Relaxed);
        let goal = slot.goal().max(slot.held(now_ns()));
        if goal < granted {
            if budget.get() != goal {
                budget.set(goal);
            }
            // After the budget was set: whoever takes a page of it later sees that.
            let resident = budget.resident_in_all();
            if resident < granted {
                slot.granted.store(resident.max(goal), SeqCst);
            }
        } else if budget.get() != granted {
            budget.set(granted);
        }
    }

    /// Says what the run's budget is.
    pub(crate) fn note_whole(&self, ledger: &Ledger) {
        let bytes = self.whole().saturating_mul(PAGE_SIZE as u64);
        ledger.run_budget_bytes.store(bytes, Relaxed);
    }

    /// On the evictor, which found nothing that it could evict, or something.
    pub(crate) fn note_round(&self, budget: &Budget, found: bool) {
        let Some(slot) = self.slot() else {
            return;
        };
        // What is being attached is not in the evictor's hands yet, which does not mean that it
        // will not go.
        let held = match found || budget.has_awaited() {
            true => 0,
            false => budget.resident_in_all(),
        };
        slot.held.store(held, Relaxed);
        slot.held_ns.store(now_ns(), Relaxed);
    }

    fn measure(&self, slot: &Slot, now: u64, ledger: &Ledger) {
        let since = now.saturating_sub(self.measured_ns.load(Relaxed));
        if since < BUSY_NS {
            return;
        }
        // What the pager itself does is not the program's doing.
        let pagers = [&ledger.fault_thread_cpu_ns, &ledger.evictor_cpu_ns];
        let pagers: u64 = pagers.map(|counter| counter.load(Relaxed)).iter().sum();
        let cpu = process_cpu_ns().saturating_sub(pagers);
        let used = cpu.saturating_sub(self.measured_cpu_ns.swap(cpu, Relaxed));
        self.measured_ns.store(now, Relaxed);
        if used > since / BUSY_PART {
            slot.busy_ns.store(now, Relaxed);
        }
    }

    /// On the evictor, which would have to evict `need` pages: has the process have more instead,
    /// if it may.
    pub(crate) fn ask(&self, budget: &Budget, need: u64) {
        let now = now_ns();
        let Some(slot) = self.slot() else {
            return;
        };
        if now.saturating_sub(self.asked_ns.load(Relaxed)) < ASK_NS {
            return;
        }
        let granted = slot.granted.load(Relaxed);
        if slot.is_deferred() || slot.cap.load(Relaxed) <= granted {
            return;
        }
        let Some(_divides) = self.divides() else {
            return;
        };
        self.asked_ns.store(now, Relaxed);
        // While much is free, a process that grows is not made to ask again and again.
        let free = self.free();
        let ahead = match free > self.whole() / AMPLE_PART {
            true => granted.min(free / 2),
            false => granted / ASK_PART,
        };
        let wanted = need.max(ASK_MIN).max(ahead);
        let given = self.take(slot, wanted, now);
        match given < wanted {
            true => slot.note_wanted(wanted - given, now),
            false => slot.wanted.store(0, Relaxed),
        }
        if given > 0 {
            budget.set(granted + given);
            // It is content for as long as it does not come again.
            self.asked_ns.store(0, Relaxed);
        }
    }

    /// Takes up to `wanted` pages of what is free for the owner of `slot`, and has others give up
    /// if that is not enough. The lock is held.
    fn take(&self, slot: &Slot, wanted: u64, now: u64) -> u64 {
        let header = &self.file.header;
        if self.free() < wanted {
            self.sweep(now, false);
        }
        if self.free() < wanted {
            slot.note_wanted(wanted, now);
            if now.saturating_sub(header.divided_ns.load(Relaxed)) >= DIVIDE_NS {
                self.divide(now);
            }
        }
        let granted = slot.granted.load(Relaxed);
        let target = slot.target.load(Relaxed).max(slot.held(now));
        if target < granted {
            return 0;
        }
        // What others are to have, and have not taken yet, is theirs; and what this one is to have
        // its own.
        let promised = |slot: &Slot| match slot.target.load(Relaxed) {
            NO_TARGET => 0,
            target if slot.is_hungry(now) => target.saturating_sub(slot.granted.load(Relaxed)),
            _ => 0,
        };
        let others = self.taken_slots();
        let others = others.filter(|other| !std::ptr::eq(*other, slot));
        let others: u64 = others.map(promised).sum();
        let own = match target {
            NO_TARGET => 0,
            target => target - granted,
        };
        let most = slot.cap.load(Relaxed).saturating_sub(granted);
        let given = wanted
            .min(most)
            .min(self.free().saturating_sub(others).max(own.min(self.free())));
        slot.granted.store(granted + given, SeqCst);
        if target <= granted + given {
            slot.target.store(NO_TARGET, Relaxed);
        }
        given
    }

    /// Divides the budget anew. The lock is held.
    fn divide(&self, now: u64) {
        self.file.header.divided_ns.store(now, Relaxed);
        let slots: Vec<&Slot> = self.taken_slots().collect();
        let processes: Vec<Process> = slots.iter().map(|slot| slot.known(now)).collect();
        let targets = division::divide(self.whole(), &processes);
        for (slot, target) in slots.iter().zip(targets) {
            slot.target.store(target, Release);
        }
    }
}
