//! One region for many arrays: which of its pages are whose, and what of those that were freed is
//! to be given back.
#![allow(unsafe_code)]
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use offset_allocator::{Allocation, Allocator};
use pyo3::PyResult;

use crate::forked::Generation;
use crate::pages::PageSet;
use crate::region::{Shared, lock};

const PAGE: usize = 4096;
/// Parts of the arena there can be at a time, used and free ones; each costs 40 bytes.
const PARTS_MAX: u32 = 128 << 10;

/// Memory for arrays. Small ones are `malloc`'s, and so is everything in a child forked since this
/// was made, which does not have the region.
pub struct Arena {
    region: Shared,
    made_in: Generation,
    start: usize,
    length: usize,
    /// Bytes below which an array is small.
    small: usize,
    /// Freed pages that may keep their frames and slots, for whoever is next.
    retained_max: u64,
    parts: Mutex<Parts>,
}

struct Parts {
    allocator: Allocator,
    /// By first page.
    used: HashMap<u32, Part>,
    used_pages: u64,
    used_pages_max: u64,
    /// Free pages that may not be zeros.
    retained: PageSet,
}

struct Part {
    allocation: Allocation,
    pages: u32,
}

/// What the arena holds, in bytes.
pub struct Usage {
    /// Arrays in it.
    pub arrays: u64,
    /// Theirs.
    pub used: u64,
    /// The most that has been.
    pub used_max: u64,
    /// Freed, and not given back yet.
    pub retained: u64,
}

impl Arena {
    /// All of `region`, whose memory is at `start` and nobody else's, for arrays of at least
    /// `small` bytes.
    pub fn new(
        region: Shared,
        (start, length): (usize, usize),
        small: usize,
        retained_max: u64,
    ) -> Arena {
        let pages = u32::try_from(length / PAGE).unwrap_or(u32::MAX);
        let parts = Parts {
            allocator: Allocator::with_max_allocs(pages, PARTS_MAX.min(pages + 2)),
            used: HashMap::new(),
            used_pages: 0,
            used_pages_max: 0,
            retained: PageSet::new(pages),
        };
        Arena {
            region,
            made_in: Generation::now(),
            start,
            length,
            small,
            retained_max: retained_max / PAGE as u64,
            parts: Mutex::new(parts),
        }
    }

    /// What it holds now.
    pub fn usage(&self) -> Usage {
        let parts = lock(&self.parts);
        let bytes = |pages: u64| pages * PAGE as u64;
        Usage {
            arrays: parts.used.len() as u64,
            used: bytes(parts.used_pages),
            used_max: bytes(parts.used_pages_max),
            retained: bytes(parts.retained.len()),
        }
    }

    /// Gives back what was freed.
    pub fn purge(&self) -> PyResult<()> {
        self.region.get()?;
        self.give_back(&mut lock(&self.parts));
        Ok(())
    }

    /// `bytes` bytes, zeros if `zeroed`; null if there is no room for them.
    pub fn allocate(&self, bytes: usize, zeroed: bool) -> *mut u8 {
        if bytes < self.small || self.is_elsewhere() {
            // SAFETY: any size will do; what it gives is freed by `free` alone.
            return unsafe {
                match zeroed {
                    true => libc::calloc(bytes.max(1), 1),
                    false => libc::malloc(bytes.max(1)),
                }
            }
            .cast();
        }
        let Some(pages) = u32::try_from(bytes.div_ceil(PAGE)).ok() else {
            return ptr::null_mut();
        };
        let mut parts = lock(&self.parts);
        let Some(allocation) = parts.allocator.allocate(pages) else {
            return ptr::null_mut();
        };
        let first = allocation.offset;
        let old = parts.retained.remove(first..first + pages);
        parts.used.insert(first, Part { allocation, pages });
        parts.used_pages += u64::from(pages);
        parts.used_pages_max = parts.used_pages_max.max(parts.used_pages);
        drop(parts);
        if zeroed && old > 0 && !self.discard(first..first + pages) {
            // SAFETY: this part was just taken, and is so long.
            unsafe { ptr::write_bytes(self.page(first), 0, bytes) };
        }
        self.page(first)
    }

    /// Frees what `allocate` or `reallocate` gave.
    ///
    /// # Safety
    /// It is not used any more, and not freed before.
    pub unsafe fn free(&self, address: NonNull<u8>) {
        let Some(first) = self.page_of(address) else {
            // SAFETY: what is not in the arena is `malloc`'s; the rest by the caller's word.
            return unsafe { libc::free(address.as_ptr().cast()) };
        };
        // A child does not have it.
        if self.is_elsewhere() {
            return;
        }
        let mut parts = lock(&self.parts);
        let Some(part) = parts.used.remove(&first) else {
            return;
        };
        parts.allocator.free(part.allocation);
        parts.used_pages -= u64::from(part.pages);
        parts.retained.insert(first..first + part.pages);
        if parts.retained.len() > self.retained_max {
            self.give_back(&mut parts);
        }
    }

    /// Makes what is at `address` be `bytes` long, there or elsewhere; null if there is no room,
    /// and then nothing has changed.
    ///
    /// # Safety
    /// As of [`Arena::free`], unless it gives null.
    pub unsafe fn reallocate(&self, address: NonNull<u8>, bytes: usize) -> *mut u8 {
        let has = match self.page_of(address) {
            Some(first) => {
                let parts = lock(&self.parts);
                let has = parts.used.get(&first).map_or(0, |part| part.pages as usize) * PAGE;
                // A half is worth a copy.
                if bytes <= has && bytes > has / 2 {
                    return address.as_ptr();
                }
                has
            }
            None if bytes < self.small || self.is_elsewhere() => {
                // SAFETY: as in `free`.
                return unsafe { libc::realloc(address.as_ptr().cast(), bytes.max(1)) }.cast();
            }
            // SAFETY: `malloc`'s, and not freed.
            None => unsafe { libc::malloc_usable_size(address.as_ptr().cast()) },
        };
        let new = self.allocate(bytes, false);
        if !new.is_null() {
            // SAFETY: both have so many bytes, and are not the same; the old is freed once.
            unsafe {
                ptr::copy_nonoverlapping(address.as_ptr(), new, has.min(bytes));
                self.free(address);
            }
        }
        new
    }

    /// Whether this is a child forked since.
    fn is_elsewhere(&self) -> bool {
        Generation::now() != self.made_in
    }

    fn page(&self, page: u32) -> *mut u8 {
        (self.start + page as usize * PAGE) as *mut u8
    }

    /// The page that `address` is in, if that is the arena's.
    fn page_of(&self, address: NonNull<u8>) -> Option<u32> {
        let offset = (address.as_ptr() as usize).checked_sub(self.start)?;
        (offset < self.length).then_some((offset / PAGE) as u32)
    }

    /// Gives up what the pages hold; false if that cannot be done now.
    fn discard(&self, pages: Range<u32>) -> bool {
        let bytes = pages.start as usize * PAGE..pages.end as usize * PAGE;
        let region = self.region.get();
        region.is_ok_and(|region| region.discard(bytes).is_ok())
    }

    /// Gives back all that is retained. With the lock held, so that nobody is given it meanwhile.
    fn give_back(&self, parts: &mut Parts) {
        parts.retained.drain(|pages| self.discard(pages));
    }
}
