//! Regions that are tracked, against a plain model: random writes, reads, evictions, budgets and
//! snapshots.
mod support;

use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use pagetide::Delivery;
use pagetide::track::{DirtyTracker, Memory, Method, Plan, Snapshot};
use proptest::prelude::*;
use support::regions::{DELIVERIES, region, snapshotter, word};
use support::snapshots::{no_hold, restored};
use support::{PAGE, pages_of};

/// What a program may do to a region, against a plain model.
#[derive(Debug, Clone)]
enum Step {
    Write(usize, u64),
    Zero(usize),
    Read(usize),
    Evict(usize, usize),
    Budget(usize),
    Snapshot(bool),
    Take,
}

fn step(pages: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..pages, 1..u64::MAX).prop_map(|(page, value)| Step::Write(page, value)),
        1 => (0..pages).prop_map(Step::Zero),
        2 => (0..pages).prop_map(Step::Read),
        2 => (0..pages, 1..pages).prop_map(|(page, count)| Step::Evict(page, count)),
        1 => (8..pages).prop_map(Step::Budget),
        2 => any::<bool>().prop_map(Step::Snapshot),
        2 => Just(Step::Take),
    ]
}

const MODEL_PAGES: usize = 96;

/// Snapshots, complete and incremental ones, of every instant that was asked for.
fn snapshots_agree_with_the_model(delivery: Delivery, incremental: bool, steps: &[Step]) {
    let Some(region) = region(MODEL_PAGES, 24, delivery) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let snapshotter = snapshotter(&region, incremental);
    let mut model = vec![0u64; MODEL_PAGES];
    type UnderWay = Option<(Snapshot, Vec<u64>, PathBuf)>;
    let (mut under_way, mut base): (UnderWay, _) = (None, None);
    let finish = |under_way: &mut UnderWay| {
        let (snapshot, expected, path) = under_way.take()?;
        let id = snapshot.wait().unwrap().id;
        let shown = restored(&path, MODEL_PAGES);
        for (page, expected) in expected.iter().enumerate() {
            assert_eq!(
                shown.word(page, page).load(SeqCst),
                *expected,
                "page {page}"
            );
        }
        Some(id)
    };
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Write(page, value) => {
                word(&region, page, page).store(value, SeqCst);
                model[page] = value;
            }
            Step::Zero(page) => {
                word(&region, page, page).store(0, SeqCst);
                model[page] = 0;
            }
            Step::Read(page) => assert_eq!(word(&region, page, page).load(SeqCst), model[page]),
            Step::Evict(page, count) => {
                let end = (page + count).min(MODEL_PAGES);
                region.evict(page * PAGE..end * PAGE).unwrap();
            }
            Step::Budget(pages) => region.set_budget((pages * PAGE) as u64).unwrap(),
            Step::Snapshot(since) => {
                base = finish(&mut under_way).or(base);
                let path = directory.path().join(format!("s{number}"));
                let plan = match base {
                    Some(base) if since && incremental => Plan::since(base),
                    _ => Plan::full(),
                };
                let snapshot = snapshotter.snapshot(&path, plan, no_hold).unwrap();
                under_way = Some((snapshot, model.clone(), path));
            }
            Step::Take => {}
        }
    }
    finish(&mut under_way);
    for (page, value) in model.iter().enumerate() {
        assert_eq!(
            word(&region, page, page).load(SeqCst),
            *value,
            "page {page} of the region"
        );
    }
    let audit = region.pager().audit().unwrap();
    assert!(audit.holds(), "{audit:?}");
}

/// A page is in a take if and only if it was written since the one before.
fn takes_agree_with_the_model(delivery: Delivery, steps: &[Step]) {
    let Some(region) = region(MODEL_PAGES, 24, delivery) else {
        return;
    };
    let memory = Memory::region("memory", &region).unwrap();
    let mut tracker = DirtyTracker::new(vec![memory]).unwrap();
    assert_eq!(tracker.method(), Method::Pager);
    let mut written = std::collections::BTreeSet::new();
    let check = |tracker: &mut DirtyTracker, written: &mut std::collections::BTreeSet<usize>| {
        let pages = pages_of(&tracker.take().unwrap());
        assert_eq!(pages, written.iter().copied().collect::<Vec<_>>());
        written.clear();
    };
    for step in steps {
        match *step {
            Step::Write(page, value) => {
                word(&region, page, page).store(value, SeqCst);
                written.insert(page);
            }
            Step::Zero(page) => {
                word(&region, page, page).store(0, SeqCst);
                written.insert(page);
            }
            Step::Read(page) => _ = word(&region, page, page).load(SeqCst),
            Step::Evict(page, count) => {
                let end = (page + count).min(MODEL_PAGES);
                region.evict(page * PAGE..end * PAGE).unwrap();
            }
            Step::Budget(pages) => region.set_budget((pages * PAGE) as u64).unwrap(),
            Step::Snapshot(_) | Step::Take => check(&mut tracker, &mut written),
        }
    }
    check(&mut tracker, &mut written);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if support::full() { 200 } else { 24 }))]

    #[test]
    fn snapshots_of_regions_agree_with_a_plain_model(
        steps in prop::collection::vec(step(MODEL_PAGES), 1..200),
        by_signal in any::<bool>(),
        incremental in any::<bool>(),
    ) {
        let delivery = DELIVERIES[usize::from(by_signal)];
        snapshots_agree_with_the_model(delivery, incremental, &steps);
    }

    #[test]
    fn takes_from_regions_agree_with_a_plain_model(
        steps in prop::collection::vec(step(MODEL_PAGES), 1..200),
        by_signal in any::<bool>(),
    ) {
        takes_agree_with_the_model(DELIVERIES[usize::from(by_signal)], &steps);
    }
}
