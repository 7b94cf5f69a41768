//! A short run of what the fuzz target does, the same every time: random files, real files with
//! changes, lengths that lie. No panic, and no more memory than the file's size allows for.
#[path = "../../../fuzz/src/exercise.rs"]
mod exercise;
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use exercise::{directory_of, exercise, real_file, seal};
use pagetide::track::snapshot::format::{HEADER_BYTES, SnapshotId, TRAILER_BYTES};
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::writer::Parent;
use support::Random;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Counts bytes in use.
struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), SeqCst) + layout.size();
        MOST.fetch_max(live, SeqCst);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Blocks, buffers and one region's pages, whatever the file.
const ALLOWANCE: usize = 3 << 20;
/// Bytes in use for one byte of a file: it is held, its directory is held again, and a run of 24
/// bytes takes a few words more in an image.
const PER_BYTE: usize = 16;

fn within_bounds(bytes: &[u8]) {
    let before = LIVE.load(SeqCst);
    MOST.store(before, SeqCst);
    exercise(bytes);
    let most = MOST.load(SeqCst) - before;
    assert!(
        most <= ALLOWANCE + PER_BYTE * bytes.len(),
        "{most} bytes were in use for a file of {}",
        bytes.len()
    );
}

/// Numbers that lengths and offsets are likely to be wrong with.
fn telling(random: &mut Random) -> u64 {
    let near = [
        0,
        1,
        16,
        40,
        4096,
        1 << 16,
        1 << 31,
        1 << 32,
        1 << 40,
        1 << 63,
        u64::MAX,
    ];
    let near = near[random.below(near.len())];
    near.wrapping_add(random.below(5) as u64).wrapping_sub(2)
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, from: usize) {
    for _ in 0..1 + random.below(6) {
        if bytes.len() <= from + 8 {
            return;
        }
        let at = from + random.below(bytes.len() - from - 8);
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at..at + 8].copy_from_slice(&telling(random).to_le_bytes()),
            2 => bytes[at..at + 4].copy_from_slice(&(telling(random) as u32).to_le_bytes()),
            _ => {
                let to = from + random.below(bytes.len() - from - 8);
                bytes.copy_within(at..at + 8, to);
            }
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(from.max(bytes.len().saturating_sub(random.below(64))));
    }
}

/// The allocator counts for the whole process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn any_bytes_are_read_or_refused_within_bounds() {
    let _alone = ALONE.lock();
    let rounds = if support::full() { 400_000 } else { 60_000 };
    let mut random = Random(2026);
    let parent = Parent {
        id: SnapshotId([7; 16]),
        name: "parent".into(),
    };
    let seeds = [
        real_file(|| random.next() as u8, None),
        real_file(|| random.next() as u8, Some(&parent)),
    ];
    seeds.iter().for_each(|seed| within_bounds(seed));
    for _ in 0..rounds {
        let seed = &seeds[random.below(2)];
        let directory = directory_of(seed);
        let mut bytes = match random.below(4) {
            0 => (0..random.below(600))
                .map(|_| random.next() as u8)
                .collect(),
            _ => seed.clone(),
        };
        match random.below(5) {
            0 => change(&mut random, &mut bytes, 0),
            1 => {
                let at = random.below(bytes.len() + 1);
                seal(&mut bytes, at);
            }
            _ => {
                // Only the directory is changed, behind checksums that are right.
                bytes.truncate(bytes.len().saturating_sub(TRAILER_BYTES));
                let from = directory.min(bytes.len());
                change(&mut random, &mut bytes, from);
                bytes.resize(bytes.len() + TRAILER_BYTES, 0);
                seal(&mut bytes, from.saturating_sub(HEADER_BYTES));
            }
        }
        within_bounds(&bytes);
    }
}

/// A file that names itself as its parent is no endless chain.
#[test]
fn a_chain_that_goes_round_is_refused() {
    let _alone = ALONE.lock();
    let directory = tempfile::tempdir().unwrap();
    let id = SnapshotId([9; 16]);
    let parent = Parent {
        id,
        name: "self".into(),
    };
    let mut random = Random(1);
    let mut bytes = real_file(|| random.next() as u8, Some(&parent));
    let at = directory_of(&bytes);
    bytes[16..32].copy_from_slice(&id.0);
    seal(&mut bytes, at - HEADER_BYTES);
    let path = directory.path().join("self");
    std::fs::write(&path, bytes).unwrap();
    let error = Image::open(&path).unwrap_err().to_string();
    assert!(error.contains("goes round"), "{error}");
}
