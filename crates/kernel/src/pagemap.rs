//! `/proc/self/pagemap`: which pages are present, by `PAGEMAP_SCAN` (6.7) or, before it, by reading
//! entries.
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, opcode};

use crate::mask::{self, Masked};
use crate::page::{PageNumber, PageRange};

/// `PAGEMAP_SCAN` categories.
pub mod category {
    #![allow(missing_docs)]
    pub const WRITTEN: u64 = 1 << 1;
    pub const PRESENT: u64 = 1 << 3;
    pub const SWAPPED: u64 = 1 << 4;
    pub const ZERO_PAGE: u64 = 1 << 5;
    pub const ACCESSED: u64 = 1 << 9;
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`: a run of pages in the same categories.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const SCAN: Opcode = opcode::read_write::<ScanArg>(b'f', 16);
const _: () =
    assert!(SCAN == 0xC060_6610 && size_of::<ScanArg>() == 96 && size_of::<Region>() == 24);

struct Scan<'a>(&'a mut ScanArg);

// SAFETY: opcode and struct belong together; the kernel writes into the struct and into `vec`,
// which the only constructor points at a live array of `vec_len` regions. The return value is a
// count.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        SCAN
    }
    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(out as usize)
    }
}

/// What a walk looks for, and what it is told of it: [`category`] bits.
#[derive(Default)]
struct Query {
    flags: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

/// Calls `found` with each run of pages of `range` that the query asks for, in order, and its
/// categories; `room` is for the kernel's answers. An error comes with the page from which on
/// nothing is known.
fn scan(
    file: &OwnedFd,
    range: PageRange,
    query: &Query,
    room: &mut [Region],
    mut found: impl FnMut(PageRange, u64),
) -> Result<(), (PageNumber, Errno)> {
    let page = |address: u64| PageNumber::containing(address as usize);
    let mut start = range.address() as u64;
    let end = start + range.bytes() as u64;
    mask::check(Masked::PagemapScan, Errno::NOTTY).map_err(|errno| (range.start, errno))?;
    while start < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: query.flags,
            start,
            end,
            walk_end: 0,
            vec: room.as_mut_ptr() as u64,
            vec_len: room.len() as u64,
            max_pages: 0,
            category_inverted: query.inverted,
            category_mask: query.all_of,
            category_anyof_mask: query.any_of,
            return_mask: query.told,
        };
        // SAFETY: `arg.vec` points at `room`, which outlives the call.
        let count = unsafe { ioctl::ioctl(file.as_fd(), Scan(&mut arg)) }
            .map_err(|errno| (page(start), errno))?;
        for region in &room[..count.min(room.len())] {
            let run = PageRange {
                start: page(region.start),
                end: page(region.end),
            };
            found(run, region.categories);
        }
        if arg.walk_end <= start {
            return Err((page(start), Errno::IO));
        }
        start = arg.walk_end;
    }
    Ok(())
}

/// This process's page map.
#[derive(Debug)]
pub struct Pagemap(Option<OwnedFd>);

impl Pagemap {
    /// Opens `/proc/self/pagemap`; own memory needs no privilege. A process that has dropped its
    /// privileges may be refused its own file; then `mincore` has to do, which does not see pages
    /// that are swapped out.
    pub fn open() -> Pagemap {
        Pagemap(crate::procfs::open_self(c"/proc/self/pagemap").ok())
    }

    /// Calls `found` with each run of pages of `range` that is present or swapped out, and whether
    /// the run is the shared zero page. Runs come in order.
    pub fn populated(
        &self,
        range: PageRange,
        mut found: impl FnMut(PageRange, bool),
    ) -> Result<(), Errno> {
        let Some(file) = &self.0 else {
            return populated_by_mincore(range, found);
        };
        let query = Query {
            any_of: category::PRESENT | category::SWAPPED,
            told: category::PRESENT | category::SWAPPED | category::ZERO_PAGE,
            ..Query::default()
        };
        let report = |run, categories| found(run, categories & category::ZERO_PAGE != 0);
        match scan(file, range, &query, &mut [Region::default(); 128], report) {
            Err((start, Errno::NOTTY | Errno::INVAL)) => {
                let rest = PageRange {
                    start,
                    end: range.end,
                };
                populated_by_entries(file, rest, found)
            }
            result => result.map_err(|(_, errno)| errno),
        }
    }
}

impl Pagemap {
    /// Calls `found` with each run of pages of `range` that a userfaultfd has write-protected,
    /// absent ones (6.4) among them. Runs come in order. Before Linux 5.14 there are none.
    ///
    /// # Errors
    /// `ENOTSUP` where this process may not read its page map.
    pub fn write_protected(
        &self,
        range: PageRange,
        mut found: impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        let file = self.0.as_ref().ok_or(Errno::NOTSUP)?;
        // Protected, an absent page has an entry that counts as swapped.
        let query = Query {
            any_of: category::PRESENT | category::SWAPPED,
            inverted: category::WRITTEN,
            all_of: category::WRITTEN,
            told: category::PRESENT | category::SWAPPED,
            ..Query::default()
        };
        let report = |run, _| found(run);
        match scan(file, range, &query, &mut [Region::default(); 128], report) {
            Err((start, Errno::NOTTY | Errno::INVAL)) => {
                let rest = PageRange {
                    start,
                    end: range.end,
                };
                for_each_entry(file, rest, |page, entry| {
                    if entry & entry::WRITE_PROTECTED != 0 {
                        found(PageRange::one(page));
                    }
                })
            }
            result => result.map_err(|(_, errno)| errno),
        }
    }
}

impl Pagemap {
    /// Calls `found` with each run of pages of `range` written since they were last
    /// write-protected, in order; with `protect` each is protected again in the same step, so that
    /// a later write is found by the next call. Pages never touched count as written until they
    /// were protected once.
    ///
    /// Needs `PAGEMAP_SCAN` (6.7, else `ENOTTY`), and memory registered with
    /// [`crate::uffd::feature::WP_ASYNC`] (else `EPERM`).
    pub fn written(
        &self,
        range: PageRange,
        protect: bool,
        mut found: impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        const WP_MATCHING: u64 = 1;
        const CHECK_WPASYNC: u64 = 2;
        /// 24 KiB of stack: enough runs a call that the call itself does not count.
        const RUNS: usize = 1024;
        let Some(file) = &self.0 else {
            return Err(Errno::NOTTY);
        };
        let query = Query {
            flags: CHECK_WPASYNC | if protect { WP_MATCHING } else { 0 },
            all_of: category::WRITTEN,
            told: category::WRITTEN,
            ..Query::default()
        };
        let report = |run, _| found(run);
        scan(file, range, &query, &mut [Region::default(); RUNS], report)
            .map_err(|(_, errno)| errno)
    }
}

impl Pagemap {
    /// Calls `found` with each run of present pages of `range` that nobody touched since they were
    /// read-write protected ([`crate::uffd::Uffd::read_write_protect`]), in order. Pages that were
    /// not protected count as touched.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7, `EINVAL` before 7.3.
    pub fn not_accessed(
        &self,
        range: PageRange,
        mut found: impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        mask::check(Masked::Rwp, Errno::INVAL)?;
        let Some(file) = &self.0 else {
            return Err(Errno::NOTTY);
        };
        let query = Query {
            inverted: category::ACCESSED,
            all_of: category::ACCESSED | category::PRESENT,
            told: category::PRESENT,
            ..Query::default()
        };
        let report = |run, _| found(run);
        scan(file, range, &query, &mut [Region::default(); 128], report).map_err(|(_, errno)| errno)
    }
}

/// The way before 6.7: one 8-byte entry a page, but for large parts that hold none. Cannot tell the
/// zero page.
fn populated_by_entries(
    file: &OwnedFd,
    range: PageRange,
    mut found: impl FnMut(PageRange, bool),
) -> Result<(), Errno> {
    let mut page = range.start;
    // Swapped pages are none to mincore.
    let mut looks_for_gaps = range.pages() >= GAP_PAGES && nothing_swapped();
    while page < range.end {
        let gap = PageRange {
            start: page,
            end: page.add(GAP_PAGES),
        };
        if looks_for_gaps && gap.end <= range.end && holds_none(gap) {
            looks_for_gaps = nothing_swapped();
            if looks_for_gaps {
                page = gap.end;
                continue;
            }
        }
        let part = gap.intersection(range);
        for_each_entry(file, part, |page, entry| {
            if entry & entry::PRESENT_OR_SWAPPED != 0 {
                found(PageRange::one(page), false);
            }
        })?;
        page = part.end;
    }
    Ok(())
}

/// Bits of an entry.
mod entry {
    /// Write-protected by a userfaultfd, or marked so where the page is absent (5.14).
    pub const WRITE_PROTECTED: u64 = 1 << 57;
    pub const PRESENT_OR_SWAPPED: u64 = 3 << 62;
}

/// Calls `visit` with each page of `range` and its entry.
fn for_each_entry(
    file: &OwnedFd,
    range: PageRange,
    mut visit: impl FnMut(PageNumber, u64),
) -> Result<(), Errno> {
    let mut entries = [0u8; 512 * 8];
    let mut page = range.start;
    while page < range.end {
        let want = ((range.end.0 - page.0) as usize).min(512);
        let read = rustix::io::pread(file, &mut entries[..want * 8], page.0 * 8)?;
        if read < 8 {
            return Err(Errno::IO);
        }
        for entry in entries[..read].as_chunks::<8>().0 {
            visit(page, u64::from_ne_bytes(*entry));
            page = page.add(1);
        }
    }
    Ok(())
}

/// Parts of 4 GiB are looked at for whether they hold anything: reservations of terabytes are
/// mostly empty, and `mincore` is an order of magnitude quicker over what is empty than reading
/// entries.
const GAP_PAGES: u64 = 1 << 20;

/// Whether no page of `range` is present, by `mincore`; not so where something is not mapped.
fn holds_none(range: PageRange) -> bool {
    let mut none = true;
    let walked = populated_by_mincore(range, |_, _| none = false);
    walked.is_ok() && none
}

/// Whether no page of this process is swapped out. False if that cannot be told.
fn nothing_swapped() -> bool {
    let mut status = [0u8; 4096];
    let read = crate::procfs::open_self(c"/proc/self/status")
        .and_then(|file| rustix::io::read(file, &mut status[..]));
    let Ok(text) = read.map(|len| &status[..len]) else {
        return false;
    };
    let line = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"VmSwap:"));
    line.is_some_and(|line| line.trim_ascii() == b"0 kB")
}

/// Calls `found` with each page of private anonymous memory that is present or being migrated, by
/// `mincore`. Where no swap is in use, all others hold zeros: unlike `PAGEMAP_SCAN`, this tells a
/// write-protect marker from a page that is on its way elsewhere.
pub fn holds_bytes(range: PageRange, mut found: impl FnMut(PageRange)) -> Result<(), Errno> {
    populated_by_mincore(range, |run, _| found(run))
}

fn populated_by_mincore(
    range: PageRange,
    mut found: impl FnMut(PageRange, bool),
) -> Result<(), Errno> {
    const SYS_MINCORE: usize = 27;
    let mut residency = [0u8; 4096];
    let mut page = range.start;
    while page < range.end {
        let pages = (range.end.0 - page.0).min(residency.len() as u64);
        let len = (pages as usize) * crate::PAGE_SIZE;
        // SAFETY: mincore(2) writes one byte a page into `residency`, which has room for them.
        match unsafe {
            crate::fork::syscall6(
                SYS_MINCORE,
                [
                    page.address(),
                    len,
                    residency.as_mut_ptr() as usize,
                    0,
                    0,
                    0,
                ],
            )
        } {
            0 => {}
            error => return Err(Errno::from_raw_os_error(-error as i32)),
        }
        for (index, eight) in residency.as_chunks::<8>().0.iter().enumerate() {
            if u64::from_ne_bytes(*eight) == 0 {
                continue;
            }
            for (within, resident) in eight.iter().enumerate() {
                let offset = (8 * index + within) as u64;
                if resident & 1 != 0 && offset < pages {
                    found(PageRange::one(page.add(offset)), false);
                }
            }
        }
        page = page.add(pages);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_apart_in_a_large_reservation_is_found_entry_by_entry() {
        let pages = 5 * GAP_PAGES + 77;
        let mapping = crate::own::Mapping::new(pages as usize * crate::PAGE_SIZE).unwrap();
        let start = mapping.range().start;
        // The first and the last of all, those at an edge, and one in the last, incomplete part.
        let touched = [
            0,
            GAP_PAGES - 1,
            3 * GAP_PAGES,
            5 * GAP_PAGES + 3,
            pages - 1,
        ];
        let touched = touched.map(|index| start.add(index));
        for page in touched {
            // SAFETY: in our own mapping, which nobody else uses.
            unsafe { *(page.address() as *mut u8) = 1 };
        }
        let file = crate::procfs::open_self(c"/proc/self/pagemap").unwrap();
        let mut found = Vec::new();
        populated_by_entries(&file, mapping.range(), |run, _| found.extend(run.iter())).unwrap();
        // Huge pages bring neighbours with them.
        found.retain(|page| touched.contains(page));
        assert_eq!(found, touched);
        let gap = |index| PageRange {
            start: start.add(index),
            end: start.add(index + GAP_PAGES),
        };
        assert!(holds_none(gap(GAP_PAGES + 1024)), "nobody touched it");
        assert!(!holds_none(gap(3 * GAP_PAGES)));
    }
}
