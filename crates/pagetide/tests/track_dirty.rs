//! Dirty tracking: what is written is reported, by every method there is.
mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pagetide::track::{DirtyTracker, Memory, Method, TrackError};
use proptest::prelude::*;
use support::patience::fewer;
use support::snapshots::StopsAtEnd;
use support::{PAGE, Plain, Random, pages_of, skipped};

fn memory(plain: &Plain, name: &str) -> Memory {
    // SAFETY: the tests keep the mapping until the tracker is gone.
    unsafe { Memory::from_raw_parts(name, plain.address, plain.len) }.unwrap()
}

/// A tracker by `method`, or a loud skip where this system cannot.
fn tracker(method: Method, plain: &Plain) -> Option<DirtyTracker> {
    match DirtyTracker::with_method(method, vec![memory(plain, "memory")]) {
        Ok(tracker) => Some(tracker),
        Err(error) => {
            skipped(&format!("{method}: {error}"));
            None
        }
    }
}

#[test]
fn untouched_and_read_pages_are_not_reported_and_written_ones_are_once() {
    for method in Method::ALL {
        let plain = Plain::new(600);
        plain.bytes_mut()[..100 * PAGE].fill(1);
        let Some(mut tracker) = tracker(method, &plain) else {
            continue;
        };
        assert_eq!(tracker.take().unwrap(), vec![], "{method}");
        // Present, read-only touched, and untouched pages; the first and the last.
        assert!(
            plain.bytes()[200 * PAGE..300 * PAGE]
                .iter()
                .all(|byte| *byte == 0)
        );
        assert_eq!(
            tracker.take().unwrap(),
            vec![],
            "{method}: reading is not writing"
        );
        let written = [0, 1, 50, 150, 250, 511, 512, 599];
        written
            .iter()
            .for_each(|page| plain.word(*page, 3).store(7, SeqCst));
        assert_eq!(pages_of(&tracker.take().unwrap()), written, "{method}");
        assert_eq!(tracker.take().unwrap(), vec![], "{method}");
        plain.word(50, 0).store(8, SeqCst);
        assert_eq!(pages_of(&tracker.take().unwrap()), [50], "{method}");
    }
}

#[test]
fn several_mappings_are_tracked_together() {
    let (a, b) = (Plain::new(10), Plain::new(20));
    let Ok(mut tracker) = DirtyTracker::new(vec![memory(&a, "a"), memory(&b, "b")]) else {
        return skipped("no dirty tracking here");
    };
    a.word(9, 0).store(1, SeqCst);
    b.word(0, 0).store(1, SeqCst);
    let ranges = tracker.take().unwrap();
    assert_eq!((ranges[0].span, pages_of(&ranges[..1])), (0, vec![9]));
    assert_eq!((ranges[1].span, pages_of(&ranges[1..])), (1, vec![0]));
    let starts = (a.address as usize + 9 * PAGE, b.address as usize);
    assert_eq!(
        (ranges[0].addresses.start, ranges[1].addresses.start),
        starts
    );
}

#[test]
fn a_mapping_has_one_tracker_at_a_time() {
    let plain = Plain::new(4);
    let Some(first) = tracker(Method::Async, &plain) else {
        return;
    };
    let second = DirtyTracker::new(vec![memory(&plain, "again")]);
    assert!(matches!(second, Err(TrackError::Taken(..))), "{second:?}");
    drop(first);
    assert!(DirtyTracker::new(vec![memory(&plain, "again")]).is_ok());
}

#[test]
fn shared_memory_and_private_files_are_tracked_where_the_kernel_allows() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = memfd_create("track", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 40 * PAGE as u64).unwrap();
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        // SAFETY: a new mapping of our own file at a place of the kernel's choice.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                40 * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &file,
                0,
            )
        };
        let plain = Plain {
            address: address.unwrap().cast(),
            len: 40 * PAGE,
        };
        let Some(mut tracker) = tracker(Method::Async, &plain) else {
            return;
        };
        assert_eq!(tracker.take().unwrap(), vec![]);
        plain.word(5, 1).store(1, SeqCst);
        plain.word(39, 1).store(1, SeqCst);
        assert_eq!(pages_of(&tracker.take().unwrap()), [5, 39], "{flags:?}");
    }
}

