//! Snapshots: one instant, every page, one at a time.
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use pagetide::Delivery;
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::{Plan, SnapshotError};
use rustix::mm::{Advice, madvise};
use support::snapshots::{Slow, no_hold, restored, snapshotter};
use support::{PAGE, Plain, skipped};

#[test]
fn a_snapshot_shows_the_instant_and_nothing_later() {
    for delivery in [Delivery::Thread, Delivery::Signal] {
        let directory = tempfile::tempdir().unwrap();
        let plain = Plain::new(1500);
        let Some(snapshotter) = snapshotter(&plain, delivery, false) else {
            return;
        };
        for page in 0..1000 {
            plain.word(page, page % 512).store(page as u64 + 1, SeqCst);
        }
        let before = plain.bytes().to_vec();
        let path = directory.path().join("one");
        let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
        // Written, untouched and never-to-be-touched pages.
        for page in (0..1500).step_by(3) {
            plain.word(page, 7).store(u64::MAX, SeqCst);
        }
        let report = snapshot.wait().unwrap();
        assert!(restored(&path, 1500).bytes() == before, "{delivery:?}");
        assert_eq!(report.pages, 1000, "{report:?}");
        assert!(plain.word(3, 7).load(SeqCst) == u64::MAX);
    }
}

#[test]
fn incremental_snapshots_hold_only_what_changed_and_restore_directly() {
    if pagetide_kernel::probe::populate_write().is_err() {
        return skipped("before Linux 5.14 an incremental snapshot holds every page");
    }
    let (plain, directory) = (Plain::new(600), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, true) else {
        return;
    };
    plain.bytes_mut()[..300 * PAGE].fill(3);
    let take = |name: &str, plan: Plan| {
        let path = directory.path().join(name);
        let report = snapshotter
            .snapshot(&path, plan, no_hold)
            .unwrap()
            .wait()
            .unwrap();
        (path, report)
    };
    let (first_path, first) = take("first", Plan::full());
    let at_first = plain.bytes().to_vec();
    plain.bytes_mut()[10 * PAGE..12 * PAGE].fill(4);
    plain.bytes_mut()[20 * PAGE..21 * PAGE].fill(0);
    plain.bytes_mut()[500 * PAGE..501 * PAGE].fill(9);
    let (second_path, second) = take("second", Plan::since(first.id));
    assert_eq!((second.pages, second.zero_pages), (3, 1), "{second:?}");
    let at_second = plain.bytes().to_vec();
    plain.bytes_mut()[11 * PAGE..13 * PAGE].fill(5);
    let (third_path, third) = take("third", Plan::since(second.id));
    assert_eq!((third.pages, third.zero_pages), (2, 0), "{third:?}");
    // Since an earlier one than the last: both differences.
    let (since_first_path, since_first) = take("since-first", Plan::since(first.id));
    assert_eq!(
        (since_first.pages, since_first.zero_pages),
        (4, 1),
        "{since_first:?}"
    );
    assert!(restored(&first_path, 600).bytes() == at_first);
    assert!(restored(&second_path, 600).bytes() == at_second);
    assert!(restored(&third_path, 600).bytes() == plain.bytes());
    assert!(restored(&since_first_path, 600).bytes() == plain.bytes());
    std::fs::remove_file(&second_path).unwrap();
    let error = Image::open(&third_path).unwrap_err().to_string();
    assert!(
        error.contains("second") && error.contains(&second.id.to_string()),
        "{error}"
    );
    assert!(Image::open(&since_first_path).is_ok());
    let unknown = snapshotter.snapshot(
        &first_path,
        Plan::since(pagetide::track::snapshot::format::SnapshotId::NONE),
        no_hold,
    );
    assert!(matches!(unknown, Err(SnapshotError::Base(_))));
}

#[test]
fn memory_that_was_emptied_between_snapshots_is_in_the_next() {
    for delivery in [Delivery::Thread, Delivery::Signal] {
        let (plain, directory) = (Plain::new(100), tempfile::tempdir().unwrap());
        let Some(snapshotter) = snapshotter(&plain, delivery, true) else {
            return;
        };
        let take = |name: &str, plan: Plan| {
            let path = directory.path().join(name);
            let snapshot = snapshotter.snapshot(&path, plan, no_hold).unwrap();
            (path, snapshot.wait().unwrap())
        };
        plain.bytes_mut().fill(1);
        let (_, first) = take("first", Plan::full());
        let emptied = (10 * PAGE, 10 * PAGE);
        // SAFETY: private anonymous memory of the test's own.
        unsafe {
            madvise(
                plain.address.add(emptied.0).cast(),
                emptied.1,
                Advice::LinuxDontNeed,
            )
        }
        .unwrap();
        plain.bytes_mut()[15 * PAGE..30 * PAGE].fill(2);
        let (second_path, second) = take("second", Plan::since(first.id));
        assert!(
            restored(&second_path, 100).bytes() == plain.bytes(),
            "{delivery:?}"
        );
        plain.bytes_mut()[12 * PAGE..13 * PAGE].fill(3);
        let (third_path, _) = take("third", Plan::since(second.id));
        assert!(
            restored(&third_path, 100).bytes() == plain.bytes(),
            "{delivery:?}"
        );
    }
}

#[test]
fn a_snapshot_never_replaces_one_that_it_builds_on() {
    let (plain, directory) = (Plain::new(100), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, true) else {
        return;
    };
    let take = |name: &str, plan: Plan| {
        let snapshot = snapshotter.snapshot(&directory.path().join(name), plan, no_hold)?;
        snapshot.wait()
    };
    plain.bytes_mut().fill(1);
    let first = take("first", Plan::full()).unwrap();
    plain.bytes_mut()[..PAGE].fill(2);
    let second = take("second", Plan::since(first.id)).unwrap();
    plain.bytes_mut()[..PAGE].fill(3);
    for name in ["first", "second"] {
        let result = take(name, Plan::since(second.id));
        assert!(
            matches!(&result, Err(SnapshotError::SameName(taken)) if taken == name),
            "{result:?}"
        );
    }
    take("third", Plan::since(second.id)).unwrap();
    assert!(restored(&directory.path().join("third"), 100).bytes() == plain.bytes());
    // One that needs none of them may take a name again.
    take("first", Plan::full()).unwrap();
    assert!(restored(&directory.path().join("first"), 100).bytes() == plain.bytes());
}

#[test]
fn one_at_a_time_and_a_hold_that_does_not_arm_is_an_error() {
    let (plain, directory) = (Plain::new(3000), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    let path = directory.path().join("s");
    let result = snapshotter.snapshot(&path, Plan::full(), |_: &mut dyn FnMut()| {});
    assert!(matches!(result, Err(SnapshotError::NotArmed)), "{result:?}");
    let sink = Slow {
        fails_after: None,
        taken: Arc::default(),
        nap: std::time::Duration::from_millis(200),
        committed: Arc::default(),
    };
    plain.bytes_mut().fill(1);
    let slow = snapshotter
        .snapshot_to(Box::new(sink), "slow".into(), Plan::full(), no_hold)
        .unwrap();
    let second = snapshotter.snapshot(&path, Plan::full(), no_hold);
    assert!(matches!(second, Err(SnapshotError::Busy)), "{second:?}");
    slow.cancel();
    let _ = slow.wait();
    snapshotter
        .snapshot(&path, Plan::full(), no_hold)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

masked!();
