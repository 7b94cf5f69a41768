//! Advice about memory of the program's: emptying it, making it writable in fact, keeping it out of
//! forked children; and reading it whatever its protection.
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::mask::{self, Masked};
use crate::page::{PAGE_SIZE, PageNumber, PageRange};
use crate::syscall::syscall;

const SYS_BRK: usize = 12;
const SYS_MADVISE: usize = 28;
const SYS_PROCESS_MADVISE: usize = 440;
const MADV_DONTNEED: usize = 4;
const MADV_DONTFORK: usize = 10;
const MADV_DOFORK: usize = 11;
const MADV_POPULATE_READ: usize = 22;
const MADV_POPULATE_WRITE: usize = 23;

fn madvise(range: PageRange, advice: usize) -> Result<(), Errno> {
    // SAFETY: only reached from the functions below, each of which answers for its advice.
    unsafe { syscall(SYS_MADVISE, [range.address(), range.bytes(), advice]) }.map(drop)
}

/// The page after the heap that `brk` grows, as far as there is one.
pub fn heap_end() -> PageNumber {
    // SAFETY: a break of 0 is refused: the call changes nothing and says what the break is.
    let end = unsafe { syscall(SYS_BRK, [0]) }.unwrap_or(0);
    PageNumber(end.div_ceil(PAGE_SIZE) as u64)
}

/// Empties `range`: its pages are gone, and missing when next touched. On a userfaultfd with remove
/// events this waits until the event is read.
///
/// # Safety
/// The bytes of `range` are stored elsewhere, and are put back when they are next touched.
pub unsafe fn drop_pages(range: PageRange) -> Result<(), Errno> {
    madvise(range, MADV_DONTNEED)
}

/// Breaks copy-on-write sharing of the present pages of `range` without changing a byte (5.14).
pub fn make_exclusive(range: PageRange) -> Result<(), Errno> {
    madvise(range, MADV_POPULATE_WRITE)
}

/// Takes the range out of the kernel's merging of equal pages, which drops write protection unseen.
/// Where the kernel does not merge nothing is done.
pub fn unmerge(range: PageRange) {
    // SAFETY: changes no byte; pages that were shared with others of the same contents become the
    // process's own.
    let _ = unsafe {
        rustix::mm::madvise(
            range.address() as *mut _,
            range.bytes(),
            rustix::mm::Advice::LinuxUnmergeable,
        )
    };
}

/// Faults `range` in for reading, as an access by this thread would. Where an access would end in a
/// signal, this is an error (`EFAULT`, or `EHWPOISON`), and the pages before are present.
///
/// Before 5.14 a byte of each page is copied by a system call.
pub fn populate(range: PageRange) -> Result<(), Errno> {
    match madvise(range, MADV_POPULATE_READ) {
        Err(Errno::INVAL) => read_a_byte_of_each(range),
        result => result,
    }
}

/// `process_vm_readv` on oneself with one byte a page.
fn read_a_byte_of_each(range: PageRange) -> Result<(), Errno> {
    const AT_ONCE: usize = 256;
    let mut bytes = [0u8; AT_ONCE];
    let mut spans = [Span::default(); AT_ONCE];
    let mut rest = range;
    while !rest.is_empty() {
        let count = (rest.pages() as usize).min(AT_ONCE);
        for (span, page) in spans.iter_mut().zip(rest.iter()) {
            *span = Span {
                address: page.address(),
                len: 1,
            };
        }
        let read = read_own(&mut [IoSliceMut::new(&mut bytes[..count])], &spans[..count])?;
        if read < count {
            return Err(Errno::FAULT);
        }
        rest.start = rest.start.add(count as u64);
    }
    Ok(())
}

/// Makes the mappings of `range` read-only, or readable and writable. Errors are the kernel's;
/// `ENOMEM` also where the process would have more mappings than `vm.max_map_count`.
///
/// # Safety
/// The program's threads that write to `range` while it is read-only get SIGSEGV; the caller
/// answers for what they make of it. `range` was readable and writable before.
pub unsafe fn set_writable(range: PageRange, writable: bool) -> Result<(), Errno> {
    const SYS_MPROTECT: usize = 10;
    const READ: usize = 1;
    const WRITE: usize = 2;
    let protection = if writable { READ | WRITE } else { READ };
    let args = [range.address(), range.bytes(), protection];
    // SAFETY: mprotect(2) changes no bytes; the caller answers for the change of access.
    unsafe { syscall(SYS_MPROTECT, args) }.map(drop)
}

/// Leaves `range` out of forked children, or ends that. Parts of `range` that are not mapped are
/// passed over.
pub fn set_inherited(range: PageRange, inherited: bool) -> Result<(), Errno> {
    let advice = if inherited {
        MADV_DOFORK
    } else {
        MADV_DONTFORK
    };
    match madvise(range, advice) {
        Err(Errno::NOMEM) => Ok(()),
        result => result,
    }
}

/// Drops many scattered ranges in one call: one flush of the translation caches for all
/// (`process_madvise` on oneself, 6.13).
#[derive(Debug)]
pub struct BatchDropper {
    pidfd: OwnedFd,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    address: usize,
    len: usize,
}

impl BatchDropper {
    /// The most ranges in one call.
    pub const MAX: usize = 256;

