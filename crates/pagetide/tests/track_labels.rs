//! Snapshots under writers: no snapshot shows a write without those before it.
mod support;

use pagetide::Delivery;
use support::Plain;
use support::labels::Labels;
use support::snapshots::snapshotter;

fn labels(delivery: Delivery, incremental: bool, pre_arm: bool, parked: bool, snapshots: usize) {
    let plain = Plain::new(1024);
    let Some(snapshotter) = snapshotter(&plain, delivery, incremental) else {
        return;
    };
    let labels = Labels {
        snapshotter: &snapshotter,
        pages: plain.pages(),
        writers: 4,
        word: &|page, index| plain.word(page, index),
        aside: &|_| {},
        before: &|_| {},
        incremental,
        pre_arm,
        parked,
        snapshots,
    };
    assert!(labels.run() > snapshots as u64 * 10);
}

fn rounds() -> usize {
    if support::full() { 400 } else { 60 }
}

#[test]
fn pairs_and_labels_hold_with_signals_and_a_gate() {
    labels(Delivery::Signal, false, false, false, rounds());
}

#[test]
fn pairs_and_labels_hold_with_a_thread_and_parked_writers() {
    labels(Delivery::Thread, false, false, true, rounds());
}

#[test]
fn pairs_and_labels_hold_for_incremental_pre_armed_snapshots_by_signal() {
    labels(Delivery::Signal, true, true, true, rounds());
}

#[test]
fn pairs_and_labels_hold_for_incremental_pre_armed_snapshots_by_thread() {
    labels(Delivery::Thread, true, true, false, rounds());
}

#[test]
fn pairs_and_labels_hold_for_pre_armed_full_snapshots() {
    labels(Delivery::Signal, false, true, true, rounds());
}

masked!();
