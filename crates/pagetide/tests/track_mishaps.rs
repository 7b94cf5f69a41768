//! What must not stop the program or spoil the next snapshot: closures and sinks that panic,
//! threads of Pagetide's own, calls that overlap, a fork in between.
mod support;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pagetide::track::snapshot::sink::Sink;
use pagetide::track::snapshot::{Plan, SnapshotError};
use pagetide::track::{DirtyTracker, Method, ParkThreads, Snapshotter};
use pagetide::{Delivery, Region};
use pagetide_kernel::thread::{C_LIBRARY_SIGNALS, set_signal_mask};
use support::patience::{fewer, is_slow, up_to};
use support::regions::{self, DELIVERIES};
use support::snapshots::{StopsAtEnd, memory, no_hold, restored, snapshotter};
use support::{PAGE, Plain, Random, skipped};

/// The process ends if the test has not by then: a test that hangs is one that fails.
fn ends_in_time() -> impl Drop {
    struct Watch(std::sync::mpsc::Sender<()>);
    impl Drop for Watch {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (done, wait) = std::sync::mpsc::channel();
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    std::thread::spawn(move || {
        if wait
            .recv_timeout(up_to(120))
            .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            eprintln!("{test} hangs");
            std::process::abort();
        }
    });
    Watch(done)
}

#[test]
fn a_hold_closure_that_panics_leaves_no_snapshot_that_writers_wait_for() {
    let _watch = ends_in_time();
    for (delivery, incremental) in [(Delivery::Thread, true), (Delivery::Signal, false)] {
        let (plain, directory) = (Plain::new(3000), tempfile::tempdir().unwrap());
        let Some(snapshotter) = snapshotter(&plain, delivery, incremental) else {
            return;
        };
        plain.bytes_mut().fill(1);
        let path = directory.path().join("s");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            snapshotter.snapshot(&path, Plan::full(), |arm: &mut dyn FnMut()| {
                arm();
                panic!("in the hold closure");
            })
        }));
        assert!(panicked.is_err());
        // More pages than there is room for old bytes.
        plain.bytes_mut().fill(2);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let next = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
        next.wait().unwrap();
        assert!(restored(&path, 3000).bytes().iter().all(|byte| *byte == 2));
    }
}

#[test]
fn a_sink_that_panics_fails_the_snapshot_and_the_next_is_whole() {
    let _watch = ends_in_time();
    struct Panics(usize);
    impl Sink for Panics {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0 += bytes.len();
            assert!(self.0 < 100_000, "in the sink");
            Ok(())
        }
        fn commit(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (plain, directory) = (Plain::new(3000), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, true) else {
        return;
    };
    let mut random = Random(4);
    let words = plain.bytes_mut().chunks_exact_mut(8);
    words.for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    let sink = Box::new(Panics(0));
    let snapshot = snapshotter.snapshot_to(sink, "x".into(), Plan::full(), no_hold);
    (0..3000).for_each(|page| plain.word(page, 0).store(1, SeqCst));
    let result = snapshot.unwrap().wait();
    assert!(matches!(result, Err(SnapshotError::Sink(_))), "{result:?}");
    let path = directory.path().join("s");
    let next = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
    next.wait().unwrap();
    assert!(restored(&path, 3000).bytes() == plain.bytes());
}

#[test]
fn threads_are_parked_though_a_region_in_the_process_has_threads_that_block_signals() {
    for delivery in [Delivery::Thread, Delivery::Signal] {
        let Ok(region) = Region::builder()
            .length(64 * PAGE)
            .delivery(delivery)
            .build()
        else {
            return skipped("no regions here");
        };
        let (plain, directory) = (Plain::new(10), tempfile::tempdir().unwrap());
        let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
            return;
        };
        let patience = up_to(20);
        let path = directory.path().join("s");
        let snapshot = snapshotter.snapshot(&path, Plan::full(), ParkThreads { patience });
        snapshot.unwrap().wait().unwrap();
        drop(region);
    }
}

