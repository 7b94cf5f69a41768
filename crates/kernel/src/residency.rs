//! Which pages of a file are in memory: `mincore` and `cachestat`, and which of them the kernel
//! holds unevictable: `kpageflags`.
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::page::{PageNumber, PageRange};
use crate::syscall::syscall;

const SYS_MINCORE: usize = 27;
const SYS_CACHESTAT: usize = 451;

/// `mincore(2)`: one byte a page of `range` into `present`, its lowest bit set for a page in memory
/// (of a file: in the page cache).
///
/// For a file that the caller neither owns nor may write, the kernel says that every page is (5.2).
///
/// # Panics
/// If `present` has fewer bytes than the range pages.
pub fn mincore(range: PageRange, present: &mut [u8]) -> Result<(), Errno> {
    assert!(present.len() as u64 >= range.pages());
    let into = present.as_mut_ptr() as usize;
    // SAFETY: one byte a page is written, and there is room for them.
    unsafe { syscall(SYS_MINCORE, [range.address(), range.bytes(), into]) }.map(drop)
}

/// What `cachestat(2)` (6.5) counts, in pages.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CacheStat {
    pub cached: u64,
    pub dirty: u64,
    pub writeback: u64,
    pub evicted: u64,
    pub recently_evicted: u64,
}

/// Counts the cached pages of a file: cheap, for it looks at the cache alone.
pub fn cachestat(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<CacheStat, Errno> {
    let range = [offset, len];
    let mut stat = CacheStat::default();
    let args = [
        file.as_raw_fd() as usize,
        range.as_ptr() as usize,
        &raw mut stat as usize,
        0,
    ];
    // SAFETY: two words are read and five written, both ours.
    unsafe { syscall(SYS_CACHESTAT, args) }.map(|_| stat)
}

/// Whether the kernel tells this process which pages of an open file are in the page cache: its
/// owner, whoever may write it, and root (5.2). To others `mincore` says that all of them are, and
/// every other way of asking has the page read.
pub fn is_told(file: BorrowedFd<'_>) -> bool {
    use rustix::fs::{Access, AtFlags, accessat, fstat};
    let user = rustix::process::geteuid();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    user.is_root()
        || fstat(file).is_ok_and(|stat| stat.st_uid == user.as_raw())
        || accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// A file mapped read only, of which no byte is read here: for questions about its pages.
#[derive(Debug)]
pub struct FileMapping<'a> {
    file: BorrowedFd<'a>,
    range: PageRange,
    size: u64,
}

impl<'a> FileMapping<'a> {
    /// Maps all of `file`, without read-around.
    pub fn new(file: &'a impl std::os::fd::AsFd) -> Result<FileMapping<'a>, Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = file.as_fd();
        let size = rustix::fs::fstat(file)?.st_size as u64;
        if size == 0 {
            return Ok(FileMapping {
                file,
                range: PageRange::EMPTY,
                size,
            });
        }
        // SAFETY: a new mapping at a place of the kernel's choice, read by nobody.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size as usize,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let range = PageRange::covering(address as usize, size as usize);
        let mapping = FileMapping { file, range, size };
        crate::mlock::hint(range, crate::mlock::Hint::Random)?;
        Ok(mapping)
    }

    /// Where it is mapped.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The file.
    pub fn descriptor(&self) -> BorrowedFd<'a> {
        self.file
    }
}

impl Drop for FileMapping<'_> {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            // SAFETY: mapped by `new`; its address has been given out for questions only.
            let _ =
                unsafe { rustix::mm::munmap(self.range.address() as *mut _, self.range.bytes()) };
        }
    }
}

/// Major faults of this process so far (`getrusage`): pages that a thread had to wait for a device
/// for.
pub fn major_faults() -> u64 {
    const SYS_GETRUSAGE: usize = 98;
    const MAJOR_FAULTS: usize = 9;
    // `struct rusage`: two times of two words each, then fourteen counters; the sixth of them is
    // `ru_majflt`.
    let mut usage = [0u64; 18];
    // SAFETY: for this process, into an array of the size of `struct rusage`.
    let _ = unsafe { syscall(SYS_GETRUSAGE, [0, usage.as_mut_ptr() as usize]) };
    usage[MAJOR_FAULTS]
}

/// Page frames and their flags: `/proc/self/pagemap` with frame numbers and `/proc/kpageflags`; for
/// root.
#[derive(Debug)]
pub struct Frames {
    pagemap: OwnedFd,
    flags: OwnedFd,
}

/// The kernel will not evict the frame: it is locked, or kept by a file system.
pub const UNEVICTABLE: u64 = 1 << 18;
/// The frame is mapped with a lock by some process.
pub const MLOCKED: u64 = 1 << 33;

impl Frames {
    /// Opens both; an error says that this process may not see frames.
    pub fn open() -> Result<Frames, Errno> {
        let open = |path: &std::ffi::CStr| {
            openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        };
        Ok(Frames {
            pagemap: open(c"/proc/self/pagemap")?,
            flags: open(c"/proc/kpageflags")?,
        })
    }

    /// Calls `found` with each present page of `range` and its frame's flags. `Errno::PERM` if
    /// frame numbers are hidden from this process.
    pub fn for_each(
        &self,
        range: PageRange,
        mut found: impl FnMut(PageNumber, u64),
    ) -> Result<(), Errno> {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        let mut entries = [0u8; 512 * 8];
        let mut page = range.start;
        while page < range.end {
            let want = ((range.end.0 - page.0) as usize).min(512);
            let read = rustix::io::pread(&self.pagemap, &mut entries[..want * 8], page.0 * 8)?;
            if read < 8 {
                return Err(Errno::IO);
            }
            for entry in entries[..read].as_chunks::<8>().0 {
                let entry = u64::from_ne_bytes(*entry);
                if entry & PRESENT != 0 {
                    if entry & FRAME == 0 {
                        return Err(Errno::PERM);
                    }
                    let mut flags = [0u8; 8];
                    rustix::io::pread(&self.flags, &mut flags, (entry & FRAME) * 8)?;
                    found(page, u64::from_ne_bytes(flags));
                }
                page = page.add(1);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own::Mapping;

    #[test]
    fn touched_pages_are_in_memory_and_others_are_not() {
        let pages = Mapping::new(4 * crate::PAGE_SIZE).unwrap();
        // SAFETY: the second page of our own mapping.
        unsafe { pages.as_ptr().add(crate::PAGE_SIZE).write(1) };
        let mut present = [0; 4];
        mincore(pages.range(), &mut present).unwrap();
        assert_eq!(present.map(|byte| byte & 1), [0, 1, 0, 0]);
    }
}
