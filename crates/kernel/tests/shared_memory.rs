//! Shared memory can be registered with a userfaultfd as private memory can, and is told from it.
#[path = "../../cli/tests/support/skip.rs"]
#[allow(dead_code)] // shared with the tests of the command
mod skip;

use std::ptr::null_mut;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::uffd::{Uffd, open_for_user_mode};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const PAGES: usize = 4;
/// Came with what the question is asked by.
const MINOR_SHMEM: u64 = 1 << 10;

#[test]
fn it_is_told_from_private_memory_whatever_is_present() {
    let test = "it_is_told_from_private_memory_whatever_is_present";
    let Ok(fd) = open_for_user_mode() else {
        return skip::skipped(test, "no right to open a userfaultfd");
    };
    let has = Uffd::kernel_features(open_for_user_mode().unwrap()).unwrap();
    let uffd = Uffd::negotiate(fd, 0).unwrap();
    let (length, rights) = (PAGES * PAGE_SIZE, ProtFlags::READ | ProtFlags::WRITE);
    let private = Mapping::new(length).unwrap();
    // SAFETY: a new mapping, wherever there is room.
    let shared = unsafe { mmap_anonymous(null_mut(), length, rights, MapFlags::SHARED) }.unwrap();
    let places = [private.as_ptr(), shared.cast()];
    for place in places {
        // SAFETY: inside mappings of our own. The first page is in memory and the others are not.
        unsafe { place.write_volatile(7) };
        let range = PageRange::covering(place as usize, length);
        // SAFETY: nobody touches a missing page from here on but to ask about it.
        unsafe { uffd.register_missing(range) }.unwrap();
    }
    let ask = |place: *mut u8, index: u64| {
        let first = PageRange::covering(place as usize, length).start;
        uffd.is_shared(PageNumber(first.0 + index))
    };
    if has & MINOR_SHMEM == 0 {
        skip::skipped(test, "the kernel cannot tell shared memory (Linux 5.14)");
    } else {
        assert_eq!(ask(places[1], 0), Ok(true), "a present page");
        assert_eq!(ask(places[1], 1), Ok(true), "a page that was never there");
    }
    assert_eq!(ask(places[0], 0), Ok(false), "a present page");
    assert_eq!(ask(places[0], 1), Ok(false), "a page that was never there");
    // SAFETY: inside our mapping, and present.
    assert_eq!(unsafe { places[1].read_volatile() }, 7);
    // SAFETY: made above, and not used any more.
    unsafe { munmap(shared, length) }.unwrap();
}
