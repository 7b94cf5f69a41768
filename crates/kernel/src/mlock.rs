//! Locking: the `mlock` family, the advice that goes with it, and `memfd_secret`, as bare system
//! calls with their own errors.
//!
//! Locking changes no byte and breaks no reference, so these functions are safe whatever the
//! address; a wrong one is an errno.
use std::os::fd::{FromRawFd as _, OwnedFd};

use rustix::io::Errno;

use crate::limits::LockLimits;
pub use crate::memory::this_process;
use crate::memory::{BatchDropper, advise_all};
use crate::page::PageRange;
use crate::smaps;
use crate::syscall::syscall;

const SYS_MREMAP: usize = 25;
const SYS_MSYNC: usize = 26;
const SYS_MADVISE: usize = 28;
const SYS_MLOCK: usize = 149;
const SYS_MUNLOCK: usize = 150;
const SYS_MLOCKALL: usize = 151;
const SYS_MUNLOCKALL: usize = 152;
const SYS_MLOCK2: usize = 325;
const SYS_MEMFD_SECRET: usize = 447;

/// `mlock2`: pages are locked as they are touched.
pub const MLOCK_ONFAULT: u32 = 1;
/// `mlockall`: what is mapped now.
pub const MCL_CURRENT: u32 = 1;
/// `mlockall`: what will be mapped.
pub const MCL_FUTURE: u32 = 2;
/// `mlockall`: as pages are touched (4.4).
pub const MCL_ONFAULT: u32 = 4;

fn plain<const N: usize>(number: usize, args: [usize; N]) -> Result<(), Errno> {
    // SAFETY: only reached from this file, with calls that lock, unlock or give harmless advice;
    // none changes a byte of memory.
    unsafe { syscall(number, args) }.map(drop)
}

/// `mlock2(2)`; with no flags `mlock(2)`, which every kernel has.
pub fn mlock2(address: usize, len: usize, flags: u32) -> Result<(), Errno> {
    if flags == 0 {
        return plain(SYS_MLOCK, [address, len]);
    }
    match plain(SYS_MLOCK2, [address, len, flags as usize]) {
        // Before 5.18 the kernel looks for present pages once it has locked everything, and says
        // ENOMEM of memory without access. It says so of the limit, too, and has locked nothing
        // then: but what was locked already may be beyond a limit that was lowered since.
        Err(Errno::NOMEM) if flags == MLOCK_ONFAULT && is_locked(address, len) => {
            let limits = LockLimits::read();
            match limits.room().is_none_or(|room| limits.in_use <= room) {
                true => Ok(()),
                false => Err(Errno::NOMEM),
            }
        }
        result => result,
    }
}

/// Whether all of `address..address + len` lies in locked mappings; no where the kernel's list
/// cannot be read.
fn is_locked(address: usize, len: usize) -> bool {
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    let Ok(areas) = smaps::locked(None) else {
        return false;
    };
    let mut locked_to = address;
    for area in areas {
        if area.start <= locked_to {
            locked_to = locked_to.max(area.end);
        }
    }
    locked_to >= end
}

/// `munlock(2)`.
pub fn munlock(address: usize, len: usize) -> Result<(), Errno> {
    plain(SYS_MUNLOCK, [address, len])
}

/// `mlockall(2)`.
pub fn mlockall(flags: u32) -> Result<(), Errno> {
    plain(SYS_MLOCKALL, [flags as usize])
}

/// `mremap(2)`, with all five arguments: the C library's reads the fifth with `MREMAP_DONTUNMAP`
/// too, where callers that know it for `MREMAP_FIXED` only leave whatever was in the register.
///
/// # Safety
/// As `mremap`: nothing uses the old range any more (unless it grows in place), nor what was mapped
/// at `to` with `MREMAP_FIXED`.
pub unsafe fn mremap(
    address: usize,
    old_len: usize,
    new_len: usize,
    flags: u32,
    to: usize,
) -> Result<usize, Errno> {
    let args = [address, old_len, new_len, flags as usize, to];
    // SAFETY: by the caller's word.
    unsafe { syscall(SYS_MREMAP, args) }
}

/// `munlockall(2)`.
pub fn munlockall() -> Result<(), Errno> {
    plain(SYS_MUNLOCKALL, [])
}

/// Whether every page from `address`, which must be a multiple of the page size, to `address + len`
/// is mapped: `msync(MS_ASYNC)`, which does no work since 2.6.19 but says ENOMEM where there is a
/// hole.
pub fn is_mapped(address: usize, len: usize) -> bool {
    const MS_ASYNC: usize = 1;
    plain(SYS_MSYNC, [address, len, MS_ASYNC]).is_ok()
}

/// The part of `range` before its first page that is not mapped. Needs no descriptor.
pub fn mapped_head(range: PageRange) -> PageRange {
    let head = |pages: u64| PageRange {
        start: range.start,
        end: range.start.add(pages),
    };
    let is_whole = |pages: u64| is_mapped(range.address(), head(pages).bytes());
    // What is mapped is a prefix: so many pages are, more than `above` are not.
    let (mut pages, mut above) = (0, range.pages());
    while pages < above {
        let middle = pages + (above - pages).div_ceil(2);
        if is_whole(middle) {
            pages = middle;
        } else {
            above = middle - 1;
        }
    }
    head(pages)
}

