//! A region fills no memory but its own, also where the kernel would let it.
mod support;

use pagetide::Region;
use pagetide_kernel::residency::mincore;
use pagetide_kernel::uffd::{self, Uffd};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use support::skipped;

/// Pages that are filled together, from a multiple of them on.
const BLOCK_PAGES: usize = 64;

/// A region of `pages` pages, and memory that begins where it ends; none if the kernel has put the
/// region elsewhere than into the hole that is made for it.
fn with_neighbour(pages: usize) -> (Region, Option<PageRange>) {
    let (length, beside) = (pages * PAGE_SIZE, BLOCK_PAGES * PAGE_SIZE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, of which a part is given back; the rest stays for as long as the process.
    let hole = unsafe {
        let hole = libc::mmap(
            std::ptr::null_mut(),
            length + beside,
            protection,
            flags,
            -1,
            0,
        );
        assert_ne!(hole, libc::MAP_FAILED);
        libc::munmap(hole, length);
        hole as usize
    };
    let builder = Region::builder().length(length).resident(2 * length as u64);
    let region = builder.build().unwrap();
    let is_there = region.as_ptr() as usize == hole;
    (
        region,
        is_there.then(|| PageRange::covering(hole + length, beside)),
    )
}

/// COPY installs pages in what any userfaultfd of the process has registered.
#[test]
fn memory_of_another_userfaultfd_is_left_alone() {
    let fd = match uffd::open(None) {
        Ok(fd) => fd,
        Err(error) => return skipped(&error.to_string()),
    };
    let uffd = Uffd::negotiate(fd, 0).unwrap();
    // Where a region comes to be is not ours to choose, and they must share a block.
    let mut regions = Vec::new();
    let found = (1000..1100).find_map(|pages| {
        let (region, neighbour) = with_neighbour(pages);
        regions.push(region);
        neighbour.filter(|range| range.start.0 as usize % BLOCK_PAGES >= 16)
    });
    let Some(neighbour) = found else {
        return skipped("no region came to be beside other memory");
    };
    // SAFETY: nothing touches the memory.
    unsafe { uffd.register(neighbour) }.unwrap();
    let region = regions.last_mut().unwrap();
    let pages = region.len() / PAGE_SIZE;
    let step = (31..).find(|step| !pages.is_multiple_of(*step)).unwrap();
    // For the first time, one by one, and not one after the other.
    for page in (0..pages).map(|i| (i * step) % pages) {
        region.as_mut_slice()[page * PAGE_SIZE] = 1;
    }
    assert!(
        region.stats().zero_fills > region.stats().zero_faults,
        "nothing was filled ahead"
    );
    let mut there = [0; BLOCK_PAGES];
    mincore(neighbour, &mut there).unwrap();
    assert_eq!(there.iter().filter(|byte| **byte & 1 == 1).count(), 0);
}
