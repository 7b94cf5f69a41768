//! Locking: the `mlock` family, the advice that goes with it, and `memfd_secret`, as bare system
//! calls with their own errors.
//!
//! Locking changes no byte and breaks no reference, so these functions are safe whatever the
//! address; a wrong one is an errno.
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::fork::syscall6;
use crate::limits::LockLimits;
use crate::page::PageRange;
use crate::smaps;

const SYS_MREMAP: usize = 25;
const SYS_MSYNC: usize = 26;
const SYS_MADVISE: usize = 28;
const SYS_MLOCK: usize = 149;
const SYS_MUNLOCK: usize = 150;
const SYS_MLOCKALL: usize = 151;
const SYS_MUNLOCKALL: usize = 152;
const SYS_MLOCK2: usize = 325;
const SYS_PROCESS_MADVISE: usize = 440;
const SYS_MEMFD_SECRET: usize = 447;

/// `mlock2`: pages are locked as they are touched.
pub const MLOCK_ONFAULT: u32 = 1;
/// `mlockall`: what is mapped now.
pub const MCL_CURRENT: u32 = 1;
/// `mlockall`: what will be mapped.
pub const MCL_FUTURE: u32 = 2;
/// `mlockall`: as pages are touched (4.4).
pub const MCL_ONFAULT: u32 = 4;

fn plain(number: usize, args: [usize; 6]) -> Result<(), Errno> {
    // SAFETY: only reached from this file, with calls that lock, unlock or give harmless advice;
    // none changes a byte of memory.
    match unsafe { syscall6(number, args) } {
        0.. => Ok(()),
        error => Err(Errno::from_raw_os_error(-error as i32)),
    }
}

/// `mlock2(2)`; with no flags `mlock(2)`, which every kernel has.
pub fn mlock2(address: usize, len: usize, flags: u32) -> Result<(), Errno> {
    if flags == 0 {
        return plain(SYS_MLOCK, [address, len, 0, 0, 0, 0]);
    }
    match plain(SYS_MLOCK2, [address, len, flags as usize, 0, 0, 0]) {
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
    plain(SYS_MUNLOCK, [address, len, 0, 0, 0, 0])
}

/// `mlockall(2)`.
pub fn mlockall(flags: u32) -> Result<(), Errno> {
    plain(SYS_MLOCKALL, [flags as usize, 0, 0, 0, 0, 0])
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
    let args = [address, old_len, new_len, flags as usize, to, 0];
    // SAFETY: by the caller's word.
    match unsafe { syscall6(SYS_MREMAP, args) } {
        moved if (-4095..0).contains(&moved) => Err(Errno::from_raw_os_error(-moved as i32)),
        moved => Ok(moved as usize),
    }
}

/// `munlockall(2)`.
pub fn munlockall() -> Result<(), Errno> {
    plain(SYS_MUNLOCKALL, [0; 6])
}

/// Whether every page from `address`, which must be a multiple of the page size, to `address + len`
/// is mapped: `msync(MS_ASYNC)`, which does no work since 2.6.19 but says ENOMEM where there is a
/// hole.
pub fn is_mapped(address: usize, len: usize) -> bool {
    const MS_ASYNC: usize = 1;
    plain(SYS_MSYNC, [address, len, MS_ASYNC, 0, 0, 0]).is_ok()
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
    let args = [range.address(), range.bytes(), hint as usize, 0, 0, 0];
    plain(SYS_MADVISE, args)
}

/// Gives locked pages of private memory back and keeps the lock: `MADV_DONTNEED_LOCKED` (5.18). The
/// next touch finds zeros (or the file's bytes).
///
/// # Safety
/// Nothing relies on the bytes of `range` any more, and no reference into it lives.
pub unsafe fn give_back_locked(range: PageRange) -> Result<(), Errno> {
    const MADV_DONTNEED_LOCKED: usize = 24;
    plain(
        SYS_MADVISE,
        [
            range.address(),
            range.bytes(),
            MADV_DONTNEED_LOCKED,
            0,
            0,
            0,
        ],
    )
}

/// `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Span {
    address: usize,
    len: usize,
}

/// The most ranges in one [`will_need_all`].
pub const SPANS_MAX: usize = 256;

/// Starts reading many scattered ranges in one call: `process_madvise(MADV_WILLNEED)` on this
/// process (5.10). At most [`SPANS_MAX`].
///
/// Returns when the reads are queued, so many are in flight at once. Before 5.10, one call a range.
pub fn will_need_all(this_process: &OwnedFd, ranges: &[PageRange]) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let mut spans = [Span { address: 0, len: 0 }; SPANS_MAX];
    for (span, range) in spans.iter_mut().zip(ranges) {
        *span = Span {
            address: range.address(),
            len: range.bytes(),
        };
    }
    let mut rest = &spans[..ranges.len().min(SPANS_MAX)];
    while !rest.is_empty() {
        let args = [
            this_process.as_raw_fd() as usize,
            rest.as_ptr() as usize,
            rest.len(),
            Hint::WillNeed as usize,
            0,
            0,
        ];
        // SAFETY: `rest` is a live array of iovecs; reading ahead changes no byte.
        let done = unsafe { syscall6(SYS_PROCESS_MADVISE, args) };
        if done <= 0 {
            return Err(Errno::from_raw_os_error(-done as i32));
        }
        let mut done = done as usize;
        while let Some(first) = rest.first() {
            if done < first.len {
                break;
            }
            done -= first.len;
            rest = &rest[1..];
        }
        // A part of a range: the rest of it is not worth a call of its own.
        if done > 0 {
            rest = &rest[1..];
        }
    }
    Ok(())
}

/// A descriptor of this process, for [`will_need_all`].
pub fn this_process() -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    )
}

/// `memfd_secret(2)` (5.14; some kernels need `secretmem.enable=1`): memory that even the kernel
/// does not map.
pub fn memfd_secret() -> Result<OwnedFd, Errno> {
    const O_CLOEXEC: usize = 0o2000000;
    // SAFETY: makes a descriptor, nothing else.
    match unsafe { syscall6(SYS_MEMFD_SECRET, [O_CLOEXEC, 0, 0, 0, 0, 0]) } {
        // SAFETY: fresh and ours.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        error => Err(Errno::from_raw_os_error(-error as i32)),
    }
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
