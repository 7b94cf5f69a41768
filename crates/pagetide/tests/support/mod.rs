//! What the tests of tracking share: plain memory, and saying loudly what could not run.
#![allow(dead_code)] // each test file uses its own part of this
pub mod labels;
pub mod masked;
#[path = "../../../cli/tests/support/patience.rs"]
pub mod patience;
pub mod regions;
pub mod snapshots;

use std::io::Write as _;
use std::path::PathBuf;

use pagetide::track::DirtyRange;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub const PAGE: usize = 4096;

/// A private anonymous mapping, unmapped on drop.
pub struct Plain {
    pub address: *mut u8,
    pub len: usize,
}

// SAFETY: plain memory; the tests answer for how threads share it.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

impl Plain {
    pub fn new(pages: usize) -> Plain {
        let len = pages * PAGE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        Plain {
            address: address.unwrap().cast(),
            len,
        }
    }

    pub fn pages(&self) -> usize {
        self.len / PAGE
    }

    /// The aligned word at `index` of page `page`.
    pub fn word(&self, page: usize, index: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(page < self.pages() && index < PAGE / 8);
        // SAFETY: aligned, within the mapping, and all access to it by the tests is atomic or
        // ordered by joins.
        unsafe { &*self.address.add(page * PAGE + index * 8).cast() }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping; the tests read it when nobody writes.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    #[allow(clippy::mut_from_ref)]
    pub fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: within the mapping; the tests hold one such slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody holds its address any more.
        let _ = unsafe { munmap(self.address.cast(), self.len) };
    }
}

/// The pages that a tracker reports of its only span.
pub fn pages_of(written: &[DirtyRange]) -> Vec<usize> {
    let offsets = written
        .iter()
        .flat_map(|range| range.offsets.clone().step_by(PAGE));
    offsets.map(|offset| offset / PAGE).collect()
}

/// A small generator (splitmix64): tests name their seeds.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Says loudly that a test, or a part of it, was skipped, and notes it where the test command
/// counts.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("main");
    let line = format!("SKIPPED {}::{test}: {reason}\n", env!("CARGO_CRATE_NAME"));
    std::io::stderr().write_all(line.as_bytes()).ok();
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let list = directory.parent().unwrap().join("skipped-tests.txt");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(list);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap();
}

/// Long tests run when `PAGETIDE_TESTS_FULL` is set.
pub fn full() -> bool {
    std::env::var_os("PAGETIDE_TESTS_FULL").is_some()
}
