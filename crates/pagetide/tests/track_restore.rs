//! Restoring: eagerly, lazily, along a chain, with a working set, and from files that are not what
//! they should be.
mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pagetide::track::snapshot::reader::{BlockBuffer, SnapshotFile};
use pagetide::track::{
    DirtyTracker, Image, LazyPlan, Mapping, Memory, Plan, RestoreError, Restored, SnapshotError,
    Snapshotter, TrackError, WorkingSet, read_region, read_region_with, restore,
};
use proptest::prelude::*;
use support::snapshots::no_hold;
use support::{PAGE, Plain, Random, pages_of, skipped};

const PAGES: usize = 3000;

/// A chain of three snapshots of memory with random, repeated and zero pages; the last one's path
/// and what it must show.
fn chain(directory: &std::path::Path) -> Option<(PathBuf, Vec<u8>)> {
    let plain = Plain::new(PAGES);
    // SAFETY: the mapping outlives the snapshotter.
    let memory = unsafe { Memory::from_raw_parts("memory", plain.address, plain.len) }.unwrap();
    let snapshotter = match Snapshotter::builder()
        .memory(memory)
        .incremental(true)
        .build()
    {
        Ok(snapshotter) => snapshotter,
        Err(error) => {
            skipped(&error.to_string());
            return None;
        }
    };
    let mut random = Random(3);
    let mut plan = Plan::full();
    let mut path = PathBuf::new();
    for number in 0..3 {
        for _ in 0..2000 / (number + 1) {
            let page = random.below(PAGES * 3 / 4);
            let kind = random.below(3);
            for word in 0..PAGE / 8 {
                let value = [random.next(), page as u64, 0][kind];
                plain.word(page, word).store(value, SeqCst);
            }
        }
        path = directory.join(format!("s{number}"));
        let report = snapshotter
            .snapshot(&path, plan, no_hold)
            .and_then(|s| s.wait());
        let report: Result<_, SnapshotError> = report;
        plan = Plan::since(report.unwrap().id);
    }
    Some((path, plain.bytes().to_vec()))
}

fn lazily(path: &std::path::Path, plan: LazyPlan) -> Option<Restored> {
    match restore(Image::open(path).unwrap(), plan) {
        Ok(restored) => Some(restored),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

fn bytes(restored: &Restored) -> &[u8] {
    restored.region("memory").unwrap().as_slice()
}

#[test]
fn a_chain_restores_eagerly_with_any_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, expected)) = chain(directory.path()) else {
        return;
    };
    let image = Image::open(&path).unwrap();
    for threads in [0, 1, 5] {
        let into = Plain::new(PAGES);
        // What was there before does not show through where the snapshot has zeros.
        into.bytes_mut().fill(0xEE);
        let pages = AtomicU64::new(0);
        read_region_with(&image, "memory", into.bytes_mut(), threads, &pages).unwrap();
        assert!(into.bytes() == expected && pages.load(SeqCst) > 0);
    }
    let short = read_region(&image, "memory", &mut vec![0; PAGE]);
    assert!(short.unwrap_err().to_string().contains("3000 pages"));
    let other = read_region(&image, "other", &mut vec![0; PAGE]);
    assert!(other.unwrap_err().to_string().contains("it has memory"));
}

/// Memory with pointers to itself comes back where it was, and replaces nothing.
#[test]
fn memory_comes_back_at_the_address_it_has_to_have() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, expected)) = chain(directory.path()) else {
        return;
    };
    const ADDRESS: usize = 0x2000_0000_0000;
    let there = |name| LazyPlan::default().at(name, ADDRESS);
    let Some(restored) = lazily(&path, there("memory")) else {
        return;
    };
    assert_eq!(bytes(&restored).as_ptr() as usize, ADDRESS);
    assert!(bytes(&restored) == expected);
    let taken = restore(Image::open(&path).unwrap(), there("memory")).unwrap_err();
    assert!(
        matches!(taken, RestoreError::Address { address, .. } if address == ADDRESS),
        "{taken}"
    );
    let unknown = restore(Image::open(&path).unwrap(), there("other")).unwrap_err();
    assert!(unknown.to_string().contains("it has memory"), "{unknown}");
}

