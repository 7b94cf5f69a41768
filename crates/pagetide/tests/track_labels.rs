//! Snapshots under writers: no snapshot shows a write without those before it.
mod support;

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pagetide::track::snapshot::Plan;
use pagetide::track::{Delivery, ParkThreads};
use support::patience::up_to;
use support::snapshots::{StopsAtEnd, restored, snapshotter};
use support::{Plain, Random};

/// Writers add to a counter in A, then to one in B, on pages far apart, and stamp pages with the
/// count of the writer's lock. In a snapshot no B may be ahead of its A, and no page may carry a
/// stamp from after the instant.
fn labels(delivery: Delivery, incremental: bool, pre_arm: bool, parked: bool, snapshots: usize) {
    const PAGES: usize = 1024;
    const WRITERS: usize = 4;
    let plain = Plain::new(PAGES);
    let directory = tempfile::tempdir().unwrap();
    let Some(snapshotter) = snapshotter(&plain, delivery, incremental) else {
        return;
    };
    let label = AtomicU64::new(1);
    let (gate, stop) = (RwLock::new(()), AtomicBool::new(false));
    let writes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (plain, label, gate, stop, writes) = (&plain, &label, &gate, &stop, &writes);
            scope.spawn(move || {
                let mut random = Random(writer as u64 + 77);
                let mut count = 0u64;
                while !stop.load(SeqCst) {
                    let held = (!parked).then(|| gate.read().unwrap());
                    count += 1;
                    // A before B; their pages' places in the sweep differ in both directions.
                    let (a, b) = if writer % 2 == 0 {
                        (1, PAGES - 2)
                    } else {
                        (PAGES - 3, 2)
                    };
                    plain.word(a, writer).store(count, SeqCst);
                    plain.word(b, writer).store(count, SeqCst);
                    // Word `8 + writer` of a page is this writer's: the label of the interval it
                    // was written in.
                    let page = 8 + random.below(PAGES - 16);
                    plain
                        .word(page, 8 + writer)
                        .store(label.load(SeqCst), SeqCst);
                    writes.fetch_add(1, SeqCst);
                    drop(held);
                    if count.is_multiple_of(512) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let _stops = StopsAtEnd(&stop);
        let mut base = None;
        let mut last = None;
        for number in 0..snapshots {
            let path = directory.path().join(format!("s{number}"));
            let mut plan = match base {
                Some(base) if incremental && number % 8 != 0 => Plan::since(base),
                _ => Plan::full(),
            };
            if pre_arm {
                plan = plan.pre_armed();
            }
            let instant = AtomicU64::new(0);
            // Labels grow at the instant itself: what is stamped with a later one was written after
            // it.
            let arm_and_label = |arm: &mut dyn FnMut()| {
                arm();
                instant.store(label.fetch_add(1, SeqCst), SeqCst);
            };
            let snapshot = if parked {
                struct Park<F>(F);
                impl<F: FnOnce(&mut dyn FnMut())> pagetide::track::Hold for Park<F> {
                    fn hold(
                        self,
                        arm: &mut dyn FnMut(),
                    ) -> Result<(), pagetide_kernel::park::ParkError> {
                        let mut inner = Some(self.0);
                        let patience = up_to(20);
                        ParkThreads { patience }.hold(&mut || {
                            if let Some(inner) = inner.take() {
                                inner(arm);
                            }
                        })
                    }
                }
                snapshotter.snapshot(&path, plan, Park(arm_and_label))
            } else {
                snapshotter.snapshot(&path, plan, |arm: &mut dyn FnMut()| {
                    let _all = gate.write().unwrap();
                    arm_and_label(arm);
                })
            };
            let report = snapshot.unwrap().wait().unwrap();
            base = Some(report.id);
            let shown = restored(&path, PAGES);
            let instant = instant.load(SeqCst);
            for writer in 0..WRITERS {
                let (a, b) = if writer % 2 == 0 {
                    (1, PAGES - 2)
                } else {
                    (PAGES - 3, 2)
                };
                let (a, b) = (
                    shown.word(a, writer).load(SeqCst),
                    shown.word(b, writer).load(SeqCst),
                );
                // Writers held between the two writes may be parked there; held by the gate they
                // may not.
                assert!(
                    b <= a && a <= b + u64::from(parked),
                    "snapshot {number}: A {a}, B {b}"
                );
            }
            for page in 0..PAGES {
                for writer in 0..WRITERS {
                    let stamp = shown.word(page, 8 + writer).load(SeqCst);
                    assert!(
                        stamp <= instant,
                        "snapshot {number}: page {page} has {stamp}, the instant was {instant}"
                    );
                }
            }
            if let Some(last) = &last {
                let last: &Plain = last;
                for page in 0..PAGES {
                    for word in 0..16 {
                        let (old, new) = (
                            last.word(page, word).load(SeqCst),
                            shown.word(page, word).load(SeqCst),
                        );
                        assert!(
                            old <= new,
                            "snapshot {number}: page {page} went back from {old} to {new}"
                        );
                    }
                }
            }
            last = Some(shown);
            if number > 12 && !incremental {
                std::fs::remove_file(directory.path().join(format!("s{}", number - 12))).unwrap();
            }
        }
        stop.store(true, SeqCst);
    });
    assert!(writes.load(SeqCst) > snapshots as u64 * 10);
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
