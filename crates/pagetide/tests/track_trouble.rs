//! Snapshots in trouble: sinks that are slow, full or broken, cancelling, dropping, forking. The
//! program goes on, and the next one is whole.
mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pagetide::Delivery;
use pagetide::track::read_region;
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::reader::SnapshotFile;
use pagetide::track::snapshot::sink::Sink;
use pagetide::track::snapshot::{Plan, SnapshotError};
use pagetide::track::{ParkThreads, Snapshotter};
use support::patience::up_to;
use support::snapshots::{Slow, StopsAtEnd, memory, no_hold, restored, snapshotter};
use support::{Plain, Random, skipped};

/// Takes nothing but the head of the file until a writer has begun and then stood still for a
/// while.
struct Stalling {
    has_head: bool,
    until_still: Option<Arc<AtomicU64>>,
    inner: Slow,
}

impl Sink for Stalling {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let had_head = std::mem::replace(&mut self.has_head, true);
        if let Some(written) = self.until_still.take_if(|_| had_head) {
            let mut before = 0;
            loop {
                std::thread::sleep(up_to(1) / 5);
                let now = written.load(SeqCst);
                if now > 0 && now == before {
                    break;
                }
                before = now;
            }
        }
        self.inner.append(bytes)
    }

    fn commit(&mut self) -> io::Result<()> {
        self.inner.commit()
    }
}

#[test]
fn a_slow_sink_slows_writers_only_when_the_room_is_used_up_and_corrupts_nothing() {
    for delivery in [Delivery::Thread, Delivery::Signal] {
        const PAGES: usize = 4096;
        let plain = Plain::new(PAGES);
        let builder = Snapshotter::builder()
            .memory(memory(&plain, "memory"))
            .delivery(delivery);
        let Ok(snapshotter) = builder.extra_memory(1).build() else {
            return skipped("no snapshots here");
        };
        let mut random = Random(5);
        plain
            .bytes_mut()
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        let before = plain.bytes().to_vec();
        let (taken, committed) = (Arc::default(), Arc::default());
        let written = Arc::new(AtomicU64::new(0));
        let sink = Stalling {
            has_head: false,
            until_still: Some(Arc::clone(&written)),
            inner: Slow {
                fails_after: None,
                taken: Arc::clone(&taken),
                nap: Duration::ZERO,
                committed: Arc::clone(&committed),
            },
        };
        let snapshot = snapshotter
            .snapshot_to(Box::new(sink), "slow".into(), Plan::full(), no_hold)
            .unwrap();
        // Backwards, so that the sweep is met late.
        for page in (0..PAGES).rev() {
            plain.word(page, 0).store(1, SeqCst);
            written.fetch_add(1, SeqCst);
        }
        let report = snapshot.wait().unwrap();
        assert!(
            report.waits > 0 && report.extra_bytes <= snapshotter.extra_memory_limit(),
            "{report:?}"
        );
        assert!(committed.load(SeqCst));
        let bytes: Vec<u8> = std::mem::take(&mut *taken.lock().unwrap());
        let file = SnapshotFile::from_source("slow", Box::new(bytes)).unwrap();
        let (image, into) = (Image::of(vec![file]).unwrap(), Plain::new(PAGES));
        read_region(&image, "memory", into.bytes_mut()).unwrap();
        assert!(into.bytes() == before, "{delivery:?}");
    }
}

#[test]
fn a_sink_that_fails_fails_the_snapshot_and_not_the_program() {
    for (delivery, incremental) in [(Delivery::Thread, false), (Delivery::Signal, true)] {
        let plain = Plain::new(3000);
        let Some(snapshotter) = snapshotter(&plain, delivery, incremental) else {
            return;
        };
        plain
            .bytes_mut()
            .chunks_exact_mut(8)
            .enumerate()
            .for_each(|(i, word)| {
                word.copy_from_slice(&(i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
            });
        for limit in [0, 1000, 1_000_000] {
            let sink = Slow {
                fails_after: Some(limit),
                taken: Arc::default(),
                nap: std::time::Duration::ZERO,
                committed: Arc::default(),
            };
            let result =
                snapshotter.snapshot_to(Box::new(sink), "bad".into(), Plan::full(), no_hold);
            (0..3000)
                .rev()
                .for_each(|page| plain.word(page, 1).store(5, SeqCst));
            let result = result.and_then(|snapshot| snapshot.wait());
            let full = |error: &std::io::Error| error.to_string().contains("full");
            assert!(
                matches!(&result, Err(SnapshotError::Sink(error)) if full(error)),
                "{result:?}"
            );
            (0..3000)
                .for_each(|page| assert_eq!(plain.word(page, 1).swap(6, SeqCst), 5, "{limit}"));
        }
        // And the next one is whole.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("good");
        snapshotter
            .snapshot(&path, Plan::full(), no_hold)
            .unwrap()
            .wait()
            .unwrap();
        assert!(restored(&path, 3000).bytes() == plain.bytes());
    }
}

#[test]
fn a_full_disk_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&disk)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skipped("a small file system cannot be mounted here (needs root)");
    }
    let plain = Plain::new(2048);
    let result = std::panic::catch_unwind(|| {
        let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
            return;
        };
        let mut random = Random(1);
        plain
            .bytes_mut()
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        let result = snapshotter
            .snapshot(&disk.join("file"), Plan::full(), no_hold)
            .unwrap()
            .wait();
        assert!(matches!(result, Err(SnapshotError::Sink(_))), "{result:?}");
        assert_eq!(
            std::fs::read_dir(&disk).unwrap().count(),
            0,
            "something was left"
        );
    });
    // Lazily: a child that another test forks just now may still have the file open.
    let unmounted = std::process::Command::new("umount")
        .args(["--lazy".as_ref(), disk.as_os_str()])
        .status();
    assert!(unmounted.unwrap().success());
    result.unwrap();
}

