//! A tier: a fast, small store in front of a large one. `ram:?max=1G&then=URI`.
//!
//! Pages are put in front. When that is full, the pages that were put longest ago move behind, in
//! batches: read, put behind, and only once that store has acknowledged them dropped in front. So
//! at each moment at least one store has a page; one that fails to take pages leaves them where
//! they are, and the put that needed their room is an error.
//!
//! A slot's word says which store has the page, and the slot there. A reader takes the word, reads,
//! and looks at the word again: if the page has moved meanwhile, what was read may be another's,
//! and is read again from where it is now.
//!
//! A forked child reads through a copy of the words of one moment. While there is one, nothing
//! moves, and pages that have no room in front are put behind.

use crate::device::Device;
use crate::slots::{Kind, SlotTable, unused};
use crate::sync::lock;
use crate::{Capabilities, ErrorKind, PAGE_SIZE, Page, Slot, StoreError, Usage};
use std::collections::VecDeque;
use std::slice::from_ref;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

/// Pages that move at a time.
const MOVED: usize = 64;
const BEHIND: u64 = 1 << 32;

/// Two stores as one.
pub(crate) struct Tier {
    front: Box<dyn Device>,
    behind: Box<dyn Device>,
    slots: SlotTable,
    /// Slots in front in the order they were put, each with its word then; some are gone or put
    /// anew meanwhile.
    order: Mutex<VecDeque<(Slot, u64)>>,
    /// Held by whoever moves pages or deletes: a page that is moving must not be deleted under its
    /// mover.
    moving: Mutex<()>,
    frozen: AtomicBool,
    put_pages: AtomicU64,
    /// The most bytes of shared memory in front, beside the limit that it has.
    front_max: AtomicU64,
}

fn word(behind: bool, slot: Slot) -> u64 {
    u64::from(slot.0) | if behind { BEHIND } else { 0 }
}

impl Tier {
    pub(crate) fn new(front: Box<dyn Device>, behind: Box<dyn Device>) -> Result<Tier, StoreError> {
        Ok(Tier {
            front,
            behind,
            slots: SlotTable::new()?,
            order: Mutex::new(VecDeque::new()),
            moving: Mutex::new(()),
            frozen: AtomicBool::new(false),
            put_pages: AtomicU64::new(0),
            front_max: AtomicU64::new(u64::MAX),
        })
    }

    fn device(&self, word: u64) -> (&dyn Device, Slot) {
        let device = if word & BEHIND == 0 {
            &self.front
        } else {
            &self.behind
        };
        (&**device, Slot(word as u32))
    }

    /// The word of a slot in use.
    fn word(&self, slot: Slot) -> Option<u64> {
        self.slots.load(slot).map(|(_, word)| word)
    }

    /// Moves the oldest pages in front behind. False: none is there.
    fn make_room(&self) -> Result<bool, StoreError> {
        let _moving = lock(&self.moving);
        let mut chosen: Vec<(Slot, u64)> = Vec::with_capacity(MOVED);
        {
            let mut order = lock(&self.order);
            while chosen.len() < MOVED
                && let Some((slot, word)) = order.pop_front()
            {
                // Others were deleted, or put anew and come again later in the list.
                if self.word(slot) == Some(word) && !chosen.contains(&(slot, word)) {
                    chosen.push((slot, word));
                }
            }
        }
        if chosen.is_empty() {
            return Ok(false);
        }
        let moved = self.move_behind(&chosen);
        if moved.is_err() {
            // They are still in front, and still the oldest.
            let mut order = lock(&self.order);
            chosen
                .iter()
                .rev()
                .for_each(|entry| order.push_front(*entry));
        }
        moved.map(|()| true)
    }

    fn move_behind(&self, chosen: &[(Slot, u64)]) -> Result<(), StoreError> {
        let from: Vec<Slot> = chosen.iter().map(|(_, word)| Slot(*word as u32)).collect();
        let mut pages = vec![Page::ZERO; chosen.len()];
        self.front.get_many(&from, &mut pages)?;
        let mut to = vec![Slot(0); chosen.len()];
        self.behind
            .put(&pages.iter().collect::<Vec<_>>(), &mut to)?;
        // Acknowledged: from here on the page is behind, and only now is it dropped in front.
        for ((slot, _), to) in chosen.iter().zip(&to) {
            self.slots.change(*slot, word(true, *to));
        }
        // Whoever reads what is put in the freed room sees the new words as well.
        fence(SeqCst);
        self.front.delete(&from);
        Ok(())
    }
}

impl Tier {
    /// Puts all of `pages` somewhere, or none.
    fn put_words(&self, pages: &[&Page], words: &mut [u64]) -> Result<(), StoreError> {
        let mut inner = vec![Slot(0); pages.len()];
        // What is put at once must fit in front at once.
        let step = self.front.capabilities().put_batch_pages.max(1);
        let mut done = 0;
        while done < pages.len() {
            let next = (done + step).min(pages.len());
            let (some, places) = (&pages[done..next], &mut inner[done..next]);
            let mut is_behind = false;
            let put = match self.front.put(some, places) {
                Err(error) if error.kind == ErrorKind::Full => {
                    let made_room = match self.frozen.load(Acquire) {
                        true => Ok(false),
                        false => self.make_room(),
                    };
                    match made_room {
                        Ok(true) => continue,
                        // Nothing is in front that may move, and these do not fit there.
                        Ok(false) => {
                            is_behind = true;
                            self.behind.put(some, places)
                        }
                        Err(error) => Err(error),
                    }
                }
                put => put,
            };
            if let Err(error) = put {
                self.drop_words(&words[..done]);
                return Err(error);
            }
            for (word_of, place) in words[done..next].iter_mut().zip(&inner[done..next]) {
                *word_of = word(is_behind, *place);
            }
            done = next;
        }
        Ok(())
    }

