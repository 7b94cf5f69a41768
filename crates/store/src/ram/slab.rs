//! The allocator of the ram store: blobs of a few sizes in slabs of shared memory.
//!
//! A slab holds blobs of one [`Class`]. Its free blobs are linked through their own first word, and
//! slabs with room are linked per class, newest first: a slab that has just lost its first blob is
//! nearly full and is refilled first, while the others drain and become empty as a whole. Empty
//! slabs keep their memory for the next put of any class; beyond a sixteenth of what is in use,
//! half of them are given back to the system.
//!
//! Slow calls (finding memory, giving it back) are made without the lock, on slabs that are on no
//! list meanwhile.

use super::class::{CLASSES, Class, SLAB};
use crate::mapping::Mapping;
use crate::sync::lock;
use crate::{ErrorKind, StoreError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Slabs per piece of the slab table.
const PIECE: usize = 4096;
const NO_SLAB: u32 = u32::MAX;
const NO_BLOB: u16 = u16::MAX;
/// Empty slabs kept at least and at most: 256 KiB and 16 MiB.
const SPARE_MIN: u64 = 4;
const SPARE_MAX: u64 = 256;
/// Slabs given back per round, so that the list of them fits the stack.
const TRIM: usize = 64;

#[derive(Clone, Copy)]
struct Slab {
    next: u32,
    prev: u32,
    used: u16,
    /// Blobs from here on were never used since the slab joined its class.
    fresh: u16,
    /// First free blob below `fresh`, or `NO_BLOB`.
    free: u16,
    class: Class,
}

struct State {
    slabs: Vec<Box<[Slab]>>,
    /// Per class, the first slab with a free blob.
    partial: [u32; CLASSES],
    /// First slab with memory and no class.
    empty: u32,
    empty_count: u64,
    /// First slab without memory below `frontier`.
    bare: u32,
    /// Slabs from here on never had memory.
    frontier: u32,
}

/// All blobs of one ram store.
pub(crate) struct Slabs {
    mapping: Mapping,
    state: Mutex<State>,
    held: AtomicU64,
    table_bytes: AtomicU64,
    /// The kernel refuses to take memory back (it is locked): stop asking.
    keep_all: AtomicBool,
}

impl Slabs {
    pub(crate) fn new(mapping: Mapping) -> Slabs {
        let state = State {
            slabs: Vec::new(),
            partial: [NO_SLAB; CLASSES],
            empty: NO_SLAB,
            empty_count: 0,
            bare: NO_SLAB,
            frontier: 0,
        };
        Slabs {
            mapping,
            state: Mutex::new(state),
            held: AtomicU64::new(0),
            table_bytes: AtomicU64::new(0),
            keep_all: AtomicBool::new(false),
        }
    }

    /// The shared memory the blobs lie in.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Bytes of shared memory held.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Relaxed) * SLAB as u64
    }

    /// Bytes of heap held to keep track.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.table_bytes.load(Relaxed)
    }

    /// Takes a blob and returns its offset in the mapping. No more than `held_max` bytes of memory
    /// are held afterwards.
    pub(crate) fn alloc(&self, class: Class, held_max: u64) -> Result<usize, StoreError> {
        loop {
            let mut state = lock(&self.state);
            if let Some(offset) = state.take_blob(class, &self.mapping) {
                return Ok(offset);
            }
            if state.empty == NO_SLAB {
                let slab = self.bare_slab(&mut state, held_max)?;
                drop(state);
                let populated = self.populate(slab);
                state = lock(&self.state);
                if let Err(error) = populated {
                    self.held.fetch_sub(1, Relaxed);
                    state.push_bare(slab);
                    return Err(error);
                }
                state.push_empty(slab);
            }
            // Another thread may take its blobs before this one has the lock again; then this one
            // brings another slab.
            state.start_class(class);
        }
    }

    fn populate(&self, slab: u32) -> Result<(), StoreError> {
        self.mapping
            .populate(slab as usize * SLAB, SLAB)
            .map_err(|error| {
                let held = self.held_bytes() - SLAB as u64;
                let context =
                    format!("find {SLAB} bytes of memory for the ram store, which holds {held}");
                StoreError::new(ErrorKind::Full, context).with_cause(error)
            })
    }

    /// Gives a blob back. `offset` came from [`alloc`](Slabs::alloc) and its blob is no longer read
    /// by anyone.
    pub(crate) fn free(&self, offset: usize) {
        let spare = {
            let mut state = lock(&self.state);
            state.free_blob(offset, &self.mapping);
            state.empty_count
        };
        let used = self.held.load(Relaxed).saturating_sub(spare);
        let allowed = (used / 16).clamp(SPARE_MIN, SPARE_MAX);
        if spare > allowed && !self.keep_all.load(Relaxed) {
            self.trim(allowed / 2);
        }
    }

    /// Gives empty slabs back to the system until `keep` are left.
    fn trim(&self, keep: u64) {
        loop {
            let mut taken = [NO_SLAB; TRIM];
            let mut count = 0;
            {
                let mut state = lock(&self.state);
                while count < TRIM && state.empty_count > keep {
                    let Some(slab) = state.pop_empty() else { break };
                    taken[count] = slab;
                    count += 1;
                }
            }
            let taken = &mut taken[..count];
            taken.sort_unstable();
            // Neighbours go in one call: the cost of a call is mostly its own.
            for run in taken.chunk_by(|a, b| a + 1 == *b) {
                let punched = self.mapping.punch(run[0] as usize * SLAB, run.len() * SLAB);
                let mut state = lock(&self.state);
                if punched.is_ok() {
                    self.held.fetch_sub(run.len() as u64, Relaxed);
                    run.iter().rev().for_each(|slab| state.push_bare(*slab));
                } else {
                    self.keep_all.store(true, Relaxed);
                    run.iter().rev().for_each(|slab| state.push_empty(*slab));
                }
            }
            if count < TRIM || self.keep_all.load(Relaxed) {
                return;
            }
        }
    }

    /// A slab without memory, counted as held from now on.
    fn bare_slab(&self, state: &mut State, held_max: u64) -> Result<u32, StoreError> {
        let held = self.held.load(Relaxed);
        if (held + 1) * SLAB as u64 > held_max {
            return Err(StoreError::new(
                ErrorKind::Full,
                format!(
                    "take {SLAB} bytes more than the {} held: max is reached",
                    held * SLAB as u64
                ),
            ));
        }
        let slab = if state.bare != NO_SLAB {
            state.pop_bare()
        } else {
            let frontier = state.frontier as usize;
            if (frontier + 1) * SLAB > self.mapping.len() {
                return Err(StoreError::new(
                    ErrorKind::Full,
                    format!(
                        "grow the ram store: its {} bytes of address space are used up",
                        self.mapping.len()
                    ),
                ));
            }
            if frontier.is_multiple_of(PIECE) {
                state.slabs.push(piece()?);
                self.table_bytes
                    .fetch_add((PIECE * size_of::<Slab>()) as u64, Relaxed);
            }
            state.frontier += 1;
            frontier as u32
        };
        self.held.fetch_add(1, Relaxed);
        Ok(slab)
    }
}

