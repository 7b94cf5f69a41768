//! Room for the old bytes of pages that are written before the sweep reaches them: a fixed number
//! of slots, used without locks or allocation.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::own::{Mapping, discard};
use pagetide_kernel::sync::Doorbell;
use rustix::io::Errno;

/// A slot taken and not yet filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SlotIndex(usize);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Mapping,
    slots: usize,
    /// One bit a slot: taken.
    taken: Box<[AtomicU64]>,
    /// One bit a slot: filled, for the worker to take.
    filled: Box<[AtomicU64]>,
    /// The page each filled slot holds.
    pages: Box<[AtomicU64]>,
    /// Where the next search for a free slot begins: words before it were full when they were last
    /// looked at. The first slots are used again and again, so that memory which was never touched,
    /// and costs a fault of its own, is needed only by those who need more at a time.
    hint: AtomicUsize,
    used: AtomicUsize,
    used_max: AtomicUsize,
    waiting: AtomicUsize,
    /// Rung when slots become free, or nobody needs any more.
    free: Doorbell,
}

impl Pool {
    /// A pool of `slots` pages; its memory is used only as far as it is needed at a time.
    pub fn new(slots: usize) -> Result<Pool, Errno> {
        let words = slots.div_ceil(64);
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let taken: Box<[AtomicU64]> = zeros(words);
        if !slots.is_multiple_of(64) {
            // Slots beyond the end are taken for good.
            taken[words - 1].store(u64::MAX << (slots % 64), SeqCst);
        }
        Ok(Pool {
            memory: Mapping::new(slots * PAGE_SIZE)?,
            slots,
            taken,
            filled: zeros(words),
            pages: zeros(slots),
            hint: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            used_max: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            free: Doorbell::new(),
        })
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// How much of it is used.
    pub fn fullness_percent(&self) -> u64 {
        (self.used.load(Relaxed) * 100 / self.slots) as u64
    }

    /// Most slots used at a time since [`Pool::reset`].
    pub fn used_max(&self) -> usize {
        self.used_max.load(SeqCst)
    }

    /// A free slot, if there is one.
    pub fn try_take(&self) -> Option<SlotIndex> {
        let words = self.taken.len();
        let start = self.hint.load(SeqCst);
        for step in 0..words {
            let number = (start + step) % words;
            let word = &self.taken[number];
            let mut bits = word.load(SeqCst);
            while bits != u64::MAX {
                let bit = (!bits).trailing_zeros();
                match word.compare_exchange(bits, bits | 1 << bit, SeqCst, SeqCst) {
                    Ok(_) => {
                        self.hint.store(number, SeqCst);
                        let used = self.used.fetch_add(1, SeqCst) + 1;
                        self.used_max.fetch_max(used, SeqCst);
                        return Some(SlotIndex(number * 64 + bit as usize));
                    }
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    /// A free slot; waits for one while `needed` says so. Counts waits in `waits`.
    pub fn take(&self, needed: impl Fn() -> bool, waits: &AtomicU64) -> Option<SlotIndex> {
        loop {
            if let Some(slot) = self.try_take() {
                return Some(slot);
            }
            let seen = self.free.look();
            self.waiting.fetch_add(1, SeqCst);
            let slot = self.try_take();
            if slot.is_none() && needed() {
                waits.fetch_add(1, SeqCst);
                self.free.wait(seen, Some(Duration::from_millis(100)));
            }
            self.waiting.fetch_sub(1, SeqCst);
            if slot.is_some() || !needed() {
                return slot;
            }
        }
    }

    /// Waits until a slot becomes free, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let seen = self.free.look();
        self.waiting.fetch_add(1, SeqCst);
        if self.used.load(SeqCst) >= self.slots {
            self.free.wait(seen, Some(timeout));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// The room of a slot.
    pub fn room(&self, slot: SlotIndex) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(slot.0 * PAGE_SIZE)
    }

    /// The slot's room holds page `index` now.
    pub fn fill(&self, slot: SlotIndex, index: usize) {
        self.pages[slot.0].store(index as u64, SeqCst);
        self.filled[slot.0 / 64].fetch_or(1 << (slot.0 % 64), SeqCst);
    }

    /// Whether any slot is filled.
    pub fn has_filled(&self) -> bool {
        self.used.load(SeqCst) > 0 && self.filled.iter().any(|word| word.load(SeqCst) != 0)
    }

    /// Filled slots with their pages, up to the length of `into`; the count. Each is given out
    /// once, to be given back.
    pub fn take_filled(&self, into: &mut [(SlotIndex, usize)]) -> usize {
        let mut count = 0;
        for (number, word) in self.filled.iter().enumerate() {
            let mut bits = word.load(SeqCst);
            while bits != 0 && count < into.len() {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                word.fetch_and(!(1 << bit), SeqCst);
                let slot = number * 64 + bit as usize;
                into[count] = (SlotIndex(slot), self.pages[slot].load(SeqCst) as usize);
                count += 1;
            }
        }
        count
    }

    /// Makes a slot free again.
    pub fn give_back(&self, slot: SlotIndex) {
        self.used.fetch_sub(1, SeqCst);
        self.taken[slot.0 / 64].fetch_and(!(1 << (slot.0 % 64)), SeqCst);
        self.hint.fetch_min(slot.0 / 64, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            self.free.ring();
        }
    }

    /// Wakes all that wait for a slot, so that they ask again whether they need one.
    pub fn wake_all(&self) {
        self.free.ring();
    }

    /// Gives the slots' memory back to the kernel. No slot is in use.
    pub fn reset(&self) {
        // SAFETY: no slot is taken, so nobody needs their bytes.
        let _ = unsafe { discard(self.memory.range()) };
        self.used_max.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_each_slot_once_and_waits_when_it_is_empty() {
        let (pool, waits) = (Pool::new(70).unwrap(), AtomicU64::new(0));
        let mut slots: Vec<SlotIndex> = (0..70)
            .map(|_| pool.take(|| false, &waits).unwrap())
            .collect();
        assert_eq!(pool.take(|| false, &waits), None);
        slots.sort_by_key(|slot| slot.0);
        slots.dedup();
        assert_eq!((slots.len(), waits.load(SeqCst)), (70, 0));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take(|| true, &waits));
            while waits.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            pool.give_back(slots[33]);
            assert_eq!(waiter.join().unwrap(), Some(slots[33]));
        });
        assert_eq!(pool.used_max(), 70);
    }

    #[test]
    fn what_is_filled_comes_out_once_with_its_bytes() {
        let (pool, waits) = (Pool::new(300).unwrap(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (pool, waits) = (&pool, &waits);
                scope.spawn(move || {
                    for number in 0..2000 {
                        let slot = pool.take(|| true, waits).unwrap();
                        // SAFETY: the slot is this thread's until it is filled.
                        unsafe { pool.room(slot).cast::<usize>().write(thread << 32 | number) };
                        pool.fill(slot, thread << 32 | number);
                    }
                });
            }
            let mut seen = std::collections::HashSet::new();
            let mut batch = [(SlotIndex(0), 0); 16];
            while seen.len() < 8000 {
                let count = pool.take_filled(&mut batch);
                for (slot, index) in &batch[..count] {
                    // SAFETY: filled and taken out, so it is ours until given back.
                    assert_eq!(unsafe { pool.room(*slot).cast::<usize>().read() }, *index);
                    assert!(seen.insert(*index));
                    pool.give_back(*slot);
                }
            }
        });
        assert!(!pool.has_filled());
    }
}