    /// Has the oldest pages in front make way, where that holds more than it may by now. More of
    /// them than are put, so that it comes down to that; what they leave of a slab may be used
    /// again, so it is done at every put.
    fn keep_to_bound(&self) {
        let is_over = self.front.usage().shared_bytes > self.front_max.load(Relaxed);
        if is_over && !self.frozen.load(Acquire) {
            // What does not go stays in front, and the put goes on there.
            let _ = self.make_room();
        }
    }

    fn drop_words(&self, words: &[u64]) {
        for word in words {
            let (device, inner) = self.device(*word);
            device.delete(from_ref(&inner));
        }
    }
}

impl Device for Tier {
    fn capabilities(&self) -> Capabilities {
        let (front, behind) = (self.front.capabilities(), self.behind.capabilities());
        Capabilities {
            scheme: "tier",
            put_batch_pages: front.put_batch_pages,
            get_sleeps: behind.get_sleeps,
            get_allocates: behind.get_allocates,
            spills: behind.spills,
        }
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        self.slots.take(slots, u64::MAX)?;
        self.keep_to_bound();
        let mut words = vec![0; pages.len()];
        if let Err(error) = self.put_words(pages, &mut words) {
            self.slots.give_back(slots);
            return Err(error);
        }
        let mut order = lock(&self.order);
        for (slot, word) in slots.iter().zip(&words) {
            self.slots.set(*slot, Kind::Plain, *word);
            if word & BEHIND == 0 {
                order.push_back((*slot, *word));
            }
        }
        // Entries of pages that are gone are dropped when they are most of the list.
        if order.len() > 4096 && order.len() as u64 > 4 * self.slots.used() {
            order.retain(|(slot, word)| self.word(*slot) == Some(*word));
        }
        self.put_pages.fetch_add(pages.len() as u64, Relaxed);
        Ok(())
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        loop {
            let before = self.word(slot).ok_or_else(|| unused(slot))?;
            let (device, inner) = self.device(before);
            let read = device.get(inner, page);
            fence(Acquire);
            if self.word(slot) == Some(before) {
                return read;
            }
        }
    }

    /// Those behind are read together.
    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        let mut done = 0;
        while done < slots.len() {
            let first = self.word(slots[done]).ok_or_else(|| unused(slots[done]))?;
            let mut inner = [Slot(0); MOVED];
            let mut words = [0; MOVED];
            let mut len = 0;
            while len < MOVED
                && let Some(slot) = slots.get(done + len)
                && let Some(word) = self.word(*slot)
                && (word ^ first) & BEHIND == 0
            {
                (inner[len], words[len]) = (Slot(word as u32), word);
                len += 1;
            }
            let (device, _) = self.device(first);
            let some = &mut pages[done..done + len];
            let read = device.get_many(&inner[..len], some);
            fence(Acquire);
            let moved = (0..len).any(|at| self.word(slots[done + at]) != Some(words[at]));
            if moved {
                // Rare: page by page, each as often as it takes.
                for at in done..done + len {
                    self.get(slots[at], &mut pages[at])?;
                }
            } else {
                read?;
            }
            done += len;
        }
        Ok(())
    }

    fn delete(&self, slots: &[Slot]) {
        let _moving = lock(&self.moving);
        for slot in slots {
            if let Some((_, word)) = self.slots.clear(*slot) {
                self.drop_words(&[word]);
                self.slots.give_back(from_ref(slot));
            }
        }
    }

    fn usage(&self) -> Usage {
        let (front, behind) = (self.front.usage(), self.behind.usage());
        Usage {
            pages: self.slots.used(),
            bytes: front.bytes + behind.bytes + self.slots.bytes(),
            bytes_max: 0,
            memory_bytes: front.memory_bytes + behind.memory_bytes + self.slots.bytes(),
            shared_bytes: front.shared_bytes + behind.shared_bytes,
            put_bytes: self.put_pages.load(Relaxed) * PAGE_SIZE as u64,
            put_bytes_stored: front.put_bytes_stored,
            same_filled: front.same_filled,
        }
    }

    fn hold_at_most(&self, shared_bytes: u64) {
        self.front_max.store(shared_bytes, Relaxed);
        self.front.hold_at_most(shared_bytes);
        let held = self.front.usage().shared_bytes;
        self.behind.hold_at_most(shared_bytes.saturating_sub(held));
    }

    fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Release);
        self.front.set_frozen(frozen);
        self.behind.set_frozen(frozen);
    }

    fn server_cpu(&self) -> Option<u32> {
        self.behind.server_cpu()
    }

    fn descriptors(&self) -> Vec<i32> {
        let mut all = self.front.descriptors();
        all.extend(self.behind.descriptors());
        all
    }

    fn inherit(&self, fds: &[i32]) {
        let (front, behind) = fds.split_at(self.front.descriptors().len().min(fds.len()));
        self.front.inherit(front);
        self.behind.inherit(behind);
    }
}
