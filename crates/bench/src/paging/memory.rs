//! The memory a paging worker works on: plain, or a region's. Threads share it by atomic words.
#![allow(unsafe_code)] // maps anonymous memory and reads it through raw pointers, as any program does
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagetide::{Delivery, Region};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::floor::Floor;
use super::worker::Task;
use crate::content::{Content, PAGE_BYTES, PAGE_WORDS};

/// A span of words, a whole number of pages.
pub struct Memory {
    start: *const AtomicU64,
    pages: usize,
    /// Owns the memory, if it is a region's.
    region: Option<Region>,
    /// Owns the memory, if a bare handler serves it.
    floor: Option<Floor>,
}

// SAFETY: the words are atomics, mapped for as long as the value lives; the region behind them may
// be used by any thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// Plain anonymous memory, kept until [`Memory::free`].
    pub fn plain(bytes: usize) -> Result<Memory, String> {
        let pages = bytes / PAGE_BYTES;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                pages * PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| format!("mapping {bytes} bytes: {error}"))?;
        Ok(Memory {
            start: start.cast_const().cast(),
            pages,
            region: None,
            floor: None,
        })
    }

    /// A region's memory.
    pub fn region(task: &Task, delivery: Delivery) -> Result<Memory, String> {
        let region = Region::builder()
            .length(task.bytes)
            .resident(task.resident)
            .store_uri(&task.store)
            .policy(task.policy)
            .delivery(delivery)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Memory {
            start: region.as_ptr().cast_const().cast(),
            pages: task.bytes / PAGE_BYTES,
            region: Some(region),
            floor: None,
        })
    }

    /// Memory served by a bare handler, with `content` from a store or with nothing of meaning.
    pub fn floor(task: &Task, with_store: bool, content: &Content) -> Result<Memory, String> {
        let store = with_store.then_some(&*task.store);
        let floor = Floor::new(task.bytes, task.resident, store, content)?;
        Ok(Memory {
            start: floor.as_ptr().cast(),
            pages: task.bytes / PAGE_BYTES,
            region: None,
            floor: Some(floor),
        })
    }

    /// Gives plain memory back.
    pub fn free(self) {
        if self.region.is_none() && self.floor.is_none() {
            // SAFETY: mapped by `plain`, and by consuming `self` no reference into it is left.
            unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.pages * PAGE_BYTES) }
                .ok();
        }
    }

    /// The region, if it is one.
    pub fn as_region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// The bare handler, if there is one.
    pub fn as_floor(&self) -> Option<&Floor> {
        self.floor.as_ref()
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
        let first = self.word(page, 0);
        // SAFETY: as `word`, for all words of the page.
        unsafe { std::slice::from_raw_parts(first, PAGE_WORDS) }
    }

    /// Words `from..from + count` counted from the start. Panics outside.
    pub fn words(&self, from: usize, count: usize) -> &[AtomicU64] {
        assert!(from + count <= self.pages * PAGE_WORDS);
        // SAFETY: the assertion keeps the words inside the mapping; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.start.add(from), count) }
    }

    /// The 32-bit half-words of a part, two a word. Panics outside.
    pub fn halves(&self, from_word: usize, count: usize) -> &[std::sync::atomic::AtomicU32] {
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
