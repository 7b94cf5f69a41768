//! Read-write protection: what the kernel does from 7.3 on. Skipped elsewhere.
#[path = "../../cli/tests/support/skip.rs"]
#[allow(dead_code)] // shared with the tests of the command
mod skip;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pagetide_kernel::memory::drop_pages;
use pagetide_kernel::own::Mapping;
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::uffd::{Event, Message, OnTouch, Stop, Uffd, feature, open_for_user_mode};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::io::Errno;

/// Pages of a scratch mapping, all present, page i full of bytes i + 1, and a userfaultfd for them.
fn scratch(test: &str, pages: usize, features: u64) -> Option<(Mapping, Uffd)> {
    let kernel = open_for_user_mode().map(Uffd::kernel_features);
    if !matches!(kernel, Ok(Ok(has)) if has & feature::RWP != 0) {
        skip::skipped(test, "this kernel has no read-write protection (Linux 7.3)");
        return None;
    }
    let memory = Mapping::new(pages * PAGE_SIZE).unwrap();
    for index in 0..pages {
        // SAFETY: in our own mapping, which nobody else uses.
        unsafe {
            memory
                .as_ptr()
                .add(index * PAGE_SIZE)
                .write_bytes(index as u8 + 1, PAGE_SIZE)
        };
    }
    let uffd = Uffd::negotiate(open_for_user_mode().unwrap(), features).unwrap();
    uffd.register_read_write_protect(memory.range()).unwrap();
    Some((memory, uffd))
}

fn read(memory: &Mapping, index: usize) -> u8 {
    // SAFETY: in our own mapping.
    unsafe { memory.as_ptr().add(index * PAGE_SIZE + 7).read_volatile() }
}

fn write(memory: &Mapping, index: usize, byte: u8) {
    // SAFETY: in our own mapping, of which every byte is only ever read again.
    unsafe { memory.as_ptr().add(index * PAGE_SIZE).write_volatile(byte) }
}

fn next_fault(uffd: &Uffd) -> Event {
    let begun = Instant::now();
    loop {
        let mut messages = [Message::default()];
        if uffd.read(&mut messages).unwrap() == 1 {
            return messages[0].decode();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no fault is reported"
        );
        std::thread::yield_now();
    }
}

fn untouched(memory: &Mapping) -> Vec<u64> {
    let mut found = Vec::new();
    let report =
        |run: PageRange| found.extend(run.iter().map(|page| page.0 - memory.range().start.0));
    Pagemap::open()
        .not_accessed(memory.range(), report)
        .unwrap();
    found
}

fn one(memory: &Mapping, index: u64) -> (PageNumber, PageRange) {
    let page = memory.range().start.add(index);
    (page, PageRange::one(page))
}

#[test]
fn a_touch_is_reported_and_goes_on_when_protection_ends() {
    let Some((memory, uffd)) = scratch(
        "a_touch_is_reported_and_goes_on_when_protection_ends",
        4,
        feature::RWP,
    ) else {
        return;
    };
    uffd.read_write_protect(memory.range(), true).unwrap();
    for (index, is_write) in [(1, false), (2, true)] {
        let went_on = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                match is_write {
                    true => write(&memory, index, 99),
                    false => assert_eq!(read(&memory, index), index as u8 + 1),
                }
                went_on.store(true, SeqCst);
            });
            let (page, range) = one(&memory, index as u64);
            match next_fault(&uffd) {
                Event::Fault {
                    page: faulted,
                    read_write_protect: true,
                    write,
                    ..
                } => assert_eq!((faulted, write), (page, is_write)),
                other => panic!("{other:?}"),
            }
            assert!(!went_on.load(SeqCst), "it waits");
            uffd.read_write_protect(range, false).unwrap();
        });
        assert!(went_on.load(SeqCst));
    }
    uffd.read_write_protect(memory.range(), false).unwrap();
    assert_eq!([0, 1, 3].map(|index| read(&memory, index)), [1, 2, 4]);
    // SAFETY: in our own mapping.
    assert_eq!(unsafe { memory.as_ptr().add(2 * PAGE_SIZE).read() }, 99);
}

#[test]
fn what_nobody_touched_is_known_and_bytes_stay() {
    let Some((memory, uffd)) = scratch(
        "what_nobody_touched_is_known_and_bytes_stay",
        16,
        feature::RWP | feature::RWP_ASYNC,
    ) else {
        return;
    };
    assert_eq!(untouched(&memory), [0; 0], "nothing is protected yet");
    uffd.read_write_protect(memory.range(), true).unwrap();
    assert_eq!(untouched(&memory), (0..16).collect::<Vec<u64>>());
    assert_eq!(read(&memory, 3), 4);
    write(&memory, 5, 5);
    let rest = (0..16).filter(|index| ![3, 5].contains(index));
    let rest: Vec<u64> = rest.collect();
    assert_eq!(untouched(&memory), rest);
    // From here on nothing slips by.
    uffd.set_on_touch(OnTouch::Report).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(read(&memory, 9), 10));
        let (page, range) = one(&memory, 9);
        assert!(matches!(next_fault(&uffd), Event::Fault { page: faulted, .. } if faulted == page));
        assert_eq!(untouched(&memory), rest, "it still waits");
        uffd.read_write_protect(range, false).unwrap();
    });
    uffd.set_on_touch(OnTouch::Note).unwrap();
    for index in 0..16 {
        assert_eq!(read(&memory, index), index as u8 + 1);
    }
    assert_eq!(untouched(&memory), [0; 0]);
}

#[test]
fn a_page_that_was_dropped_is_no_page_that_nobody_touched() {
    let Some((memory, uffd)) = scratch(
        "a_page_that_was_dropped_is_no_page_that_nobody_touched",
        4,
        feature::RWP | feature::RWP_ASYNC,
    ) else {
        return;
    };
    uffd.read_write_protect(memory.range(), true).unwrap();
    let (_, range) = one(&memory, 2);
    // SAFETY: nobody needs the page's bytes.
    unsafe { drop_pages(range) }.unwrap();
    assert_eq!(untouched(&memory), [0, 1, 3]);
    assert_eq!(read(&memory, 2), 0);
    assert_eq!(untouched(&memory), [0, 1, 3]);
}

#[test]
fn what_it_is_not_for_is_an_error() {
    let Some((_memory, uffd)) = scratch(
        "what_it_is_not_for_is_an_error",
        2,
        feature::RWP | feature::PAGEFAULT_FLAG_WP,
    ) else {
        return;
    };
    let other = Mapping::new(PAGE_SIZE).unwrap();
    assert_eq!(
        uffd.read_write_protect(other.range(), true),
        Err(Stop::Absent),
        "not registered"
    );
    uffd.register_write_protect(other.range()).unwrap();
    assert!(
        uffd.read_write_protect(other.range(), true).is_err(),
        "registered for write-protection"
    );
    let without = Uffd::negotiate(open_for_user_mode().unwrap(), 0);
    let without = without.unwrap();
    assert_eq!(without.set_on_touch(OnTouch::Note), Err(Errno::INVAL));
}
