//! What callers do: writing in the hold closure, names and places of files, locks of their own,
//! memory of other kinds, changing users.
mod support;

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use pagetide::track::read_region;
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::sink::{FileSink, Sink};
use pagetide::track::snapshot::{Plan, SnapshotError};
use pagetide::track::{Memory, Snapshotter};
use pagetide::{Delivery, Region};
use support::patience::up_to;
use support::snapshots::{no_hold, restored, snapshotter};
use support::{PAGE, Plain, skipped};

/// Runs `body` in a thread of its own; the process ends if that takes a minute: a test that hangs
/// is one that fails.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    if wait.recv_timeout(up_to(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        eprintln!("{} hangs", std::thread::current().name().unwrap_or("?"));
        std::process::abort();
    }
    thread.join().unwrap();
}

#[test]
fn a_hold_closure_may_write_more_than_there_is_room_for_once_it_has_armed() {
    in_time(|| {
        for delivery in [Delivery::Thread, Delivery::Signal] {
            let (plain, directory) = (Plain::new(3000), tempfile::tempdir().unwrap());
            let Some(snapshotter) = snapshotter(&plain, delivery, false) else {
                return;
            };
            plain.bytes_mut().fill(1);
            let path = directory.path().join("s");
            let hold = |arm: &mut dyn FnMut()| {
                arm();
                plain.bytes_mut().fill(2);
            };
            let snapshot = snapshotter.snapshot(&path, Plan::full(), hold).unwrap();
            let (pause, report) = (snapshot.pause(), snapshot.wait().unwrap());
            assert_eq!(report.pause, pause);
            assert!(
                report.copies_aside >= 1024 && report.faults > 1024,
                "there was room enough: {report:?}"
            );
            assert!(restored(&path, 3000).bytes().iter().all(|byte| *byte == 1));
            // And one that panics then leaves nothing.
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                snapshotter.snapshot(&path, Plan::full(), |arm: &mut dyn FnMut()| {
                    arm();
                    plain.bytes_mut().fill(3);
                    panic!("in the hold closure");
                })
            }));
            assert!(panicked.is_err());
            let next = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
            next.wait().unwrap();
            assert!(restored(&path, 3000).bytes().iter().all(|byte| *byte == 3));
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        }
    });
}

#[test]
fn pre_arming_under_a_lock_that_a_hold_closure_waits_for_does_not_wait_for_it() {
    in_time(|| {
        let (plain, directory) = (Plain::new(1000), tempfile::tempdir().unwrap());
        let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
            return;
        };
        let (lock, path) = (RwLock::new(()), directory.path().join("s"));
        let (holding, held) = channel();
        std::thread::scope(|scope| {
            let reader = lock.read().unwrap();
            scope.spawn(|| {
                let hold = |arm: &mut dyn FnMut()| {
                    holding.send(()).unwrap();
                    let _all = lock.write().unwrap();
                    arm();
                };
                let snapshot = snapshotter.snapshot(&path, Plan::full(), hold).unwrap();
                snapshot.wait().unwrap();
            });
            held.recv().unwrap();
            assert_eq!(snapshotter.pre_arm().unwrap(), 1000, "it does nothing");
            drop(reader);
        });
    });
}

#[test]
fn an_incremental_that_could_not_be_opened_is_refused_when_it_is_taken() {
    let (plain, directory) = (Plain::new(100), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, true) else {
        return;
    };
    let take = |path: &Path, plan: Plan| snapshotter.snapshot(path, plan, no_hold)?.wait();
    let at = |name: &str| directory.path().join(name);
    plain.bytes_mut().fill(1);
    let a = take(&at("a"), Plan::full()).unwrap();
    let b = take(&at("b"), Plan::since(a.id)).unwrap();
    let elsewhere = at("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let refused = take(&elsewhere.join("c"), Plan::since(b.id));
    assert!(
        matches!(&refused, Err(SnapshotError::Elsewhere(name, _)) if name == "b"),
        "{refused:?}"
    );
    // The file that `b` builds on is another snapshot's from now on.
    let again = take(&at("a"), Plan::full()).unwrap();
    for gone in [a.id, b.id] {
        let refused = take(&at("c"), Plan::since(gone));
        assert!(matches!(refused, Err(SnapshotError::Base(id)) if id == gone));
    }
    let next = take(&at("c"), Plan::since(again.id)).unwrap();
    assert!(Image::open(&at("c")).is_ok());
    // Before Linux 5.14 an incremental snapshot holds every page.
    if pagetide_kernel::probe::populate_write().is_ok() {
        assert_eq!(next.pages, 0);
    }
    let strange = directory
        .path()
        .join(std::ffi::OsStr::from_bytes(b"o\xFFd"));
    let refused = take(&strange, Plan::full());
    assert!(
        matches!(refused, Err(SnapshotError::Name(_))),
        "{refused:?}"
    );
    // Nothing is left of any that was refused.
    let mut names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "elsewhere"]);
}