/// Whether any of `range` may be locked: the kernel refuses to call such memory cold. It also
/// refuses `hugetlb` and device memory, and before 5.4 everything. What is not locked is aged by
/// the question.
pub fn may_be_locked(range: PageRange) -> bool {
    hint(range, Hint::Cold) == Err(Errno::INVAL)
}

/// Advice that changes no byte that anyone may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Hint {
    /// Read-around as the kernel sees fit.
    Normal = 0,
    /// No read-around.
    Random = 1,
    /// More read-ahead.
    Sequential = 2,
    /// Start reading now, do not wait.
    WillNeed = 3,
    /// Unlikely to be used soon (5.4). Refused (`EINVAL`) where memory is locked.
    Cold = 20,
    /// Not in forked children.
    DontFork = 10,
    /// No huge pages.
    NoHugePage = 15,
    /// Not in core dumps.
    DontDump = 16,
    /// Zeros in forked children (4.14).
    WipeOnFork = 18,
    /// Fault in for writing, and wait for it (5.14).
    PopulateWrite = 23,
}

/// `madvise(2)` with a harmless hint.
pub fn hint(range: PageRange, hint: Hint) -> Result<(), Errno> {
    let args = [range.address(), range.bytes(), hint as usize];
    plain(SYS_MADVISE, args)
}

/// Gives locked pages of private memory back and keeps the lock: `MADV_DONTNEED_LOCKED` (5.18). The
/// next touch finds zeros (or the file's bytes).
///
/// # Safety
/// Nothing relies on the bytes of `range` any more, and no reference into it lives.
pub unsafe fn give_back_locked(range: PageRange) -> Result<(), Errno> {
    const MADV_DONTNEED_LOCKED: usize = 24;
    let args = [range.address(), range.bytes(), MADV_DONTNEED_LOCKED];
    plain(SYS_MADVISE, args)
}

/// The most ranges in one [`will_need_all`].
pub const SPANS_MAX: usize = BatchDropper::MAX;

/// Starts reading many scattered ranges in one call: `process_madvise(MADV_WILLNEED)` on this
/// process (5.10). At most [`SPANS_MAX`].
///
/// Returns when the reads are queued, so many are in flight at once. Before 5.10, one call a range.
pub fn will_need_all(this_process: &OwnedFd, ranges: &[PageRange]) -> Result<(), Errno> {
    let ranges = &ranges[..ranges.len().min(SPANS_MAX)];
    // A part of a range: the rest of it is not worth a call of its own.
    // SAFETY: reading ahead changes no byte.
    unsafe { advise_all(this_process, ranges, Hint::WillNeed as usize, false) }
}

/// `memfd_secret(2)` (5.14; some kernels need `secretmem.enable=1`): memory that even the kernel
/// does not map.
pub fn memfd_secret() -> Result<OwnedFd, Errno> {
    const O_CLOEXEC: usize = 0o2000000;
    // SAFETY: makes a descriptor, nothing else; it is fresh and ours.
    unsafe { syscall(SYS_MEMFD_SECRET, [O_CLOEXEC]).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own::Mapping;
    use crate::page::PAGE_SIZE;

    #[test]
    fn errors_are_the_kernels() {
        let page = Mapping::new(PAGE_SIZE).unwrap();
        let address = page.as_ptr() as usize;
        assert_eq!(mlock2(address, PAGE_SIZE, 0x80), Err(Errno::INVAL));
        assert_eq!(mlock2(address, usize::MAX - 4096, 0), Err(Errno::INVAL));
        assert_eq!(mlockall(0), Err(Errno::INVAL));
        assert_eq!(mlockall(MCL_ONFAULT), Err(Errno::INVAL));
        assert!(is_mapped(address, PAGE_SIZE));
        drop(page);
    }

    #[test]
    fn a_hole_is_seen() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        // Far from where the kernel puts the mappings of other tests, which would fill the hole.
        let address = 7 << 32;
        let around = [address, address + 2 * PAGE_SIZE];
        for page in around {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: a new mapping that replaces none.
            unsafe { mmap_anonymous(page as *mut _, PAGE_SIZE, ProtFlags::READ, flags) }.unwrap();
        }
        let pages = PageRange::covering(address, 3 * PAGE_SIZE);
        assert!(!is_mapped(address, 3 * PAGE_SIZE));
        assert!(is_mapped(address, PAGE_SIZE));
        assert_eq!(mapped_head(pages).pages(), 1);
        let first = PageRange::covering(address, PAGE_SIZE);
        assert_eq!(mapped_head(first), first);
        assert!(mapped_head(PageRange::EMPTY).is_empty());
        assert!(!may_be_locked(first));
        mlock2(address, PAGE_SIZE, MLOCK_ONFAULT).unwrap();
        assert!(may_be_locked(first));
        for page in around {
            // SAFETY: mapped above, referred to by nobody.
            unsafe { munmap(page as *mut _, PAGE_SIZE) }.unwrap();
        }
    }
}