fn piece() -> Result<Box<[Slab]>, StoreError> {
    let mut slabs = Vec::new();
    slabs.try_reserve_exact(PIECE).map_err(|error| {
        StoreError::new(ErrorKind::Full, "grow the table of slabs").with_cause(error)
    })?;
    let slab = Slab {
        next: NO_SLAB,
        prev: NO_SLAB,
        used: 0,
        fresh: 0,
        free: NO_BLOB,
        class: Class::of(1),
    };
    slabs.resize(PIECE, slab);
    Ok(slabs.into_boxed_slice())
}

impl State {
    /// `slab` comes from a list or from below `frontier`, so its piece exists.
    fn slab(&mut self, slab: u32) -> &mut Slab {
        &mut self.slabs[slab as usize / PIECE][slab as usize % PIECE]
    }

    fn take_blob(&mut self, class: Class, mapping: &Mapping) -> Option<usize> {
        let number = self.partial[class.index()];
        if number == NO_SLAB {
            return None;
        }
        let base = number as usize * SLAB;
        let slab = self.slab(number);
        let blob = if slab.free == NO_BLOB {
            slab.fresh += 1;
            slab.fresh - 1
        } else {
            let blob = slab.free;
            let link = mapping.words(base + usize::from(blob) * class.size(), 8)?[0].load(Relaxed);
            // A link that something overwrote ends the list: the blobs behind it are lost, but none
            // is given out twice.
            slab.free = u16::try_from(link)
                .ok()
                .filter(|next| *next < slab.fresh)
                .unwrap_or(NO_BLOB);
            blob
        };
        slab.used += 1;
        if slab.free == NO_BLOB && slab.fresh == class.capacity() {
            self.unlink(number, class);
        }
        Some(base + usize::from(blob) * class.size())
    }

