//! Files used in part: what is locked, what is read, and what is not.
mod lock;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::pagetide::lock::{
    self as calls, Access, Errno, Keeper, LockError, LockedFile, Mode, PageState, Residency,
    Sharing,
};
use lock::patience::up_to;
use lock::skip::{skipped, target_directory};
use lock::{PAGE, area_of, become_user, in_child, present, vmlck};
use pagetide_kernel::residency::{cachestat, mincore};
use pagetide_kernel::{PageNumber, PageRange};

/// A file on the disk that the target directory is on, deleted at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, pages: usize) -> Scratch {
        let path = target_directory().join(format!("lock-file-{name}-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        for page in 0..pages {
            let bytes: Vec<u8> = (0..PAGE).map(|i| (page * 7 + i) as u8).collect();
            file.write_all(&bytes).unwrap();
        }
        file.sync_all().unwrap();
        Scratch(path)
    }

    /// Puts it out of the page cache; whether that worked (not on tmpfs).
    fn cold(&self) -> bool {
        let file = File::open(&self.0).unwrap();
        for _ in 0..50 {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            if self.cached() == Some(0) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        skipped("cold", "the file stays in the page cache here");
        false
    }

    /// Pages of it in the page cache, where the kernel counts them (6.5).
    fn cached(&self) -> Option<u64> {
        let file = File::open(&self.0).unwrap();
        let len = file.metadata().unwrap().len();
        let stat = cachestat(file.as_fd(), 0, len).ok()?;
        Some(stat.cached)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

fn byte(page: usize, offset: usize) -> u8 {
    (page * 7 + offset) as u8
}

fn read(file: &LockedFile, page: usize) -> u8 {
    let mut out = [0];
    assert_eq!(file.copy_to(page * PAGE + 5, &mut out), 1);
    assert_eq!(out[0], byte(page, 5));
    out[0]
}

#[test]
fn touched_pages_are_locked_and_nothing_else_is_read() {
    let scratch = Scratch::new("sparse", 8192);
    in_child(|| {
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::open(&scratch).unwrap();
        assert_eq!(vmlck(), 8192 * 4096);
        for page in (0..8192).step_by(700) {
            read(&file, page);
        }
        let area = area_of(file.as_ptr());
        assert!(area.locked);
        assert_eq!(area.resident, 12 * 4096);
        assert_eq!(area.locked_share, 12 * 4096);
        if let Some(cached) = scratch.cached() {
            assert_eq!(cached, 12, "a fault reads a page");
        }
        drop(file);
        assert_eq!(vmlck(), 0);
    });
}

/// Has the file read into the page cache in folios of 2 MiB, where its file system can.
fn in_large_folios(path: &Path, pages: usize) {
    let file = File::open(path).unwrap();
    // SAFETY: a new mapping, read below and unmapped.
    unsafe {
        let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        let at = rustix::mm::mmap(std::ptr::null_mut(), pages * PAGE, read, shared, &file, 0);
        let at = at.unwrap();
        // Refused by kernels without huge pages.
        let _ = rustix::mm::madvise(at, pages * PAGE, rustix::mm::Advice::LinuxHugepage);
        for page in 0..pages {
            at.cast::<u8>().add(page * PAGE).read_volatile();
        }
        rustix::mm::munmap(at, pages * PAGE).unwrap();
    }
}

#[test]
fn exactly_what_is_touched_is_locked_of_a_cached_file_too() {
    const PAGES: usize = 4096;
    let scratch = Scratch::new("exact", PAGES);
    scratch.cold();
    in_large_folios(&scratch.0, PAGES);
    let touched = [0, 1, 17, 600, 4095];
    for sharing in [Sharing::ReadOnly, Sharing::Private] {
        in_child(|| {
            let builder = LockedFile::builder().sharing(sharing);
            let file = match builder.clone().access(Access::Exact).open(&scratch.0) {
                Ok(file) => file,
                Err(error) if error.cause.kind() == std::io::ErrorKind::Unsupported => {
                    return skipped("exactly_what_is_touched", "no WP_ASYNC here");
                }
                Err(error) => panic!("{error}"),
            };
            for page in touched {
                read(&file, page);
            }
            let resident = |file: &LockedFile| area_of(file.as_ptr()).resident as usize / PAGE;
            assert_eq!(resident(&file), touched.len());
            assert!(area_of(file.as_ptr()).locked && vmlck() == (PAGES * PAGE) as u64);
            file.load(std::slice::from_ref(&(600 * PAGE..700 * PAGE)))
                .unwrap();
            assert_eq!(resident(&file), touched.len() + 99);
            // Without it, the kernel maps what is around: that the comparison means something.
            let around = builder.access(Access::Random).open(&scratch.0).unwrap();
            for page in touched {
                read(&around, page);
            }
            assert!(resident(&around) > touched.len());
        });
    }
}

#[test]
fn an_exact_private_copy_can_be_written_and_inherited() {
    let scratch = Scratch::new("exact-private", 8);
    in_child(|| {
        let mut builder = LockedFile::builder();
        builder = builder.sharing(Sharing::Private).access(Access::Exact);
        let mut file = match builder.open(&scratch.0) {
            Ok(file) => file,
            Err(error) if error.cause.kind() == std::io::ErrorKind::Unsupported => {
                return skipped("an_exact_private_copy", "no WP_ASYNC here");
            }
            Err(error) => panic!("{error}"),
        };
        // SAFETY: nobody changes the file.
        let bytes = unsafe { file.as_mut_slice() }.unwrap();
        bytes[5 * PAGE] = 99;
        assert_eq!((bytes[5 * PAGE], bytes[5 * PAGE + 1]), (99, byte(5, 1)));
        in_child(|| assert_eq!((bytes[5 * PAGE], bytes[7 * PAGE]), (99, byte(7, 0))));
    });
}

#[test]
fn dense_access_has_the_rest_read_ahead() {
    let scratch = Scratch::new("dense", 16_384);
    in_child(|| {
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::open(&scratch).unwrap();
        let (mut at, mut reads) = (1usize, 0);
        let deadline = Instant::now() + up_to(20);
        // Pages that were in the page cache at some time: a machine that reclaims memory ahead of
        // need (DAMON) takes some of them back at once.
        let mut seen = vec![false; 16_384];
        let first = PageNumber(file.as_ptr() as u64 / 4096);
        let range = PageRange {
            start: first,
            end: first.add(16_384),
        };
        let mut look = move || {
            let mut present = vec![0; seen.len()];
            mincore(range, &mut present).unwrap();
            for (seen, present) in seen.iter_mut().zip(present) {
                *seen |= present & 1 != 0;
            }
            seen.iter().filter(|seen| **seen).count()
        };
        // A tenth of the pages in random order, then waiting for the watcher.
        while look() < 16_384 {
            assert!(
                Instant::now() < deadline,
                "{} pages were seen cached after {reads} reads; {:?}",
                look(),
                file.statistics()
            );
            if reads < 1600 {
                at = at * 5 % 16_411;
                read(&file, at % 16_384);
                reads += 1;
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let statistics = file.statistics();
        assert!(statistics.looks > 0 && statistics.read_bytes >= 48 << 20);
    });
}

#[test]
fn a_stream_is_read_ahead_of() {
    let scratch = Scratch::new("stream", 16_384);
    in_child(|| {
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::open(&scratch).unwrap();
        for page in 0..16_384 {
            read(&file, page);
        }
        let statistics = file.statistics();
        assert!(statistics.read_bytes > 32 << 20, "{statistics:?}");
    });
}

#[test]
fn full_mode_has_everything_at_once_and_filling_gets_there() {
    let scratch = Scratch::new("full", 64);
    in_child(|| {
        let file = LockedFile::builder().mode(Mode::Full).open(&scratch);
        assert_eq!(present(file.as_ref().unwrap().as_ptr(), 64), [true; 64]);
        drop(file);
        let mut file = LockedFile::builder()
            .access(Access::Random)
            .open(&scratch)
            .unwrap();
        let mut last = 0;
        file.fill(|done| {
            assert!(done > last);
            last = done;
        })
        .unwrap();
        assert_eq!(last, 64 * 4096);
        let area = area_of(file.as_ptr());
        assert!(area.locked && !area.on_fault && area.resident == 64 * 4096);
    });
}

#[test]
fn private_files_can_be_written_and_stay_as_they_are() {
    let scratch = Scratch::new("private", 4);
    in_child(|| {
        let builder = LockedFile::builder().sharing(Sharing::Private);
        let mut file = builder.open(&scratch).unwrap();
        // SAFETY: nobody changes the file.
        let bytes = unsafe { file.as_mut_slice() }.unwrap();
        bytes[PAGE] = 99;
        assert_eq!(bytes[PAGE + 1], byte(1, 1));
        assert_eq!(std::fs::read(&scratch).unwrap()[PAGE], byte(1, 0));
        let mut read_only = LockedFile::open(&scratch).unwrap();
        // SAFETY: as above.
        assert!(unsafe { read_only.as_mut_slice() }.is_none());
    });
}

#[test]
fn parts_are_prefetched_and_loaded() {
    let scratch = Scratch::new("parts", 4096);
    in_child(|| {
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::builder()
            .access(Access::Random)
            .open(&scratch)
            .unwrap();
        let parts: Vec<_> = (0..1000)
            .map(|i| i * 4 * PAGE..i * 4 * PAGE + 100)
            .collect();
        file.prefetch(&parts).unwrap();
        let deadline = Instant::now() + up_to(20);
        while scratch.cached().is_some_and(|cached| cached < 1000) {
            assert!(Instant::now() < deadline, "{:?}", scratch.cached());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(scratch.cached().unwrap_or(1000), 1000);
        assert_eq!(area_of(file.as_ptr()).resident, 0, "not locked yet");
        file.load(&parts).unwrap();
        let area = area_of(file.as_ptr());
        assert!(area.locked && area.resident == 1000 * 4096, "{area:?}");
        let beyond = 4096 * PAGE - 1..4096 * PAGE + 1;
        let error = file.load(std::slice::from_ref(&beyond)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
}

#[test]
fn ranges_empty_files_and_what_is_no_file() {
    let scratch = Scratch::new("range", 10);
    let empty = Scratch::new("empty", 0);
    in_child(|| {
        let part = LockedFile::builder().range(2 * 4096, 3 * 4096 + 1);
        let file = part.open(&scratch).unwrap();
        assert_eq!(file.len(), 3 * PAGE + 1);
        assert_eq!(vmlck(), 4 * 4096);
        let mut out = [0; 4];
        assert_eq!(file.copy_to(3 * PAGE, &mut out), 1);
        assert_eq!(out[0], byte(5, 0));
        assert_eq!(file.copy_to(4 * PAGE, &mut out), 0);
        let tail = LockedFile::builder().range(8 * 4096, 1 << 40);
        assert_eq!(tail.open(&scratch).unwrap().len(), 2 * PAGE);
        for (offset, len) in [(1, 4096), (11 * 4096, 4096)] {
            let error = LockedFile::builder().range(offset, len).open(&scratch);
            let error = error.unwrap_err();
            assert_eq!(error.cause.kind(), std::io::ErrorKind::InvalidInput);
            let told = [&offset.to_string(), scratch.0.to_str().unwrap()];
            assert!(
                told.iter().all(|part| format!("{error:?}").contains(part)),
                "{error}"
            );
        }
        let file = LockedFile::open(&empty).unwrap();
        assert!(file.is_empty() && file.copy_to(0, &mut out) == 0);
        file.load(&[]).unwrap();
        assert!(LockedFile::open("/no/such/file").is_err());
        assert!(LockedFile::open("/").is_err());
    });
}

#[test]
fn over_the_limit_nothing_is_mapped() {
    let scratch = Scratch::new("limit", 64);
    in_child(|| {
        become_user(16 * 4096);
        // Address space in pages. The number of mappings would not do: the allocator opens more of
        // its own now and then.
        let size = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        lock::settle();
        let before = size();
        let error = LockedFile::open(&scratch).unwrap_err();
        let inner = error
            .cause
            .get_ref()
            .and_then(|e| e.downcast_ref::<LockError>());
        let inner = inner.expect("a LockError");
        assert_eq!(inner.errno(), Errno::NOMEM);
        let report = inner.report().expect("the limit's report");
        assert_eq!((report.needed, report.soft), (64 * 4096, Some(16 * 4096)));
        assert_eq!((size(), vmlck()), (before, 0));
    });
}

#[test]
fn a_forked_child_can_use_and_drop_it() {
    let scratch = Scratch::new("fork", 256);
    in_child(|| {
        let file = LockedFile::open(&scratch).unwrap();
        read(&file, 9);
        let file = std::mem::ManuallyDrop::new(file);
        in_child(|| {
            assert_eq!(vmlck(), 256 * 4096);
            read(&file, 100);
            // SAFETY: the child's own copy, dropped once.
            drop(unsafe { std::ptr::read(&*file) });
            assert_eq!(vmlck(), 0);
        });
        assert_eq!(vmlck(), 256 * 4096);
    });
}

#[test]
fn what_the_process_locked_of_it_is_forgotten_with_it() {
    let scratch = Scratch::new("forgotten", 4);
    in_child(|| {
        let file = LockedFile::open(&scratch.0).unwrap();
        let at = file.as_ptr().cast_mut();
        calls::mlock2(at, 4 * PAGE, calls::LockFlags::ONFAULT).unwrap();
        drop(file);
        // SAFETY: the file was mapped there alone; other code's mapping takes its place.
        unsafe {
            let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED_NOREPLACE;
            rustix::mm::mmap_anonymous(at.cast(), 4 * PAGE, lock::RW, flags).unwrap();
        }
        pagetide_kernel::mlock::mlock2(at as usize, 4 * PAGE, 1).unwrap();
        calls::munlock2(at, 4 * PAGE, calls::LockFlags::ONFAULT).unwrap();
        assert_eq!(vmlck(), 4 * PAGE as u64, "another's lock is left alone");
        in_child(|| assert_eq!(vmlck(), 0));
    });
}

#[test]
fn a_keeper_locks_what_others_touch() {
    let scratch = Scratch::new("keeper", 4096);
    in_child(|| {
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::builder()
            .access(Access::Random)
            .open(&scratch)
            .unwrap();
        let address = file.as_ptr();
        let mut keeper = Keeper::new(file, Access::Normal).unwrap();
        keeper.step().unwrap();
        assert_eq!(keeper.locked_bytes(), 0);
        // Somebody else reads three pages, without read-ahead.
        in_child(|| {
            let other = File::open(&scratch).unwrap();
            rustix::fs::fadvise(&other, 0, None, rustix::fs::Advice::Random).unwrap();
            for page in [5u64, 1000, 4000] {
                rustix::io::pread(&other, &mut [0u8; 1], page * 4096).unwrap();
            }
        });
        assert!(keeper.step().unwrap());
        assert_eq!(keeper.locked_bytes(), 3 * 4096);
        assert_eq!(area_of(address).locked_share, 3 * 4096);
        assert!(!keeper.step().unwrap() || scratch.cached().is_none());
        let residency = Residency::of(&scratch).unwrap();
        let cached = residency.count(PageState::Cached) + residency.count(PageState::Locked);
        assert_eq!(cached, 3);
        // Without the lock they would go now.
        let other = File::open(&scratch).unwrap();
        rustix::fs::fadvise(&other, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(area_of(address).resident, 3 * 4096);
    });
}

/// While a page is being read the kernel counts it as cached, and there is nothing to be taken yet.
#[test]
fn a_keeper_locks_a_page_that_it_saw_while_it_was_read() {
    let scratch = Scratch::new("being-read", 512);
    in_child(|| {
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::builder().access(Access::Random).open(&scratch);
        let mut keeper = Keeper::new(file.unwrap(), Access::Random).unwrap();
        let other = File::open(&scratch).unwrap();
        rustix::fs::fadvise(&other, 0, None, rustix::fs::Advice::Random).unwrap();
        for page in 0..3 {
            let deadline = Instant::now() + up_to(20);
            std::thread::scope(|scope| {
                scope.spawn(|| rustix::io::pread(&other, &mut [0u8; 1], page * 100 * 4096));
                // Again and again, so that it looks while the page is being read.
                while keeper.locked_bytes() == page * 4096 {
                    keeper.step().unwrap();
                    assert!(Instant::now() < deadline, "page {page} is not locked");
                }
            });
        }
        assert_eq!(keeper.locked_bytes(), 3 * 4096);
    });
}

#[test]
fn of_a_file_that_is_not_the_users_nothing_is_asked_and_nothing_read() {
    let scratch = Scratch::new("foreign", 512);
    in_child(|| {
        if !lock::is_root() {
            return skipped("foreign file", "only root can give a file away");
        }
        if !scratch.cold() {
            return;
        }
        let file = LockedFile::builder().access(Access::Random).open(&scratch);
        let file = file.unwrap();
        // Whoever may write a file is told the truth.
        let told = File::options().write(true).open(&scratch).unwrap();
        become_user(4 << 20);
        let refused = Keeper::new(file, Access::Random).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        let refused = Residency::of(&scratch).unwrap_err();
        assert_eq!(refused.cause.kind(), std::io::ErrorKind::PermissionDenied);
        if let Ok(stat) = cachestat(told.as_fd(), 0, 512 * 4096) {
            assert_eq!(stat.cached, 0);
        }
    });
}

#[test]
fn a_keeper_locks_a_file_that_is_written_anew() {
    const PAGES: usize = 64;
    let scratch = Scratch::new("anew", PAGES);
    in_child(|| {
        let mut file = LockedFile::builder()
            .access(Access::Random)
            .open(&scratch)
            .unwrap();
        file.fill(|_| ()).unwrap();
        let mut keeper = Keeper::new(file, Access::Random).unwrap();
        keeper.step().unwrap();
        assert_eq!(keeper.locked_bytes(), (PAGES * PAGE) as u64);
        // As many pages are cached afterwards as before.
        std::fs::write(&scratch, vec![7; PAGES * PAGE]).unwrap();
        // Before Linux 6.5 it looks once a second.
        while !keeper.step().unwrap() {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            area_of(keeper.file().as_ptr()).resident as usize,
            PAGES * PAGE
        );
        assert!(!keeper.step().unwrap(), "nothing is new");
    });
}

#[test]
fn a_child_that_starts_with_nothing_can_fill_it() {
    let scratch = Scratch::new("child-fill", 16);
    in_child(|| {
        calls::set_fork_policy(calls::ForkPolicy::Drop);
        let builder = LockedFile::builder().mode(Mode::Full);
        let mut file = builder.open(&scratch).unwrap();
        in_child(|| {
            assert_eq!(vmlck(), 0);
            file.fill(|_| ()).unwrap();
            assert_eq!(vmlck(), 16 * PAGE as u64);
            assert!(area_of(file.as_ptr()).locked);
            drop(file);
            assert_eq!(vmlck(), 0);
        });
    });
}
