//! Writers under snapshots: no snapshot shows a write without those before it.
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pagetide::track::{Plan, SnapshotError, SnapshotId, Snapshotter};

use super::snapshots::{Parked, StopsAtEnd, restored};
use super::{Plain, Random};

/// Writers add to a counter in A, then to one in B, on pages far apart, and stamp pages with the
/// label of the interval they are written in. In a snapshot no B may be ahead of its A, and no page
/// may carry a stamp from after the instant.
pub struct Labels<'a> {
    pub snapshotter: &'a Snapshotter,
    pub pages: usize,
    pub writers: usize,
    /// A word of a page.
    pub word: &'a (dyn Fn(usize, usize) -> &'a AtomicU64 + Sync),
    /// What a writer does besides, and what is done before each snapshot.
    pub aside: &'a (dyn Fn(&mut Random) + Sync),
    pub before: &'a dyn Fn(usize),
    pub incremental: bool,
    pub pre_arm: bool,
    /// Writers are parked rather than held by a gate.
    pub parked: bool,
    pub snapshots: usize,
}

/// What writers and snapshots share.
struct Shared {
    label: AtomicU64,
    gate: RwLock<()>,
    stop: AtomicBool,
    writes: AtomicU64,
}

impl Labels<'_> {
    /// Takes the snapshots while the writers write; how often they did.
    pub fn run(&self) -> u64 {
        let directory = tempfile::tempdir().unwrap();
        let shared = Shared {
            label: AtomicU64::new(1),
            gate: RwLock::new(()),
            stop: AtomicBool::new(false),
            writes: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for writer in 0..self.writers {
                let (word, aside, shared) = (self.word, self.aside, &shared);
                let (pages, parked) = (self.pages, self.parked);
                scope.spawn(move || write(writer, pages, parked, word, aside, shared));
            }
            let _stops = StopsAtEnd(&shared.stop);
            let (mut base, mut last) = (None, None);
            for number in 0..self.snapshots {
                (self.before)(number);
                let path = directory.path().join(format!("s{number}"));
                let mut plan = match base {
                    Some(base) if self.incremental && number % 8 != 0 => Plan::since(base),
                    _ => Plan::full(),
                };
                if self.pre_arm {
                    plan = plan.pre_armed();
                }
                let (id, instant) = self.take(&path, plan, &shared).unwrap();
                base = Some(id);
                last = Some(self.check(number, instant, &path, last.as_ref()));
                if number > 12 && !self.incremental {
                    let old = directory.path().join(format!("s{}", number - 12));
                    std::fs::remove_file(old).unwrap();
                }
            }
        });
        shared.writes.load(SeqCst)
    }

    /// Takes one: its name, and the label at its instant.
    fn take(
        &self,
        path: &Path,
        plan: Plan,
        shared: &Shared,
    ) -> Result<(SnapshotId, u64), SnapshotError> {
        let mut instant = 0;
        // Labels grow at the instant itself: what is stamped with a later one was written after it.
        let mut arm_and_label = |arm: &mut dyn FnMut()| {
            arm();
            instant = shared.label.fetch_add(1, SeqCst);
        };
        let snapshot = match self.parked {
            true => self.snapshotter.snapshot(path, plan, Parked(arm_and_label)),
            false => self
                .snapshotter
                .snapshot(path, plan, |arm: &mut dyn FnMut()| {
                    let _all = shared.gate.write().unwrap();
                    arm_and_label(arm);
                }),
        };
        Ok((snapshot?.wait()?.id, instant))
    }

    /// Looks at the snapshot in `path` and at the one before it.
    fn check(&self, number: usize, instant: u64, path: &Path, last: Option<&Plain>) -> Plain {
        let shown = restored(path, self.pages);
        for writer in 0..self.writers {
            let (a, b) = places(writer, self.pages);
            let count = |page| shown.word(page, writer).load(SeqCst);
            let (a, b) = (count(a), count(b));
            // Writers may be parked between the two writes; by the gate they are not held there.
            assert!(
                b <= a && a <= b + u64::from(self.parked),
                "snapshot {number}: A {a}, B {b}"
            );
        }
        for (page, index) in (0..self.pages).flat_map(|page| (0..16).map(move |at| (page, at))) {
            let now = shown.word(page, index).load(SeqCst);
            assert!(
                !(8..8 + self.writers).contains(&index) || now <= instant,
                "snapshot {number}: page {page} has {now}, the instant was {instant}"
            );
            let before = last.map_or(0, |last| last.word(page, index).load(SeqCst));
            assert!(
                before <= now,
                "snapshot {number}: page {page} went back from {before} to {now}"
            );
        }
        shown
    }
}

/// The pages of a writer's A and B: their order in the sweep differs from writer to writer.
fn places(writer: usize, pages: usize) -> (usize, usize) {
    match writer % 2 {
        0 => (1, pages - 2),
        _ => (pages - 3, 2),
    }
}

fn write<'a>(
    writer: usize,
    pages: usize,
    parked: bool,
    word: &(dyn Fn(usize, usize) -> &'a AtomicU64 + Sync),
    aside: &(dyn Fn(&mut Random) + Sync),
    shared: &Shared,
) {
    let mut random = Random(writer as u64 + 77);
    let (a, b) = places(writer, pages);
    let mut count = 0u64;
    while !shared.stop.load(SeqCst) {
        let held = (!parked).then(|| shared.gate.read().unwrap());
        count += 1;
        word(a, writer).store(count, SeqCst);
        word(b, writer).store(count, SeqCst);
        // Word `8 + writer` of a page is this writer's.
        let page = 8 + random.below(pages - 16);
        word(page, 8 + writer).store(shared.label.load(SeqCst), SeqCst);
        aside(&mut random);
        shared.writes.fetch_add(1, SeqCst);
        drop(held);
        if count.is_multiple_of(256) {
            std::thread::yield_now();
        }
    }
}