#[test]
fn only_files_are_replaced_and_only_their_owner_may_read_them() {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    let (plain, directory) = (Plain::new(10), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("file"), "old").unwrap();
    symlink(at("file"), at("link")).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    for name in ["link", "directory"] {
        let refused = snapshotter.snapshot(&at(name), Plan::full(), no_hold);
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("regular file"),
            "{error}"
        );
    }
    assert!(at("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(at("file")).unwrap(), b"old");
    let missing = at("nowhere").join("s");
    let error = snapshotter
        .snapshot(&missing, Plan::full(), no_hold)
        .unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    let taken = snapshotter
        .snapshot(&at("file"), Plan::full(), no_hold)
        .unwrap();
    taken.wait().unwrap();
    assert_eq!(at("file").metadata().unwrap().mode() & 0o777, 0o600);
}

#[test]
fn extra_memory_beyond_all_memory_is_as_much_as_the_memory_needs() {
    let plain = Plain::new(2000);
    if snapshotter(&plain, Delivery::Thread, false).is_none() {
        return;
    }
    for bytes in [usize::MAX, 64 << 40] {
        // SAFETY: the mapping outlives the snapshotter.
        let memory = unsafe { Memory::from_raw_parts("memory", plain.address, plain.len) }.unwrap();
        let builder = Snapshotter::builder().memory(memory);
        let built = builder.extra_memory(bytes).build().unwrap();
        assert_eq!(built.extra_memory_limit(), 2000 * PAGE as u64);
    }
}

#[test]
fn a_program_may_change_its_user_while_pagetide_has_threads() {
    in_time(|| {
        let plain = Plain::new(100);
        let Some(_snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
            return;
        };
        let region = Region::builder()
            .length(64 * PAGE)
            .resident(16 * PAGE as u64)
            .build();
        if let Err(error) = &region {
            skipped(&error.to_string());
        }
        // SAFETY: changes nothing, but has the C library ask every thread.
        assert_eq!(unsafe { libc::setuid(libc::getuid()) }, 0);
    });
}

#[test]
fn restoring_wipes_what_a_snapshot_has_as_zeros_whatever_the_memory_is() {
    use std::os::fd::AsRawFd as _;
    let (plain, directory) = (Plain::new(64), tempfile::tempdir().unwrap());
    let Some(snapshotter) = snapshotter(&plain, Delivery::Thread, false) else {
        return;
    };
    plain.bytes_mut()[..32 * PAGE].fill(7);
    let path = directory.path().join("s");
    let taken = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
    taken.wait().unwrap();
    let image = Image::open(&path).unwrap();
    let check = |what: &str, into: &mut [u8]| {
        read_region(&image, "memory", into).unwrap();
        assert!(into[..32 * PAGE].iter().all(|byte| *byte == 7), "{what}");
        assert!(into[32 * PAGE..].iter().all(|byte| *byte == 0), "{what}");
    };
    // A file's bytes that no page of this mapping shows yet.
    let file = tempfile::tempfile().unwrap();
    rustix::io::pwrite(&file, &[9; 64 * PAGE], 0).unwrap();
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        // SAFETY: a new mapping of the file, which is as long.
        let memory = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let fd = file.as_raw_fd();
            let address = libc::mmap(std::ptr::null_mut(), 64 * PAGE, protection, flags, fd, 0);
            assert_ne!(address, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(address.cast::<u8>(), 64 * PAGE)
        };
        check("a file", memory);
        rustix::io::pwrite(&file, &[9; 64 * PAGE], 0).unwrap();
    }
    // A region's pages that its store has.
    match Region::builder()
        .length(64 * PAGE)
        .resident(16 * PAGE as u64)
        .build()
    {
        Ok(mut region) => {
            region.as_mut_slice().fill(9);
            region.evict(0..64 * PAGE).unwrap();
            check("a region", region.as_mut_slice());
        }
        Err(error) => skipped(&error.to_string()),
    }
    let fresh = Plain::new(64);
    check("fresh memory", fresh.bytes_mut());
}

/// Waits with what follows the header until it is told.
struct Gate(
    FileSink,
    std::sync::Arc<std::sync::atomic::AtomicBool>,
    bool,
);

impl Sink for Gate {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let header = !std::mem::replace(&mut self.2, true);
        while !header && !self.1.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.append(bytes)
    }

    fn commit(&mut self) -> std::io::Result<()> {
        self.0.commit()
    }
}

