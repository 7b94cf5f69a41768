//! Tracking and snapshots of regions that page to a store: whatever is evicted, fetched or resized
//! meanwhile, a snapshot shows its instant and a tracker misses no write.
mod support;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use pagetide::Delivery;
use pagetide::track::read_region;
use pagetide::track::snapshot::reader::SnapshotFile;
use pagetide::track::{DirtyTracker, Image, Memory, Plan, SnapshotError, Snapshotter, TrackError};
use support::labels::Labels;
use support::regions::{DELIVERIES, region, snapshotter, word};
use support::snapshots::{Slow, StopsAtEnd, no_hold, restored};
use support::{PAGE, Plain, Random, pages_of};

#[test]
fn a_snapshot_of_an_evicted_region_takes_pages_from_the_store_and_faults_nothing_in() {
    for delivery in DELIVERIES {
        let Some(region) = region(2000, 200, delivery) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let snapshotter = snapshotter(&region, false);
        (0..1500).for_each(|page| word(&region, page, page % 512).store(page as u64 + 1, SeqCst));
        let (before, path) = (region.stats(), directory.path().join("s"));
        let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
        let report = snapshot.wait().unwrap();
        let after = region.stats();
        assert_eq!(
            after.fetches, before.fetches,
            "{delivery:?}: pages were faulted in"
        );
        assert_eq!(report.pages, 1500, "{report:?}");
        let shown = restored(&path, 2000);
        for page in 0..2000 {
            let expected = if page < 1500 { page as u64 + 1 } else { 0 };
            assert_eq!(
                shown.word(page, page % 512).load(SeqCst),
                expected,
                "{delivery:?} {page}"
            );
        }
    }
}

#[test]
fn what_is_written_evicted_and_fetched_while_it_is_armed_is_not_in_the_snapshot() {
    for delivery in DELIVERIES {
        for incremental in [false, true] {
            let Some(region) = region(1200, 100, delivery) else {
                return;
            };
            let snapshotter = snapshotter(&region, incremental);
            (0..1000).for_each(|page| word(&region, page, 0).store(page as u64 + 1, SeqCst));
            let sink = Slow {
                fails_after: None,
                taken: std::sync::Arc::default(),
                nap: Duration::from_millis(1),
                committed: std::sync::Arc::default(),
            };
            let taken = std::sync::Arc::clone(&sink.taken);
            let mut random = Random(3);
            // Incompressible, so that the slow sink keeps the sweep behind the writers.
            for page in 0..1000 {
                (1..512).for_each(|index| word(&region, page, index).store(random.next(), SeqCst));
            }
            let copy: Vec<u64> = (0..1200 * 512)
                .map(|at| word(&region, at / 512, at % 512).load(SeqCst))
                .collect();
            let snapshot = snapshotter
                .snapshot_to(Box::new(sink), "s".into(), Plan::full(), no_hold)
                .unwrap();
            for round in 0..3u64 {
                for page in (0..1200).rev() {
                    word(&region, page, 0).store(u64::MAX - round, SeqCst);
                }
                region.evict(0..region.len()).unwrap();
                region
                    .set_budget(((40 + 30 * round as usize) * PAGE) as u64)
                    .unwrap();
            }
            snapshot.wait().unwrap();
            let bytes = std::mem::take(&mut *taken.lock().unwrap());
            let file = SnapshotFile::from_source("s", Box::new(bytes));
            let (image, into) = (Image::of(vec![file.unwrap()]).unwrap(), Plain::new(1200));
            read_region(&image, "memory", into.bytes_mut()).unwrap();
            for (at, expected) in copy.iter().enumerate() {
                let shown = into.word(at / 512, at % 512).load(SeqCst);
                assert_eq!(
                    shown,
                    *expected,
                    "{delivery:?} {incremental} page {}",
                    at / 512
                );
            }
            (0..1200).for_each(|page| {
                assert_eq!(word(&region, page, 0).load(SeqCst), u64::MAX - 2, "{page}")
            });
            assert!(region.pager().audit().unwrap().holds());
        }
    }
}

/// As the labels of plain memory, with a budget that changes.
fn labels(delivery: Delivery, incremental: bool, parked: bool, snapshots: usize) {
    const PAGES: usize = 600;
    let Some(region) = region(PAGES, 150, delivery) else {
        return;
    };
    let snapshotter = snapshotter(&region, incremental);
    let labels = Labels {
        snapshotter: &snapshotter,
        pages: PAGES,
        writers: 3,
        word: &|page, index| word(&region, page, index),
        // Reading brings pages back clean, by a fault or without.
        aside: &|random| {
            let _ = region.get(random.below(PAGES)).unwrap();
            word(&region, random.below(PAGES), 500).load(SeqCst);
        },
        before: &|number| {
            let budget = (60 + number * 37 % 200) * PAGE;
            region.set_budget(budget as u64).unwrap();
        },
        incremental,
        pre_arm: incremental,
        parked,
        snapshots,
    };
    labels.run();
}

fn rounds() -> usize {
    if support::full() { 300 } else { 40 }
}

#[test]
fn labels_hold_by_thread_with_a_gate() {
    labels(Delivery::Thread, false, false, rounds());
}

#[test]
fn labels_hold_by_signal_with_parked_writers() {
    labels(Delivery::Signal, false, true, rounds());
}

#[test]
fn labels_hold_for_incremental_snapshots_by_signal() {
    labels(Delivery::Signal, true, false, rounds());
}

#[test]
fn labels_hold_for_incremental_snapshots_by_thread_with_parked_writers() {
    labels(Delivery::Thread, true, true, rounds());
}