#[test]
fn cancelled_at_any_point_nothing_remains_and_the_next_is_whole() {
    for (delivery, incremental) in [(Delivery::Thread, true), (Delivery::Signal, false)] {
        let (plain, directory) = (Plain::new(2000), tempfile::tempdir().unwrap());
        let Some(snapshotter) = snapshotter(&plain, delivery, incremental) else {
            return;
        };
        let mut random = Random(9);
        plain
            .bytes_mut()
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        let path = directory.path().join("cancelled");
        let mut cancelled = 0;
        for _ in 0..40 {
            let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
            for _ in 0..random.below(200) {
                plain
                    .word(random.below(2000), 0)
                    .store(random.next(), SeqCst);
            }
            std::thread::sleep(std::time::Duration::from_micros(random.below(6000) as u64));
            snapshot.cancel();
            plain
                .word(random.below(2000), 0)
                .store(random.next(), SeqCst);
            match snapshot.wait() {
                Err(SnapshotError::Cancelled) => {
                    cancelled += 1;
                    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
                }
                result => {
                    result.unwrap();
                    std::fs::remove_file(&path).unwrap();
                }
            }
        }
        assert!(cancelled > 0);
        let before = plain.bytes().to_vec();
        snapshotter
            .snapshot(&path, Plan::full(), no_hold)
            .unwrap()
            .wait()
            .unwrap();
        assert!(restored(&path, 2000).bytes() == before);
    }
}

#[test]
fn dropped_in_the_middle_the_program_goes_on() {
    for delivery in [Delivery::Thread, Delivery::Signal] {
        let plain = Plain::new(2000);
        plain.bytes_mut().fill(1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (plain, stop) = (&plain, &stop);
                scope.spawn(move || {
                    let mut random = Random(writer);
                    while !stop.load(SeqCst) {
                        plain.word(random.below(2000), 0).fetch_add(1, SeqCst);
                    }
                });
            }
            let _stops = StopsAtEnd(&stop);
            for round in 0..20 {
                let Some(snapshotter) = snapshotter(&plain, delivery, round % 2 == 0) else {
                    break;
                };
                let sink = Slow {
                    fails_after: None,
                    taken: Arc::default(),
                    nap: std::time::Duration::from_micros(100),
                    committed: Arc::default(),
                };
                let _under_way = snapshotter
                    .snapshot_to(
                        Box::new(sink),
                        "x".into(),
                        Plan::full(),
                        ParkThreads {
                            patience: up_to(20),
                        },
                    )
                    .unwrap();
                drop(snapshotter);
            }
            stop.store(true, SeqCst);
        });
    }
}

#[test]
fn a_fork_in_the_middle_disturbs_neither_side() {
    let (plain, directory) = (Plain::new(2000), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    (0..2000).for_each(|page| plain.word(page, 0).store(page as u64 + 1, SeqCst));
    let before = plain.bytes().to_vec();
    let sink_path = directory.path().join("s");
    let snapshot = snapshotter
        .snapshot(&sink_path, Plan::full(), no_hold)
        .unwrap();
    (0..100).for_each(|page| plain.word(page * 7, 1).store(1, SeqCst));
    // SAFETY: the child only reads and writes this memory and leaves by _exit: nothing of the
    // parent's locks is used.
    let child = unsafe { libc_fork() };
    if child == 0 {
        let whole = (0..2000).all(|page| plain.word(page, 0).load(SeqCst) == page as u64 + 1);
        (0..2000).for_each(|page| plain.word(page, 0).store(0, SeqCst));
        // SAFETY: ends the child at once.
        unsafe { libc_exit(if whole { 0 } else { 1 }) };
    }
    (0..2000)
        .rev()
        .for_each(|page| plain.word(page, 2).store(2, SeqCst));
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(
        status.exit_status(),
        Some(0),
        "the child did not find the memory as it was"
    );
    snapshot.wait().unwrap();
    assert!(restored(&sink_path, 2000).bytes() == before);
}

unsafe extern "C" {
    #[link_name = "fork"]
    fn libc_fork() -> i32;
    #[link_name = "_exit"]
    fn libc_exit(code: i32) -> !;
}

masked!();