#[test]
fn a_chain_restores_lazily_whoever_touches_what_first() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, expected)) = chain(directory.path()) else {
        return;
    };
    for background in [true, false] {
        let plan = if background {
            LazyPlan::default()
        } else {
            LazyPlan::default().without_background()
        };
        let Some(restored) = lazily(&path, plan) else {
            return;
        };
        let shown = bytes(&restored);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let expected = &expected;
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..2000 {
                        let page = random.below(PAGES);
                        assert!(
                            shown[page * PAGE..][..PAGE] == expected[page * PAGE..][..PAGE],
                            "page {page}"
                        );
                    }
                });
            }
        });
        if background {
            restored.wait().unwrap();
            let faults = restored.faults();
            assert!(shown == expected);
            assert_eq!(restored.faults(), faults, "plain memory faults no more");
        } else {
            assert!(restored.faults() > 10 && shown == expected);
        }
    }
}

#[test]
fn what_is_written_before_a_page_arrives_stays() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, mut expected)) = chain(directory.path()) else {
        return;
    };
    let Some(mut restored) = lazily(&path, LazyPlan::default()) else {
        return;
    };
    let mut memory = restored.take_region("memory").unwrap();
    assert!(restored.region("memory").is_none(), "it was taken");
    for page in (0..PAGES).rev().step_by(2) {
        memory.as_mut_slice()[page * PAGE + 9] = 0x77;
        expected[page * PAGE + 9] = 0x77;
    }
    restored.wait().unwrap();
    assert!(memory.as_slice() == expected);
}

#[test]
fn a_region_that_was_taken_is_served_on_its_own_and_can_be_saved_again() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, mut expected)) = chain(directory.path()) else {
        return;
    };
    for plan in [
        LazyPlan::default().without_background(),
        LazyPlan::default(),
    ] {
        let Some(mut restored) = lazily(&path, plan) else {
            return;
        };
        let memory = restored.take_region("memory").unwrap();
        drop(restored);
        assert!(memory.as_slice() == expected);
    }
    let mut restored = lazily(&path, LazyPlan::default()).unwrap();
    let mut memory = restored.take_region("memory").unwrap();
    restored.wait().unwrap();
    let span = Memory::mapping("memory", &memory).unwrap();
    let snapshotter = Snapshotter::builder().memory(span).build().unwrap();
    let again = directory.path().join("again");
    let snapshot = snapshotter.snapshot(&again, Plan::full(), no_hold).unwrap();
    memory.as_mut_slice()[3] = !expected[3];
    snapshot.wait().unwrap();
    let mut into = Mapping::new(PAGES * PAGE).unwrap();
    read_region(&Image::open(&again).unwrap(), "memory", into.as_mut_slice()).unwrap();
    assert!(into.as_slice() == expected);
    expected[3] = !expected[3];
    assert!(memory.as_slice() == expected);
}

#[test]
fn what_is_made_over_a_mapping_keeps_it() {
    let mut memory = Mapping::new(10 * PAGE - 1).unwrap();
    assert_eq!(
        (memory.len(), memory.as_slice()[10 * PAGE - 1]),
        (10 * PAGE, 0)
    );
    let span = || Memory::mapping("memory", &memory).unwrap();
    let mut tracker = DirtyTracker::new(vec![span()]).unwrap();
    let second = DirtyTracker::new(vec![span()]);
    if tracker.method() != pagetide::track::Method::Mprotect {
        assert!(matches!(second, Err(TrackError::Taken(..))), "{second:?}");
    }
    memory.as_mut_slice()[7 * PAGE] = 1;
    drop(memory);
    assert_eq!(pages_of(&tracker.take().unwrap()), [7]);
}

#[test]
fn a_recorded_working_set_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, expected)) = chain(directory.path()) else {
        return;
    };
    let touched: Vec<usize> = (0..600).map(|i| i * 7 % 2000).collect();
    let touch = |restored: &Restored| {
        let shown = bytes(restored);
        touched
            .iter()
            .for_each(|page| assert_eq!(shown[page * PAGE + 40], expected[page * PAGE + 40]));
    };
    let Some(recording) = lazily(&path, LazyPlan::default().record()) else {
        return;
    };
    touch(&recording);
    let set = recording.working_set();
    assert_eq!(
        set.pages,
        touched.iter().map(|page| *page as u64).collect::<Vec<_>>()
    );
    let file = directory.path().join("set");
    set.save(&file).unwrap();
    assert_eq!(WorkingSet::load(&file, set.snapshot).unwrap(), set);
    let mut damaged = std::fs::read(&file).unwrap();
    damaged[40] ^= 1;
    assert_eq!(WorkingSet::decode(&damaged), None);
    let Some(without) = lazily(&path, LazyPlan::default().without_background()) else {
        return;
    };
    touch(&without);
    let both = LazyPlan::default().record().replay(set.clone());
    let Some(again) = lazily(&path, both) else {
        return;
    };
    assert!(bytes(&again) == expected);
    assert!(
        !again.is_complete(),
        "what is recorded is not fetched ahead"
    );
    let Some(with) = lazily(&path, LazyPlan::default().without_background().replay(set)) else {
        return;
    };
    touch(&with);
    assert!(
        with.faults() < without.faults(),
        "{} and {}",
        with.faults(),
        without.faults()
    );
    assert!(bytes(&with) == expected);
}