    fn free_blob(&mut self, offset: usize, mapping: &Mapping) {
        let number = (offset / SLAB) as u32;
        let slab = *self.slab(number);
        let blob = (offset % SLAB / slab.class.size()) as u16;
        if let Some(words) = mapping.words(offset, 8) {
            words[0].store(u64::from(slab.free), Relaxed);
        }
        let was_full = slab.free == NO_BLOB && slab.fresh == slab.class.capacity();
        let slab = self.slab(number);
        slab.free = blob;
        slab.used -= 1;
        let (used, class) = (slab.used, slab.class);
        match (was_full, used == 0) {
            (true, false) => self.link(number, class),
            (false, true) => {
                self.unlink(number, class);
                self.push_empty(number);
            }
            (true, true) => self.push_empty(number),
            (false, false) => {}
        }
    }

    /// Gives an empty slab, if there is one, to `class`.
    fn start_class(&mut self, class: Class) {
        if let Some(number) = self.pop_empty() {
            let slab = self.slab(number);
            (slab.used, slab.fresh, slab.free, slab.class) = (0, 0, NO_BLOB, class);
            self.link(number, class);
        }
    }

    fn link(&mut self, number: u32, class: Class) {
        let head = self.partial[class.index()];
        let slab = self.slab(number);
        (slab.prev, slab.next) = (NO_SLAB, head);
        if head != NO_SLAB {
            self.slab(head).prev = number;
        }
        self.partial[class.index()] = number;
    }

    fn unlink(&mut self, number: u32, class: Class) {
        let Slab { next, prev, .. } = *self.slab(number);
        if prev == NO_SLAB {
            self.partial[class.index()] = next;
        } else {
            self.slab(prev).next = next;
        }
        if next != NO_SLAB {
            self.slab(next).prev = prev;
        }
    }

    fn push_empty(&mut self, number: u32) {
        self.slab(number).next = self.empty;
        self.empty = number;
        self.empty_count += 1;
    }

    fn pop_empty(&mut self) -> Option<u32> {
        if self.empty == NO_SLAB {
            return None;
        }
        let number = self.empty;
        self.empty = self.slab(number).next;
        self.empty_count -= 1;
        Some(number)
    }

    fn push_bare(&mut self, number: u32) {
        self.slab(number).next = self.bare;
        self.bare = number;
    }

    fn pop_bare(&mut self) -> u32 {
        let number = self.bare;
        self.bare = self.slab(number).next;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn slabs() -> Slabs {
        Slabs::new(Mapping::reserve(64 << 20).unwrap())
    }

    #[test]
    fn blobs_do_not_overlap_and_memory_comes_back() {
        let slabs = slabs();
        for len in [20, 40, 700, 2048, 3072, 4096] {
            let class = Class::of(len);
            let offsets: Vec<usize> = (0..1000)
                .map(|_| slabs.alloc(class, u64::MAX).unwrap())
                .collect();
            let mut sorted = offsets.clone();
            sorted.sort_unstable();
            assert!(
                sorted
                    .windows(2)
                    .all(|pair| pair[1] - pair[0] >= class.size())
            );
            assert!(
                sorted
                    .iter()
                    .all(|offset| offset / SLAB == (offset + class.size() - 1) / SLAB)
            );
            offsets.iter().for_each(|offset| slabs.free(*offset));
            assert!(slabs.held_bytes() <= SPARE_MIN * SLAB as u64);
        }
    }

    #[test]
    fn freed_blobs_are_used_before_new_memory() {
        let slabs = slabs();
        let class = Class::of(2000);
        let offsets: Vec<usize> = (0..320)
            .map(|_| slabs.alloc(class, u64::MAX).unwrap())
            .collect();
        let held = slabs.held_bytes();
        let freed: HashSet<usize> = offsets.iter().copied().step_by(3).collect();
        freed.iter().for_each(|offset| slabs.free(*offset));
        let again: HashSet<usize> = freed
            .iter()
            .map(|_| slabs.alloc(class, u64::MAX).unwrap())
            .collect();
        assert_eq!(freed, again);
        assert_eq!(slabs.held_bytes(), held);
    }

    #[test]
    fn the_limit_is_kept_and_recovered_from() {
        let slabs = slabs();
        let limit = 3 * SLAB as u64;
        let class = Class::of(4096);
        let mut offsets = Vec::new();
        let error = loop {
            match slabs.alloc(class, limit) {
                Ok(offset) => offsets.push(offset),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind, ErrorKind::Full);
        assert_eq!(offsets.len(), 48);
        // Whole slabs freed by one class serve another.
        offsets.drain(..32).for_each(|offset| slabs.free(offset));
        assert!(slabs.alloc(Class::of(100), limit).is_ok());
        assert!(slabs.held_bytes() <= limit);
    }
}