/// Someone who pre-arms may be parked in the middle of a round, with marks taken away and pages not
/// protected yet.
#[test]
fn pre_arming_meanwhile_does_not_spoil_an_instant() {
    let _watch = ends_in_time();
    let (pages, armers) = if is_slow() { (256, 1) } else { (2048, 2) };
    let (plain, directory) = (Plain::new(pages), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, true) else {
        return;
    };
    plain.bytes_mut().fill(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..armers {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    snapshotter.pre_arm().unwrap();
                }
            });
        }
        // One counter, written to all its places in turn: in a snapshot no place is ahead of one
        // before it.
        scope.spawn(|| {
            let mut count = plain.word(0, 0).load(SeqCst);
            while !stop.load(SeqCst) {
                count += 1;
                for page in (0..pages).step_by(61) {
                    plain.word(page, 0).store(count, SeqCst);
                }
            }
        });
        let _stops = StopsAtEnd(&stop);
        for round in 0..fewer(60) {
            let path = directory.path().join("s");
            let patience = up_to(20);
            let plan = Plan::full().pre_armed();
            let snapshot = snapshotter.snapshot(&path, plan, ParkThreads { patience });
            snapshot.unwrap().wait().unwrap();
            let shown = restored(&path, pages);
            let places: Vec<u64> = (0..pages)
                .step_by(61)
                .map(|page| shown.word(page, 0).load(SeqCst))
                .collect();
            let right = places.windows(2).all(|pair| pair[0] >= pair[1]);
            assert!(
                right && places[0] - places[places.len() - 1] <= 1,
                "round {round}: {places:?}"
            );
        }
        stop.store(true, SeqCst);
    });
}

/// Takes snapshots while two threads that block the signal for parking write pages in turns. Whose
/// turn it is stands in no memory that is saved, so the two are in step though nobody holds them: a
/// snapshot must show all writes up to one, and none after it. `before` is called before each of
/// `rounds`.
fn instants_hold(
    snapshotter: &Snapshotter,
    pages: usize,
    page: &(dyn Fn(usize) -> *mut u64 + Sync),
    rounds: u64,
    before: &dyn Fn(),
) {
    const OWN_FAULTS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1);
    let at = |write: u64| (write * 1031) as usize % WRITTEN * (pages / WRITTEN);
    let (stop, turn) = (AtomicBool::new(false), AtomicU64::new(0));
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let _stops = StopsAtEnd(&stop);
        for own in 0..2 {
            let (stop, turn) = (&stop, &turn);
            scope.spawn(move || {
                set_signal_mask(!(OWN_FAULTS | C_LIBRARY_SIGNALS));
                while !stop.load(SeqCst) {
                    let write = turn.load(SeqCst);
                    if write % 2 == own {
                        // SAFETY: within the memory, which the caller keeps.
                        unsafe { &*page(at(write)).cast::<AtomicU64>() }.store(write + 1, SeqCst);
                        turn.store(write + 1, SeqCst);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for round in 0..fewer(rounds) {
            let (path, patience) = (directory.path().join("s"), up_to(20));
            let plan = match round % 2 {
                0 => Plan::full(),
                _ => Plan::full().pre_armed(),
            };
            before();
            let snapshot = snapshotter.snapshot(&path, plan, ParkThreads { patience });
            snapshot.unwrap().wait().unwrap();
            let shown = restored(&path, pages);
            let value = |page| shown.word(page, 0).load(SeqCst);
            let last = (0..WRITTEN as u64)
                .map(|write| value(at(write)))
                .max()
                .unwrap();
            for back in 0..last.min(WRITTEN as u64) {
                let write = last - 1 - back;
                assert_eq!(
                    value(at(write)),
                    write + 1,
                    "round {round}: {last} is there"
                );
            }
        }
    });
}

/// So many that protecting them takes long enough for threads to run meanwhile, and how many are
/// written.
const HELD_PAGES: usize = 1 << 17;
const WRITTEN: usize = 1 << 10;

#[test]
fn threads_that_block_all_signals_write_on_and_do_not_spoil_an_instant() {
    let _watch = ends_in_time();
    for delivery in DELIVERIES {
        let plain = Plain::new(HELD_PAGES);
        let Some(snapshotter) = snapshotter(&plain, delivery, true) else {
            return;
        };
        let page = |page| plain.word(page, 0).as_ptr();
        instants_hold(&snapshotter, HELD_PAGES, &page, 40, &|| ());
    }
}

#[test]
fn threads_that_block_all_signals_do_not_spoil_an_instant_of_a_region() {
    let _watch = ends_in_time();
    for delivery in DELIVERIES {
        let pages = HELD_PAGES / 8;
        let Some(region) = regions::region(pages, pages, delivery) else {
            return;
        };
        let snapshotter = regions::snapshotter(&region, true);
        let page = |page| regions::word(&region, page, 0).as_ptr();
        // Where few pages are writable, the region's own pager waits while they are protected.
        instants_hold(&snapshotter, pages, &page, 16, &|| {
            (0..pages).for_each(|page| regions::word(&region, page, 1).store(1, SeqCst));
        });
    }
}

#[test]
fn a_closure_that_panics_during_a_take_loses_nothing_and_holds_nobody() {
    let _watch = ends_in_time();
    for method in Method::ALL {
        let plain = Plain::new(300);
        let Ok(mut tracker) = DirtyTracker::with_method(method, vec![memory(&plain, "m")]) else {
            skipped(&format!("no {method} here"));
            continue;
        };
        let written = [3, 70, 71, 200, 299];
        written
            .iter()
            .for_each(|page| plain.word(*page, 0).store(1, SeqCst));
        let mut seen = 0;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            tracker.take_each(|_| {
                seen += 1;
                assert!(seen < 3, "in the closure");
            })
        }));
        assert!(panicked.is_err());
        // Neither a writer nor the next take waits for the one that ended so.
        (0..300).for_each(|page| plain.word(page, 1).store(1, SeqCst));
        let all: usize = tracker
            .take()
            .unwrap()
            .iter()
            .map(|range| range.len())
            .sum();
        assert_eq!(all, 300 * PAGE, "{method}");
        plain.word(5, 0).store(2, SeqCst);
        assert_eq!(tracker.take().unwrap().len(), 1, "{method}");
    }
}