    /// For this process; an error where the kernel cannot.
    pub fn new() -> Result<BatchDropper, Errno> {
        mask::check(Masked::ProcessMadvise, Errno::INVAL)?;
        let pidfd = this_process()?;
        let dropper = BatchDropper { pidfd };
        let scratch = crate::own::Mapping::new(PAGE_SIZE)?;
        // SAFETY: the scratch page holds nothing.
        unsafe { dropper.drop_ranges(&[scratch.range()]) }?;
        Ok(dropper)
    }

    /// Empties every range, at most [`BatchDropper::MAX`].
    ///
    /// # Safety
    /// As [`drop_pages`], for each.
    pub unsafe fn drop_ranges(&self, ranges: &[PageRange]) -> Result<(), Errno> {
        // SAFETY: by the caller's word.
        unsafe { advise_all(&self.pidfd, ranges, MADV_DONTNEED, true) }
    }
}

/// A descriptor of this process.
pub fn this_process() -> Result<OwnedFd, Errno> {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    pidfd_open(getpid(), PidfdFlags::empty())
}

/// The same advice about each of `ranges`, at most [`BatchDropper::MAX`]. Where the kernel stops
/// within a range it goes on there if all have to be done, else with the next.
///
/// # Safety
/// As the advice asks.
pub(crate) unsafe fn advise_all(
    this_process: &OwnedFd,
    ranges: &[PageRange],
    advice: usize,
    all: bool,
) -> Result<(), Errno> {
    let mut spans = [Span::default(); BatchDropper::MAX];
    for (span, range) in spans.iter_mut().zip(ranges) {
        *span = Span {
            address: range.address(),
            len: range.bytes(),
        };
    }
    let mut rest = &spans[..ranges.len()];
    let process = this_process.as_raw_fd() as usize;
    while !rest.is_empty() {
        let args = [process, rest.as_ptr() as usize, rest.len(), advice, 0];
        // SAFETY: `rest` is a live array of iovecs; the caller answers for the bytes they name.
        let mut done = unsafe { syscall(SYS_PROCESS_MADVISE, args) }?;
        if done == 0 {
            return Err(Errno::IO);
        }
        while let Some(first) = rest.first()
            && done >= first.len
        {
            done -= first.len;
            rest = &rest[1..];
        }
        if done > 0 && !all {
            rest = &rest[1..];
        }
    }
    Ok(())
}

/// Reads pages of this process whatever their protection (`/proc/self/mem`). Where that cannot be
/// opened, which a process that gave up its privileges may not, those alone that it could read
/// itself.
#[derive(Debug)]
pub struct OwnMemory(Option<OwnedFd>);

impl OwnMemory {
    /// Opens it.
    pub fn open() -> OwnMemory {
        OwnMemory(crate::procfs::open_self(c"/proc/self/mem").ok())
    }

    /// Copies the bytes of the pages from `first` on, each into the room for it; returns how many,
    /// up to the first that is not mapped or may not be read.
    ///
    /// # Panics
    /// If a room is not as large as a page.
    pub fn read(&self, first: PageNumber, rooms: &mut [IoSliceMut<'_>]) -> usize {
        assert!(rooms.iter().all(|room| room.len() == PAGE_SIZE));
        let read = match &self.0 {
            Some(file) => rustix::io::preadv(file, rooms, first.address() as u64),
            None => read_as_the_process(first, rooms),
        };
        read.unwrap_or(0) / PAGE_SIZE
    }
}

/// Like reading in place, but what may not be read is an error.
fn read_as_the_process(first: PageNumber, rooms: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    let from = Span {
        address: first.address(),
        len: rooms.len() * PAGE_SIZE,
    };
    read_own(rooms, &[from])
}

/// `process_vm_readv` on oneself, which asks for no privilege: the number of bytes up to the first
/// that cannot be read.
fn read_own(rooms: &mut [IoSliceMut<'_>], from: &[Span]) -> Result<usize, Errno> {
    const SYS_PROCESS_VM_READV: usize = 310;
    let args = [
        rustix::process::getpid().as_raw_nonzero().get() as usize,
        rooms.as_mut_ptr() as usize,
        rooms.len(),
        from.as_ptr() as usize,
        from.len(),
        0,
    ];
    // SAFETY: `IoSliceMut` is an iovec by its definition; the kernel writes to the rooms alone,
    // which are exclusive, and checks what it reads.
    unsafe { syscall(SYS_PROCESS_VM_READV, args) }
}

/// Ends this process at once; nothing of it runs any more.
pub fn kill_self() -> ! {
    let pid = rustix::process::getpid();
    loop {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Asks the kernel to start writing `len` bytes from `offset` of the file behind `fd` to its disk,
/// without waiting (`sync_file_range`). A hint: errors do not matter.
pub fn start_writing(fd: std::os::fd::RawFd, offset: u64, len: u64) {
    const SYS_SYNC_FILE_RANGE: usize = 277;
    const WRITE: usize = 2;
    let args = [fd as usize, offset as usize, len as usize, WRITE];
    // SAFETY: sync_file_range(2) touches no memory and changes no contents.
    let _ = unsafe { syscall(SYS_SYNC_FILE_RANGE, args) };
}