/// Every write of every thread is reported, while pages come and go.
#[test]
fn no_write_is_lost_while_threads_write_and_pages_come_and_go() {
    const PAGES: usize = 256;
    const WRITERS: usize = 3;
    for delivery in DELIVERIES {
        let Some(region) = region(PAGES, 64, delivery) else {
            return;
        };
        let memory = Memory::region("memory", &region).unwrap();
        let mut tracker = DirtyTracker::new(vec![memory]).unwrap();
        let stop = AtomicBool::new(false);
        // What each page held when it was last reported: a page that holds anything else was
        // written and not reported since.
        let mut seen = vec![[0u64; WRITERS]; PAGES];
        let mut note = |tracker: &mut DirtyTracker| {
            for page in pages_of(&tracker.take().unwrap()) {
                for (writer, seen) in seen[page].iter_mut().enumerate() {
                    *seen = word(&region, page, writer).load(SeqCst);
                }
            }
        };
        let takes = if support::full() { 20_000 } else { 1500 };
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (region, stop) = (&region, &stop);
                scope.spawn(move || {
                    let mut random = Random(writer as u64);
                    while !stop.load(SeqCst) {
                        word(region, random.below(PAGES), writer).fetch_add(1, SeqCst);
                    }
                });
            }
            let _stops = StopsAtEnd(&stop);
            (0..takes).for_each(|_| note(&mut tracker));
        });
        note(&mut tracker);
        for (page, seen) in seen.iter().enumerate() {
            for (writer, seen) in seen.iter().enumerate() {
                let now = word(&region, page, writer).load(SeqCst);
                assert_eq!(
                    now, *seen,
                    "{delivery:?}: page {page} was written and not reported"
                );
            }
        }
    }
}

#[test]
fn a_fork_and_the_end_of_the_region_in_the_middle_change_nothing() {
    for delivery in DELIVERIES {
        let Some(region) = region(1000, 100, delivery) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let snapshotter = snapshotter(&region, false);
        (0..1000).for_each(|page| word(&region, page, 0).store(page as u64 + 1, SeqCst));
        let path = directory.path().join("s");
        let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
        // SAFETY: the child leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        (0..1000)
            .rev()
            .for_each(|page| word(&region, page, 0).store(0, SeqCst));
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        // The snapshotter keeps the memory alive.
        drop(region);
        snapshot.wait().unwrap();
        let shown = restored(&path, 1000);
        (0..1000).for_each(|page| assert_eq!(shown.word(page, 0).load(SeqCst), page as u64 + 1));
        drop(snapshotter);
    }
}

#[test]
fn a_region_and_a_mapping_are_one_instant_and_a_second_watcher_is_refused() {
    let (Some(region), plain) = (region(300, 50, Delivery::Thread), Plain::new(300)) else {
        return;
    };
    // SAFETY: the mapping outlives the snapshotter.
    let mapping = unsafe { Memory::from_raw_parts("mapping", plain.address, plain.len) }.unwrap();
    let builder = Snapshotter::builder().memory(mapping.clone());
    let memory = || Memory::region("memory", &region).unwrap();
    let snapshotter = builder.memory(memory()).build().unwrap();
    let second = Snapshotter::builder().memory(memory()).build();
    assert!(
        matches!(second, Err(SnapshotError::Track(TrackError::Taken(..)))),
        "{second:?}"
    );
    let tracker = DirtyTracker::new(vec![memory()]);
    assert!(matches!(tracker, Err(TrackError::Taken(..))), "{tracker:?}");
    let mixed = DirtyTracker::new(vec![mapping, memory()]);
    assert!(matches!(mixed, Err(TrackError::Mixed)), "{mixed:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    for page in 0..300 {
        word(&region, page, 0).store(1, SeqCst);
        plain.word(page, 0).store(1, SeqCst);
    }
    let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
    for page in 0..300 {
        word(&region, page, 0).store(2, SeqCst);
        plain.word(page, 0).store(2, SeqCst);
    }
    snapshot.wait().unwrap();
    let image = Image::open(&path).unwrap();
    for name in ["memory", "mapping"] {
        let into = Plain::new(300);
        read_region(&image, name, into.bytes_mut()).unwrap();
        assert!(
            (0..300).all(|page| into.word(page, 0).load(SeqCst) == 1),
            "{name}"
        );
    }
    drop(snapshotter);
    assert!(DirtyTracker::new(vec![memory()]).is_ok());
}

masked!();

#[test]
fn a_snapshot_of_a_source_has_its_untouched_pages_and_nothing_is_discarded_meanwhile() {
    for delivery in DELIVERIES {
        if region(1, 1, delivery).is_none() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..700 * PAGE)
            .map(|byte| (byte / 9 % 250) as u8 + 1)
            .collect();
        let path = directory.path().join("source");
        std::fs::write(&path, &bytes).unwrap();
        let source = std::fs::File::open(&path).unwrap();
        let builder = pagetide::Region::builder().source(source, 0, bytes.len() as u64);
        let builder = builder.resident((32 * PAGE) as u64).delivery(delivery);
        let region = builder.build().unwrap();
        word(&region, 650, 0).store(77, SeqCst);
        let snapshotter = snapshotter(&region, false);
        let refused = region.discard(0..PAGE).unwrap_err().to_string();
        assert!(refused.contains("tracked or snapshotted"), "{refused}");
        let path = directory.path().join("s");
        let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
        assert_eq!(snapshot.wait().unwrap().pages, 700);
        let shown = restored(&path, 700);
        for page in 0..700 {
            let at = page * PAGE + 8;
            let expected = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(
                shown.word(page, 1).load(SeqCst),
                expected,
                "{delivery:?} {page}"
            );
        }
        assert_eq!(shown.word(650, 0).load(SeqCst), 77);
    }
}
