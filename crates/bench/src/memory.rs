//! Plain memory to measure on.
#![allow(unsafe_code)] // maps memory and uses it from several threads, as any program does
use std::io::{Error, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::Writer;
use pagetide::track::{Memory, TrackError};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::content::{Content, PAGE_BYTES, PAGE_WORDS};

/// What the system's huge pages may do to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Not here.
    Never,
    /// As the system decides.
    System,
    /// Asked for.
    Asked,
}

/// A private anonymous mapping.
#[derive(Debug)]
pub struct Plain {
    address: usize,
    len: usize,
}

impl Plain {
    /// Maps `len` bytes.
    pub fn new(len: usize, huge: HugePages) -> Result<Plain> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Huge pages need aligned memory: the kernel aligns large mappings by itself since 6.7;
        // before, a part at either end has small pages.
        // SAFETY: a new mapping at a place of the kernel's choice.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }
            .map_err(|errno| {
                let error = Error::from(errno);
                Error::other(format!(
                    "{len} bytes of memory cannot be mapped: {error}; name a smaller --size"
                ))
            })?;
        let advice = match huge {
            HugePages::Never => Some(Advice::LinuxNoHugepage),
            HugePages::System => None,
            HugePages::Asked => Some(Advice::LinuxHugepage),
        };
        if let Some(advice) = advice {
            // SAFETY: advice about our own mapping that changes no bytes.
            unsafe { madvise(address, len, advice) }?;
        }
        Ok(Plain {
            address: address as usize,
            len,
        })
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.len / PAGE_BYTES
    }

    /// Its pages, as the kernel contract has them.
    pub fn range(&self) -> pagetide_kernel::PageRange {
        pagetide_kernel::PageRange::covering(self.address, self.len)
    }

    /// For a tracker or a snapshotter, which is dropped before this is.
    pub fn memory(&self) -> std::result::Result<Memory, TrackError> {
        // SAFETY: mapped as long as this lives; the callers keep to the order.
        unsafe { Memory::from_raw_parts("data", self.address as *mut u8, self.len) }
    }

    /// Fills every page with half-compressible data.
    pub fn populate(&self, seed: u64) {
        let content = Content::half(seed);
        for page in 0..self.pages() {
            let words = (self.address + page * PAGE_BYTES) as *mut u64;
            // SAFETY: within the mapping, which nobody else uses yet.
            let words = unsafe { std::slice::from_raw_parts_mut(words, PAGE_WORDS) };
            content.fill(page, words);
        }
    }

    /// Reads one byte of each page.
    pub fn read_each_page(&self) {
        for page in 0..self.pages() {
            // SAFETY: within the mapping.
            unsafe { ((self.address + page * PAGE_BYTES) as *const u8).read_volatile() };
        }
    }

    /// Writes a word of `page`.
    #[inline]
    pub fn write(&self, page: usize, value: u64) {
        debug_assert!(page < self.pages());
        // SAFETY: within the mapping; writers may meet in the same word, so it is an atomic one.
        let word = unsafe { &*((self.address + page * PAGE_BYTES) as *const AtomicU64) };
        word.store(value, Relaxed);
    }

    /// All bytes, for a restore to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the whole mapping, borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.len) }
    }

    /// The bytes of some pages. What other threads write meanwhile may be seen in part.
    fn pages_bytes(&self, first: usize, count: usize) -> &[u8] {
        assert!(first + count <= self.pages());
        // SAFETY: within the mapping; used in a forked child, where nobody writes.
        unsafe {
            std::slice::from_raw_parts(
                (self.address + first * PAGE_BYTES) as *const u8,
                count * PAGE_BYTES,
            )
        }
    }

    /// Writes everything into a snapshot file at `path`, as the snapshotter would.
    pub fn write_file(&self, path: &Path) -> Result<u64> {
        let region = RegionEntry {
            name: "data".into(),
            address: self.address as u64,
            pages: self.pages() as u64,
        };
        let sink = Box::new(FileSink::create(path)?);
        let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
        for first in (0..self.pages()).step_by(BLOCK_PAGES_MAX) {
            let count = BLOCK_PAGES_MAX.min(self.pages() - first);
            let pages: [u64; BLOCK_PAGES_MAX] = std::array::from_fn(|i| (first + i) as u64);
            writer.put(0, &pages[..count], self.pages_bytes(first, count))?;
        }
        Ok(writer.finish()?.file_bytes)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it any more.
        let _ = unsafe { munmap(self.address as *mut _, self.len) };
    }
}