#[test]
fn an_emptied_page_counts_as_written() {
    let plain = Plain::new(8);
    plain.bytes_mut().fill(5);
    let Some(mut tracker) = tracker(Method::Async, &plain) else {
        return;
    };
    // SAFETY: the test's own page.
    unsafe {
        rustix::mm::madvise(
            plain.address.add(3 * PAGE).cast(),
            PAGE,
            rustix::mm::Advice::LinuxDontNeed,
        )
    }
    .unwrap();
    assert_eq!(pages_of(&tracker.take().unwrap()), [3]);
}

/// Writers publish a write only after it is done; what was published before a take began must be
/// known when the take is over.
fn no_write_is_lost(method: Method, rounds: u64) {
    const THREADS: usize = 6;
    const PAGES: usize = 512;
    const LOOKS: u64 = 20;
    let plain = Plain::new(PAGES);
    let Some(mut tracker) = tracker(method, &plain) else {
        return;
    };
    // (page, count) of each thread's last write, and the counts themselves.
    let done: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let (total, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut seen = vec![[0u64; THREADS]; PAGES];
    let note = |seen: &mut Vec<[u64; THREADS]>, tracker: &mut DirtyTracker| {
        for page in pages_of(&tracker.take().unwrap()) {
            for (thread, cell) in seen[page].iter_mut().enumerate() {
                *cell = plain.word(page, thread).load(SeqCst);
            }
        }
    };
    let mut takes = 0u64;
    std::thread::scope(|scope| {
        for (thread, done) in done.iter().enumerate() {
            let (plain, total, stop) = (&plain, &total, &stop);
            scope.spawn(move || {
                let mut random = Random(thread as u64);
                let mut count = 0;
                while !stop.load(SeqCst) {
                    let page = random.below(PAGES);
                    count += 1;
                    plain.word(page, thread).store(count, SeqCst);
                    done.store((page as u64) << 48 | count, SeqCst);
                    total.fetch_add(1, SeqCst);
                }
            });
        }
        let _stops = StopsAtEnd(&stop);
        // Enough of both: on a busy machine the writers may be done before a second look.
        while total.load(SeqCst) < rounds || takes < LOOKS {
            let before: Vec<u64> = done.iter().map(|done| done.load(SeqCst)).collect();
            note(&mut seen, &mut tracker);
            for (thread, published) in before.into_iter().enumerate() {
                let (page, count) = ((published >> 48) as usize, published & 0xFFFF_FFFF_FFFF);
                assert!(
                    seen[page][thread] >= count,
                    "{method}: write {count} of thread {thread} to page {page} was lost in take \
                     {takes}"
                );
            }
            takes += 1;
        }
    });
    note(&mut seen, &mut tracker);
    for (page, cells) in seen.iter().enumerate() {
        for (thread, cell) in cells.iter().enumerate() {
            assert_eq!(
                *cell,
                plain.word(page, thread).load(SeqCst),
                "{method}: page {page}"
            );
        }
    }
}

#[test]
fn six_writers_and_a_million_rounds_lose_nothing() {
    no_write_is_lost(Method::Async, 1_000_000);
}

#[test]
fn six_writers_lose_nothing_with_handled_faults() {
    let rounds = if support::full() {
        1_000_000
    } else {
        fewer(100_000)
    };
    for method in [
        Method::WriteProtectUnpopulated,
        Method::PreRead,
        Method::Mprotect,
    ] {
        no_write_is_lost(method, rounds);
    }
}

#[test]
fn a_system_call_may_write_where_faults_are_handled_by_a_thread() {
    for method in [
        Method::Async,
        Method::WriteProtectUnpopulated,
        Method::PreRead,
    ] {
        let plain = Plain::new(16);
        let Some(mut tracker) = tracker(method, &plain) else {
            continue;
        };
        use std::io::Read as _;
        let slice = &mut plain.bytes_mut()[3 * PAGE..5 * PAGE];
        std::fs::File::open("/dev/urandom")
            .unwrap()
            .read_exact(slice)
            .unwrap();
        assert_eq!(pages_of(&tracker.take().unwrap()), [3, 4], "{method}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn takes_agree_with_a_plain_list(
        method in 0usize..4,
        rounds in prop::collection::vec(prop::collection::btree_set(0usize..200, 0..40), 1..12),
    ) {
        let plain = Plain::new(200);
        let Some(mut tracker) = tracker(Method::ALL[method], &plain) else { return Ok(()) };
        for written in rounds {
            written.iter().for_each(|page| plain.word(*page, 0).store(1, SeqCst));
            let expected: Vec<usize> = written.into_iter().collect();
            prop_assert_eq!(pages_of(&tracker.take().unwrap()), expected);
        }
    }
}