#[test]
fn a_damaged_block_is_named_and_never_shown_as_zeros() {
    if pagetide_kernel::probe::populate_write().is_err() {
        return skipped(
            "before Linux 5.14 an incremental snapshot holds every page, and needs no base",
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let Some((path, _)) = chain(directory.path()) else {
        return;
    };
    let base = directory.path().join("s0");
    let mut bytes = std::fs::read(&base).unwrap();
    bytes[200] ^= 0x10;
    std::fs::write(&base, bytes).unwrap();
    let image = Image::open(&path).unwrap();
    let into = Plain::new(PAGES);
    let error = read_region(&image, "memory", into.bytes_mut());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("s0") && error.contains("block 0") && error.contains("checksum"),
        "{error}"
    );
    let Some(restored) = lazily(&path, LazyPlan::default()) else {
        return;
    };
    let error = restored.wait().unwrap_err();
    assert!(matches!(error, RestoreError::File(_)), "{error}");
    assert!(error.to_string().contains("block 0"), "{error}");
    assert_eq!(format!("{error:?}"), error.to_string());
}

/// Everything a reader does with a file; errors are fine, panics and much memory are not.
fn read_all(bytes: Vec<u8>) -> bool {
    let Ok(file) = SnapshotFile::from_source("fuzzed", Box::new(bytes)) else {
        return false;
    };
    let mut buffer = BlockBuffer::default();
    let whole = (0..file.blocks()).all(|block| file.read_block(block, &mut buffer).is_ok());
    let Ok(image) = Image::of(vec![file]) else {
        return false;
    };
    let mut page = vec![0; PAGE];
    for index in [0, 1, 17, 2999, 3000, u64::MAX] {
        let _ = image.read_page(index, &mut buffer, &mut page);
    }
    whole
}

#[test]
fn every_cut_of_a_file_is_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, _)) = chain(directory.path()) else {
        return;
    };
    let whole = std::fs::read(&path).unwrap();
    assert!(read_all(whole.clone()));
    let step = whole.len() / 300 + 1;
    for cut in (0..whole.len())
        .step_by(step)
        .chain(whole.len() - 70..whole.len())
    {
        let error = SnapshotFile::from_source("cut", Box::new(whole[..cut].to_vec()))
            .unwrap_err()
            .to_string();
        let told = if cut == 0 {
            "not a snapshot file"
        } else {
            "torn"
        };
        assert!(error.contains(told), "cut at {cut}: {error}");
    }
}

#[test]
fn every_changed_byte_is_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let Some((path, _)) = chain(directory.path()) else {
        return;
    };
    let whole = std::fs::read(&path).unwrap();
    let mut random = Random(11);
    let edges = (0..128).chain(whole.len() - 64..whole.len());
    for at in edges.chain((0..1500).map(|_| random.below(whole.len()))) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(!read_all(changed), "a change at byte {at} passed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn any_directory_with_right_checksums_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in 0usize..100,
    ) {
        use pagetide::track::snapshot::format::{Header, TRAILER_BYTES, Trailer};
        use xxhash_rust::xxh3::xxh3_64;
        thread_local!(static FILE: Option<Vec<u8>> = {
            let directory = tempfile::tempdir().unwrap();
            chain(directory.path()).map(|(path, _)| std::fs::read(path).unwrap())
        });
        let Some(mut bytes) = FILE.with(Clone::clone) else { return Ok(()) };
        let header = Header::decode(bytes[..128].try_into().unwrap()).unwrap();
        let end = bytes.len() - TRAILER_BYTES;
        let len = bytes.len() as u64;
        let trailer = Trailer::decode(bytes[end..].try_into().unwrap(), &header, len).unwrap();
        let mut directory = bytes[trailer.directory as usize..end].to_vec();
        for (at, value) in changes {
            let at = at.index(directory.len().min(400));
            directory[at] = value;
        }
        directory.truncate(directory.len() - cut.min(directory.len() / 2));
        bytes.truncate(trailer.directory as usize);
        let trailer = Trailer {
            directory_len: directory.len() as u64,
            directory_sum: xxh3_64(&directory),
            ..trailer
        };
        bytes.extend(directory);
        bytes.extend(trailer.encode());
        read_all(bytes);
    }
}

masked!();
