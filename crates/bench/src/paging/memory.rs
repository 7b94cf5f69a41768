//! The memory a paging worker works on: plain, a region's, or served by a bare handler. Threads
//! share it by atomic words.
#![allow(unsafe_code)] // reads mapped memory through raw pointers, as any program does
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use pagetide::{Delivery, Region};

use super::floor::Floor;
use super::task::{Home, Task};
use crate::content::{PAGE_BYTES, PAGE_WORDS};
use crate::memory::{HugePages, Plain};

/// A span of words, a whole number of pages.
pub struct Memory {
    start: *const AtomicU64,
    pages: usize,
    owner: Owner,
}

/// What the words live in.
enum Owner {
    Plain(#[allow(dead_code)] Plain), // owned for its Drop
    Region(Region),
    Floor(Floor),
}

// SAFETY: the words are atomics, mapped for as long as the value lives; the region behind them may
// be used by any thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// What `task` is to work on.
    pub fn new(task: &Task) -> Result<Memory, String> {
        let (start, owner) = match task.home {
            Home::Plain | Home::Device => return Memory::plain(task.bytes),
            Home::Thread => Self::region(task, Delivery::Thread)?,
            Home::Signal => Self::region(task, Delivery::Signal)?,
            Home::Floor | Home::FloorStore => {
                let store = (task.home == Home::FloorStore).then_some(&*task.store);
                let floor = Floor::new(task.bytes, task.resident, store, &task.content())?;
                (floor.as_ptr(), Owner::Floor(floor))
            }
        };
        Ok(Memory {
            start: start.cast(),
            pages: task.bytes / PAGE_BYTES,
            owner,
        })
    }

    /// Plain anonymous memory.
    pub fn plain(bytes: usize) -> Result<Memory, String> {
        let plain = Plain::new(bytes / PAGE_BYTES * PAGE_BYTES, HugePages::System)
            .map_err(|error| error.to_string())?;
        Ok(Memory {
            start: plain.as_ptr().cast(),
            pages: plain.pages(),
            owner: Owner::Plain(plain),
        })
    }

    fn region(task: &Task, delivery: Delivery) -> Result<(*const u8, Owner), String> {
        let region = Region::builder()
            .length(task.bytes)
            .resident(task.resident)
            .store_uri(&task.store)
            .policy(task.policy.parse()?)
            .delivery(delivery)
            .build()
            .map_err(|error| error.to_string())?;
        Ok((region.as_ptr().cast_const(), Owner::Region(region)))
    }

    /// The region, if it is one.
    pub fn as_region(&self) -> Option<&Region> {
        match &self.owner {
            Owner::Region(region) => Some(region),
            _ => None,
        }
    }

    /// The bare handler, if there is one.
    pub fn as_floor(&self) -> Option<&Floor> {
        match &self.owner {
            Owner::Floor(floor) => Some(floor),
            _ => None,
        }
    }

    /// Pages in all.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Word `index` of `page`. Panics outside.
    pub fn word(&self, page: usize, index: usize) -> &AtomicU64 {
        assert!(page < self.pages && index < PAGE_WORDS);
        // SAFETY: the assertion keeps the word inside the mapping, which `self` keeps alive; all
        // access is atomic.
        unsafe { &*self.start.add(page * PAGE_WORDS + index) }
    }

    /// All words of `page`.
    pub fn page(&self, page: usize) -> &[AtomicU64] {
        self.words(page * PAGE_WORDS, PAGE_WORDS)
    }

    /// Words `from..from + count` counted from the start. Panics outside.
    pub fn words(&self, from: usize, count: usize) -> &[AtomicU64] {
        assert!(from + count <= self.pages * PAGE_WORDS);
        // SAFETY: the assertion keeps the words inside the mapping; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.start.add(from), count) }
    }

    /// The 32-bit half-words of a part, two a word. Panics outside.
    pub fn halves(&self, from_word: usize, count: usize) -> &[AtomicU32] {
        let words = self.words(from_word, count.div_ceil(2));
        // SAFETY: `words` checked the bounds; an aligned u64 holds two aligned u32, and nobody uses
        // this part as whole words.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) }
    }

    /// Copies `bytes` to the words from `from_word` on.
    pub fn copy_in(&self, from_word: usize, bytes: &[u8]) {
        let words = self.words(from_word, bytes.len().div_ceil(8));
        for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(whole), Relaxed);
        }
    }
}
