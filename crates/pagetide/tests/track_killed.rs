//! A process killed while it saves, and one of many threads that saves: what is under the
//! snapshot's name is always whole.
mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pagetide::Delivery;
use pagetide::track::snapshot::Plan;
use pagetide::track::snapshot::reader::{BlockBuffer, SnapshotFile};
use pagetide::track::{ParkThreads, Snapshotter};
use support::patience::{fewer, up_to};
use support::snapshots::{StopsAtEnd, memory, no_hold, restored, snapshotter};
use support::{Plain, Random};

const CHILD: &str = "PAGETIDE_TEST_SAVES_TO";
const PAGES: usize = 3000;

/// Saves for ever. Word 0 of each page of a save is the number of that save.
fn child(path: &Path) {
    let plain = Plain::new(PAGES);
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    let mut random = Random(3);
    let words = plain.bytes_mut().chunks_exact_mut(8);
    words.for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    for number in 1.. {
        (0..PAGES).for_each(|page| plain.word(page, 0).store(number, SeqCst));
        let snapshot = snapshotter.snapshot(path, Plan::full(), no_hold).unwrap();
        (0..PAGES)
            .rev()
            .for_each(|page| plain.word(page, 0).store(u64::MAX, SeqCst));
        snapshot.wait().unwrap();
    }
}

#[test]
fn killed_at_any_point_the_file_is_absent_or_whole_and_what_was_left_is_cleared() {
    if let Some(path) = std::env::var_os(CHILD) {
        return child(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("saved");
    let plain = Plain::new(1);
    if snapshotter(&plain, Delivery::Thread, false).is_none() {
        return;
    }
    let mut random = Random(11);
    let (mut whole, mut torn) = (0, 0);
    for _ in 0..25 {
        let test = "killed_at_any_point_the_file_is_absent_or_whole_and_what_was_left_is_cleared";
        let mut saving = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The first is let be until it has saved something.
        let begun = Instant::now();
        while !path.exists() && begun.elapsed() < up_to(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(random.below(150) as u64));
        saving.kill().unwrap();
        saving.wait().unwrap();
        let names = std::fs::read_dir(directory.path()).unwrap();
        torn += names
            .filter(|entry| entry.as_ref().unwrap().file_name() != "saved")
            .count();
        if path.exists() {
            let file = SnapshotFile::open(&path).unwrap();
            let mut buffer = BlockBuffer::default();
            for block in 0..file.blocks() {
                file.read_block(block, &mut buffer).unwrap();
            }
            let shown = restored(&path, PAGES);
            let number = shown.word(0, 0).load(SeqCst);
            assert!(number > 0 && number < u64::MAX);
            for page in 0..PAGES {
                assert_eq!(shown.word(page, 0).load(SeqCst), number, "page {page}");
            }
            whole += 1;
        }
    }
    assert!(whole > 0, "nobody ever completed a save");
    let own = Plain::new(PAGES);
    let snapshotter = Snapshotter::builder()
        .memory(memory(&own, "memory"))
        .build()
        .unwrap();
    let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
    snapshot.wait().unwrap();
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 1, "of {torn} temporary files some are still there");
}

#[test]
fn hundreds_of_threads_are_parked_for_one_instant() {
    const THREADS: usize = 300;
    let (plain, directory) = (Plain::new(PAGES), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (plain, stop) = (&plain, &stop);
            scope.spawn(move || {
                // Each has two words in pages far apart: the second is never ahead of the first.
                let (page, word) = (number % 10, number / 10);
                while !stop.load(SeqCst) {
                    plain.word(page, word).fetch_add(1, SeqCst);
                    plain.word(PAGES - 1 - page, word).fetch_add(1, SeqCst);
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        let _stops = StopsAtEnd(&stop);
        for number in 0..fewer(10) {
            let path = directory.path().join(format!("s{number}"));
            let patience = up_to(30);
            let hold = ParkThreads { patience };
            let snapshot = snapshotter.snapshot(&path, Plan::full(), hold).unwrap();
            snapshot.wait().unwrap();
            let shown = restored(&path, PAGES);
            for thread in 0..THREADS {
                let (page, word) = (thread % 10, thread / 10);
                let first = shown.word(page, word).load(SeqCst);
                let second = shown.word(PAGES - 1 - page, word).load(SeqCst);
                assert!(
                    second <= first && first <= second + 1,
                    "snapshot {number}, thread {thread}: {first} and {second}"
                );
            }
        }
    });
}

masked!();
