//! Whether memory is one registered mapping, asked without installing anything.
mod support;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::residency::mincore;
use pagetide_kernel::uffd::{self, Stop, Uffd};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange, smaps};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use support::skipped;

const PAGES: usize = 8;

fn opened() -> Option<Uffd> {
    let fd = uffd::open_for_user_mode().map_err(|error| skipped(&error.to_string()));
    Some(Uffd::negotiate(fd.ok()?, 0).unwrap())
}

/// Pages `from` to `to` of a mapping.
fn part(of: PageRange, from: u64, to: u64) -> PageRange {
    PageRange {
        start: of.start.add(from),
        end: of.start.add(to),
    }
}

/// Memory of the test's own, unmapped by nobody else.
fn map(len: usize) -> PageRange {
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    };
    PageRange::covering(start.unwrap() as usize, len)
}

#[test]
fn a_registered_mapping_is_told_from_one_with_a_hole_and_from_its_successor() {
    let Some(uffd) = opened() else { return };
    let nowhere = Mapping::reserve(PAGE_SIZE).unwrap();
    let is_registered = |range| uffd.is_registered(range, nowhere.range());
    let all = map(PAGES * PAGE_SIZE);
    assert_eq!(is_registered(all), Err(Stop::Absent), "not registered");
    // SAFETY: nothing touches the memory while it is registered.
    unsafe { uffd.register(all) }.unwrap();
    assert_eq!(is_registered(all), Ok(()));
    assert_eq!(is_registered(part(all, 2, 5)), Ok(()));
    let mut present = [0; PAGES];
    mincore(all, &mut present).unwrap();
    assert_eq!(present, [0; PAGES], "nothing was installed");

    let hole = part(all, 3, 5);
    let address = hole.start.address() as *mut _;
    // SAFETY: the test's own memory, which nothing uses.
    unsafe { munmap(address, hole.bytes()) }.unwrap();
    assert_eq!(is_registered(all), Err(Stop::Absent));
    assert_eq!(is_registered(part(all, 0, 3)), Ok(()));
    // SAFETY: into the hole just made.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        mmap_anonymous(address, hole.bytes(), protection, flags).unwrap();
        address.cast::<u8>().write_volatile(7);
    }
    assert_eq!(is_registered(all), Err(Stop::Absent));
    assert_eq!(is_registered(hole), Err(Stop::Absent));
    // SAFETY: as above; it is unmapped before anything touches it.
    unsafe { uffd.register(hole) }.unwrap();
    assert_eq!(is_registered(hole), Ok(()), "its page being there or not");
    // SAFETY: the test's own memory, which nothing uses.
    unsafe { munmap(all.start.address() as *mut _, all.bytes()) }.unwrap();
    assert_eq!(is_registered(all), Err(Stop::Absent));
}

#[test]
fn a_mapping_that_begins_with_a_huge_page_is_told_to_be_registered() {
    const HUGE: usize = 2 << 20;
    let Some(uffd) = opened() else { return };
    let nowhere = Mapping::reserve(PAGE_SIZE).unwrap();
    let around = map(3 * HUGE);
    let start = around.start.address().next_multiple_of(HUGE);
    let aligned = PageRange::covering(start, 2 * HUGE);
    // SAFETY: the test's own memory, all of which stays mapped.
    unsafe {
        let _ = madvise(start as *mut _, aligned.bytes(), Advice::LinuxHugepage);
        (start as *mut u8).write_volatile(7);
    }
    let mut huge = false;
    smaps::for_each(None, |area| {
        huge |= area.start <= start && start < area.end && area.resident >= HUGE as u64;
    })
    .unwrap();
    if !huge {
        return skipped("no huge page to be had here");
    }
    // SAFETY: nothing touches the absent pages while they are registered.
    unsafe { uffd.register(aligned) }.unwrap();
    assert_eq!(uffd.is_registered(aligned, nowhere.range()), Ok(()));
    // SAFETY: its first page, which is there.
    assert_eq!(unsafe { (start as *const u8).read_volatile() }, 7);
}

/// The kernel wants as much to copy from as to copy to, within the address space.
#[test]
fn a_mapping_larger_than_what_lies_above_the_page_to_copy_from_is_asked_in_pieces() {
    let Some(uffd) = opened() else { return };
    const LEN: usize = 16 << 40;
    let nowhere = Mapping::reserve(PAGE_SIZE).unwrap();
    assert!(nowhere.range().start > PageNumber(((1 << 47) - LEN as u64) >> 12));
    let all = map(LEN);
    // SAFETY: nothing touches the memory.
    unsafe { uffd.register(all) }.unwrap();
    assert_eq!(uffd.is_registered(all, nowhere.range()), Ok(()));
    // SAFETY: the test's own memory, which nothing uses.
    unsafe { munmap(all.start.address() as *mut _, LEN) }.unwrap();
}