/// A region's pager that is busy with a slow store cannot be kept from acting on what it saw:
/// pre-arming gives up, and with it the snapshot that is swept meanwhile, for pages may have been
/// written unsaved.
#[test]
fn pre_arming_that_fails_beside_a_sweep_fails_the_snapshot_too() {
    in_time(|| {
        let pages = 500;
        let builder = Region::builder().length(pages * PAGE);
        let region = match builder.store_uri("fault:get-delay-us=2500000:ram:").build() {
            Ok(region) => region,
            Err(error) => return skipped(&error.to_string()),
        };
        let word = |page: usize| {
            // SAFETY: aligned, within the region, and the test accesses it by atomics alone.
            unsafe { &*region.as_ptr().add(page * PAGE).cast::<AtomicU64>() }
        };
        (0..pages).for_each(|page| word(page).store(1, SeqCst));
        region.evict((pages - 1) * PAGE..pages * PAGE).unwrap();
        let memory = Memory::region("memory", &region).unwrap();
        let snapshotter = Snapshotter::builder().memory(memory).build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (path, open) = (directory.path().join("s"), std::sync::Arc::default());
        let sink = Gate(
            FileSink::create(&path).unwrap(),
            std::sync::Arc::clone(&open),
            false,
        );
        let snapshot = snapshotter
            .snapshot_to(Box::new(sink), path.clone(), Plan::full(), no_hold)
            .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| word(pages - 1).load(SeqCst));
            std::thread::sleep(Duration::from_millis(200));
            let failed = snapshotter.pre_arm();
            assert!(failed.is_err(), "the store is slow: {failed:?}");
        });
        (100..400).for_each(|page| word(page).store(2, SeqCst));
        open.store(true, SeqCst);
        let result = snapshot.wait();
        assert!(matches!(&result, Err(SnapshotError::Spoiled)), "{result:?}");
        assert!(!path.exists());
    });
}

#[test]
fn huge_pages_are_refused() {
    let plain = Plain::new(1);
    if snapshotter(&plain, Delivery::Signal, false).is_none() {
        return;
    }
    let len = 4 << 20;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let address = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0)
    };
    if address == libc::MAP_FAILED {
        return skipped("no huge pages are set aside (vm.nr_hugepages)");
    }
    for delivery in [Delivery::Thread, Delivery::Signal] {
        // SAFETY: the mapping stays.
        let memory = unsafe { Memory::from_raw_parts("huge", address.cast(), len) }.unwrap();
        let built = Snapshotter::builder()
            .memory(memory)
            .delivery(delivery)
            .build();
        let error = built.map(drop).unwrap_err().to_string();
        assert!(error.contains("huge pages"), "{error}");
    }
}

/// What the next test has a process of its own do, for it is ended by it.
const WRITES_PAST_THE_END: &str = "PAGETIDE_TEST_WRITES_PAST_THE_END";

#[test]
fn a_write_past_the_end_of_a_file_that_became_shorter_ends_in_sigbus() {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::ExitStatusExt as _;
    if std::env::var_os(WRITES_PAST_THE_END).is_none() {
        let name = "a_write_past_the_end_of_a_file_that_became_shorter_ends_in_sigbus";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(WRITES_PAST_THE_END, "1")
            .spawn()
            .unwrap();
        let since = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if since.elapsed() > up_to(60) {
                let _ = child.kill();
                panic!("the write never ends");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(
            status.signal() == Some(libc::SIGBUS) || status.success(),
            "{status}"
        );
        return;
    }
    let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4 * PAGE as u64).unwrap();
    // SAFETY: a new mapping of the file.
    let address = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        libc::mmap(
            std::ptr::null_mut(),
            4 * PAGE,
            protection,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    // SAFETY: the mapping stays.
    let memory = unsafe { Memory::from_raw_parts("short", address.cast(), 4 * PAGE) }.unwrap();
    let built = Snapshotter::builder()
        .memory(memory)
        .delivery(Delivery::Signal)
        .incremental(true)
        .build();
    let snapshotter = match built {
        Ok(snapshotter) => snapshotter,
        Err(error) => return skipped(&error.to_string()),
    };
    let directory = tempfile::tempdir().unwrap();
    let word = |page: usize| {
        // SAFETY: aligned, within the mapping.
        unsafe { &*address.cast::<u8>().add(page * PAGE).cast::<AtomicU64>() }
    };
    // A page that is written after each of many snapshots faults again and again, and that is well.
    for number in 0..50 {
        let path = directory.path().join("s");
        let taken = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
        taken.wait().unwrap();
        word(0).store(number, SeqCst);
    }
    drop(directory);
    rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
    word(2).store(1, SeqCst);
    unreachable!("there is no such page");
}
