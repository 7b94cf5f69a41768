//! Protection of ranges that span mappings: kernels before 6.3 want each call to stay within one.
mod support;

use std::ffi::c_void;
use std::fs::File;

use pagetide_kernel::uffd::{self, Stop, Uffd, feature};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munmap};
use support::{PAGE, Plain, skipped};

const PAGES: usize = 16;
/// Where the second of three neighbouring mappings begins and ends.
const MIDDLE: [usize; 2] = [5, 12];

/// Present memory that the kernel keeps as three mappings, registered as one range. Writes by
/// system calls to what is protected fail.
fn three_mappings() -> Option<(Uffd, Plain)> {
    let open = || uffd::open(None).map_err(|error| skipped(&error.to_string()));
    let has = Uffd::kernel_features(open().ok()?).unwrap();
    if has & feature::PAGEFAULT_FLAG_WP == 0 {
        skipped("no write-protect faults before Linux 5.7");
        return None;
    }
    let wanted = feature::SIGBUS | feature::PAGEFAULT_FLAG_WP;
    let uffd = Uffd::negotiate(open().ok()?, wanted).unwrap();
    let memory = Plain::new(PAGES);
    memory.bytes_mut().fill(1);
    let (address, len) = part(&memory, MIDDLE[0]..MIDDLE[1]);
    // SAFETY: left out of core dumps, the bytes stay as they are.
    unsafe { madvise(address, len, Advice::LinuxDontDump) }.unwrap();
    uffd.register_write_protect(pages(&memory, 0..PAGES))
        .unwrap();
    Some((uffd, memory))
}

fn part(memory: &Plain, part: std::ops::Range<usize>) -> (*mut c_void, usize) {
    let address = memory.address.wrapping_add(part.start * PAGE);
    (address.cast(), part.len() * PAGE)
}

fn pages(memory: &Plain, within: std::ops::Range<usize>) -> PageRange {
    let first = PageNumber::containing(memory.address as usize);
    PageRange {
        start: first.add(within.start as u64),
        end: first.add(within.end as u64),
    }
}

/// The pages that the kernel writes to for us.
fn writable(memory: &Plain) -> Vec<usize> {
    let zero = File::open("/dev/zero").unwrap();
    let mut found = Vec::new();
    for page in 0..PAGES {
        // SAFETY: a byte within the mapping, which this thread alone uses.
        let byte = unsafe { std::slice::from_raw_parts_mut(memory.address.add(page * PAGE), 1) };
        match rustix::io::read(&zero, byte) {
            Ok(_) => found.push(page),
            Err(errno) => assert_eq!(errno, Errno::FAULT),
        }
    }
    found
}

#[test]
fn a_range_of_several_mappings_is_protected_in_one_call_and_opened_again() {
    let Some((uffd, memory)) = three_mappings() else {
        return;
    };
    let all: Vec<usize> = (0..PAGES).collect();
    assert_eq!(writable(&memory), all);
    for parts in [0..PAGES, MIDDLE[0] - 1..PAGES, 0..MIDDLE[0] + 1] {
        let range = pages(&memory, parts.clone());
        assert_eq!(uffd.write_protect(range, true), Ok(()));
        let open: Vec<usize> = (0..PAGES).filter(|page| !parts.contains(page)).collect();
        assert_eq!(writable(&memory), open);
        assert_eq!(uffd.write_protect(range, false), Ok(()));
        assert_eq!(writable(&memory), all);
    }
}

#[test]
fn what_is_not_registered_is_said_to_be_absent() {
    let Some((uffd, memory)) = three_mappings() else {
        return;
    };
    // SAFETY: every page is present.
    unsafe { uffd.unregister(pages(&memory, MIDDLE[0]..MIDDLE[1])) }.unwrap();
    let result = uffd.write_protect(pages(&memory, 0..PAGES), true);
    assert_eq!(result, Err(Stop::Absent));
    let open: Vec<usize> = (MIDDLE[0]..PAGES).collect();
    assert_eq!(writable(&memory), open);
}

#[test]
fn a_hole_is_passed_over_or_said_to_be_absent() {
    let Some((uffd, memory)) = three_mappings() else {
        return;
    };
    let (address, len) = part(&memory, MIDDLE[0]..MIDDLE[1]);
    // SAFETY: nobody uses these pages any more; reading into them fails.
    unsafe { munmap(address, len) }.unwrap();
    match uffd.write_protect(pages(&memory, 0..PAGES), true) {
        Ok(()) => assert_eq!(writable(&memory), []),
        Err(stop) => {
            assert_eq!(stop, Stop::Absent);
            let open: Vec<usize> = (MIDDLE[1]..PAGES).collect();
            assert_eq!(writable(&memory), open);
        }
    }
    let hole = pages(&memory, MIDDLE[0]..MIDDLE[1]);
    assert_eq!(uffd.write_protect(hole, true), Err(Stop::Absent));
}