/// A take bars faults; it must not fault itself when what it is asked to fill lies in the tracked
/// memory.
#[test]
fn what_take_is_told_may_be_written_to_the_tracked_memory() {
    let _watch = ends_in_time();
    for method in Method::ALL {
        let plain = Plain::new(100);
        let Ok(mut tracker) = DirtyTracker::with_method(method, vec![memory(&plain, "m")]) else {
            continue;
        };
        plain.word(50, 0).store(1, SeqCst);
        let noted = |start: usize| plain.word(99, 0).store(start as u64, SeqCst);
        let noted = tracker.take_each(|run| noted(run.addresses.start));
        noted.unwrap();
        assert_ne!(plain.word(99, 0).load(SeqCst), 0);
        assert_eq!(tracker.take().unwrap().len(), 1, "{method}");
    }
}

/// The child inherits memory that `mprotect` closed, the handler that opens it, and perhaps a take
/// that the parent was in the middle of.
#[test]
fn a_child_forked_during_takes_can_write() {
    let plain = Plain::new(200);
    let made = DirtyTracker::with_method(Method::Mprotect, vec![memory(&plain, "m")]);
    let mut tracker = made.unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                tracker.take().unwrap();
            }
        });
        let _stops = StopsAtEnd(&stop);
        for _ in 0..40 {
            // SAFETY: the child writes to memory and ends at once, by calls that need no lock.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it hangs.
                unsafe { libc::alarm(30) };
                (0..200).for_each(|page| plain.word(page, 0).store(7, SeqCst));
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            (0..200).for_each(|page| plain.word(page, 0).store(1, SeqCst));
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child ended by {status:#x}");
        }
        stop.store(true, SeqCst);
    });
}

/// Better no memory than zeros where the snapshot has bytes.
#[test]
fn a_child_forked_during_a_lazy_restore_does_not_find_zeros() {
    use pagetide::track::{Image, LazyPlan, restore};
    let (plain, directory) = (Plain::new(100), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    plain.bytes_mut().fill(7);
    let path = directory.path().join("s");
    let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
    snapshot.wait().unwrap();
    for (plan, found) in [
        (LazyPlan::default().without_background(), false),
        (LazyPlan::default(), true),
    ] {
        let restored = restore(Image::open(&path).unwrap(), plan).unwrap();
        let address = restored.region("memory").unwrap().as_ptr();
        if found {
            restored.wait().unwrap();
        }
        // SAFETY: the child reads one byte and ends, by that or by the signal it gets.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child's own limits and handlers; the read is what is tested.
            unsafe {
                let none: libc::rlimit = std::mem::zeroed();
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::alarm(30);
                let byte = address.add(50 * PAGE).read_volatile();
                libc::_exit(if byte == 7 { 0 } else { 1 });
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        let no_memory = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
        assert!(
            if found { status == 0 } else { no_memory },
            "{found}: {status:#x}"
        );
    }
}

masked!();
