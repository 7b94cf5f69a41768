//! The agent's allocator: dlmalloc over mappings that no pager takes.
//!
//! The Rust default would be the program's `malloc`, whose memory the pager pages: the fault thread
//! would wait for itself.
use std::alloc::{GlobalAlloc, Layout};

use dlmalloc::{Allocator, Dlmalloc};
use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::{Mutex, MutexGuard};

struct OwnMemory;

// SAFETY: every region handed out is a fresh mapping of our own, zeroed and page-aligned, and never
// given back.
unsafe impl Allocator for OwnMemory {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match Mapping::new(size) {
            Ok(mapping) => {
                let len = mapping.len();
                (mapping.leak(), len, 0)
            }
            Err(_) => (std::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        // Kept for the next allocation: the agent's heap is small.
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        pagetide_kernel::PAGE_SIZE
    }
}

struct Heap(Mutex<Dlmalloc<OwnMemory>>);

#[global_allocator]
static HEAP: Heap = Heap(Mutex::new(Dlmalloc::new_with_allocator(OwnMemory)));

/// The heap held still, over a fork.
pub struct Still {
    _heap: MutexGuard<'static, Dlmalloc<OwnMemory>>,
}

/// Holds the heap still.
pub fn hold() -> Still {
    Still {
        _heap: HEAP.0.lock(),
    }
}

// SAFETY: dlmalloc upholds the contract of each.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's.
        unsafe { self.0.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: allocated here with this layout, by the caller's word.
        unsafe { self.0.lock().free(address, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as `alloc`.
        unsafe { self.0.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let mut heap = self.0.lock();
        // SAFETY: as `dealloc`.
        unsafe { heap.realloc(address, layout.size(), layout.align(), size) }
    }
}
