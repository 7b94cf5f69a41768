//! Words in a file in memory, of which each part has one owner; and one that tells whether events
//! are being heard (`kept.rs`).
#![allow(unsafe_code)] // a shared mapping of the file; each part of it has one owner

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of a file, a number of words. The first tells whether events are being heard.
struct Map {
    base: *mut u64,
    words: usize,
}

// SAFETY: the pointer is to a mapping that this struct owns; its parts are used by one owner each.
unsafe impl Send for Map {}
// SAFETY: as above; the one word that is shared is used atomically.
unsafe impl Sync for Map {}

impl Map {
    fn hearing(&self) -> &AtomicU64 {
        // SAFETY: the first word of the mapping, which is aligned, is in no `Part`.
        unsafe { AtomicU64::from_ptr(self.base) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is this struct's, and nobody has a part of it any more.
        let _ = unsafe { munmap(self.base.cast(), self.words * 8) };
    }
}

/// Maps `file`, which has one word and then as many as `lens` together, and keeps them: parts of so
/// many words, one after the other.
///
/// # Errors
/// The kernel's.
pub(crate) fn parts<const N: usize>(
    file: impl AsFd,
    lens: [usize; N],
) -> Result<([Part; N], Hearing), Errno> {
    let words = 1 + lens.iter().sum::<usize>();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(null_mut(), words * 8, rights, MapFlags::SHARED, file, 0) }?;
    let base = base.cast::<u64>();
    let map = Arc::new(Map { base, words });
    let mut next = 1;
    let parts = lens.map(|words| {
        let (map, from) = (Arc::clone(&map), next);
        next += words;
        Part { map, from, words }
    });
    Ok((parts, Hearing(map)))
}

/// Some words of a mapping, which nobody else has.
pub(crate) struct Part {
    map: Arc<Map>,
    from: usize,
    words: usize,
}

impl Deref for Part {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        // SAFETY: the words are in the mapping, which lives as long as this; `parts` gives each
        // word to one owner, and whoever keeps the descriptor does not use it.
        unsafe { std::slice::from_raw_parts(self.map.base.add(self.from), self.words) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.map.base.add(self.from), self.words) }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Whether events are being heard.
pub(crate) struct Hearing(Arc<Map>);

impl Hearing {
    /// Events may be read from now on that are in no bits yet.
    pub fn begin(&self) {
        self.0.hearing().store(1, SeqCst);
    }

    /// All that were read are in the bits.
    pub fn end(&self) {
        self.0.hearing().store(0, SeqCst);
    }
}

impl fmt::Debug for Hearing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hearing")
    }
}
