//! userfaultfd: fault and event messages, and the operations that install, protect and move pages.
//!
//! Errnos are named once here: `EEXIST` is [`Stop::Present`], `ENOENT` [`Stop::Absent`], `EAGAIN`
//! [`Stop::EventPending`], `EBUSY` [`Stop::Pinned`], `ESRCH` [`Stop::Gone`], `EINVAL`
//! [`Stop::Refused`].
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater, opcode};

use crate::mask;
use crate::page::{PAGE_SHIFT, PageNumber, PageRange};

pub mod events;
mod message;
mod moving;
mod open;
mod rwp;

pub use message::{Event, Message};
pub use open::{OpenError, open, open_device, open_for_user_mode};
pub use rwp::OnTouch;

/// `UFFDIO_API` feature bits (`linux/userfaultfd.h`), with the kernel release that brought each.
pub mod feature {
    #![allow(missing_docs)]
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0; // 5.7
    pub const EVENT_FORK: u64 = 1 << 1; // 4.11
    pub const EVENT_REMAP: u64 = 1 << 2; // 4.11
    pub const EVENT_REMOVE: u64 = 1 << 3; // 4.11
    pub const MISSING_HUGETLBFS: u64 = 1 << 4; // 4.11
    pub const MISSING_SHMEM: u64 = 1 << 5; // 4.11
    pub const EVENT_UNMAP: u64 = 1 << 6; // 4.11
    pub const SIGBUS: u64 = 1 << 7; // 4.14
    pub const THREAD_ID: u64 = 1 << 8; // 4.14
    pub const MINOR_HUGETLBFS: u64 = 1 << 9; // 5.13
    pub const MINOR_SHMEM: u64 = 1 << 10; // 5.14
    pub const EXACT_ADDRESS: u64 = 1 << 11; // 5.18
    pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12; // 5.19
    pub const WP_UNPOPULATED: u64 = 1 << 13; // 6.4
    pub const POISON: u64 = 1 << 14; // 6.6
    pub const WP_ASYNC: u64 = 1 << 15; // 6.7
    pub const MOVE: u64 = 1 << 16; // 6.8
    pub const RWP: u64 = 1 << 17; // 7.3
    pub const RWP_ASYNC: u64 = 1 << 18; // 7.3
}

const UFFD_API: u64 = 0xAA;
const GROUP: u8 = 0xAA;

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}
#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}
/// `uffdio_copy` and `uffdio_move` have the same layout.
#[repr(C)]
struct TransferArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct ZeropageArg {
    range: RangeArg,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct WriteprotectArg {
    range: RangeArg,
    mode: u64,
}
#[repr(C)]
struct PoisonArg {
    range: RangeArg,
    mode: u64,
    done: i64,
}

const API: Opcode = opcode::read_write::<ApiArg>(GROUP, 0x3F);
const REGISTER: Opcode = opcode::read_write::<RegisterArg>(GROUP, 0);
const UNREGISTER: Opcode = opcode::read::<RangeArg>(GROUP, 1);
const WAKE: Opcode = opcode::read::<RangeArg>(GROUP, 2);
const COPY: Opcode = opcode::read_write::<TransferArg>(GROUP, 3);
const ZEROPAGE: Opcode = opcode::read_write::<ZeropageArg>(GROUP, 4);
const MOVE: Opcode = opcode::read_write::<TransferArg>(GROUP, 5);
const WRITEPROTECT: Opcode = opcode::read_write::<WriteprotectArg>(GROUP, 6);
const POISON: Opcode = opcode::read_write::<PoisonArg>(GROUP, 8);
const IOC_NEW: Opcode = opcode::none(GROUP, 0);

const COPY_MODE_WP: u64 = 1 << 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const REGISTER_MODE_MISSING: u64 = 1 << 0;
const REGISTER_MODE_WP: u64 = 1 << 1;

/// Where the address space of a process ends that asks for no more than 47 bits.
const USER_END_PAGE: u64 = (1 << (47 - PAGE_SHIFT)) - 1;

// The numbers in the kernel's ABI, so that a change of a struct above cannot pass unseen.
const _: () = {
    assert!(
        API == 0xC018_AA3F
            && REGISTER == 0xC020_AA00
            && UNREGISTER == 0x8010_AA01
            && WAKE == 0x8010_AA02
    );
    assert!(COPY == 0xC028_AA03 && ZEROPAGE == 0xC020_AA04 && MOVE == 0xC028_AA05);
    assert!(WRITEPROTECT == 0xC018_AA06 && POISON == 0xC020_AA08 && IOC_NEW == 0xAA00);
    assert!(size_of::<Message>() == 32);
};

/// Why an operation over a range stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A page is there already.
    Present,
    /// No page (to move), or no mapping (to install into).
    Absent,
    /// An event message (unmap, remap, remove) is unread or its thread has not gone on yet, or the
    /// work was cut short: try again.
    EventPending,
    /// The page is pinned by a device, or shared with a forked process.
    Pinned,
    /// The address space is gone.
    Gone,
    /// The mapping does not allow this (not registered, locked or protected otherwise than the
    /// other end).
    Refused,
    /// Anything else.
    Other(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        match errno {
            Errno::EXIST => Stop::Present,
            Errno::NOENT => Stop::Absent,
            Errno::AGAIN => Stop::EventPending,
            Errno::BUSY => Stop::Pinned,
            Errno::SRCH => Stop::Gone,
            Errno::INVAL => Stop::Refused,
            other => Stop::Other(other),
        }
    }
}

/// How far an operation over a range came: whole pages done from its start, and why it stopped if
/// that is not all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Pages done.
    pub pages: u64,
    /// None when all were done.
    pub stop: Option<Stop>,
}

/// An open userfaultfd of this process's address space.
///
/// Dropping the last descriptor of a userfaultfd unregisters its memory, and missing pages then
/// read as zeros: the pager keeps its descriptors until the process ends.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: u64,
}

impl Uffd {
    /// The features this kernel has, asked of a throw-away descriptor (a descriptor answers
    /// `UFFDIO_API` once).
    pub fn kernel_features(fd: OwnedFd) -> Result<u64, Errno> {
        Uffd::negotiate(fd, 0).map(|uffd| mask::in_force().uffd_features(uffd.features))
    }

    /// Makes a fresh descriptor usable with exactly `features`.
    pub fn negotiate(fd: OwnedFd, features: u64) -> Result<Uffd, Errno> {
        let mut arg = ApiArg {
            api: UFFD_API,
            features,
            ioctls: 0,
        };
        // SAFETY: the opcode and the struct belong together (asserted above), and the kernel writes
        // only into the struct.
        unsafe { ioctl::ioctl(&fd, Updater::<API, _>::new(&mut arg)) }?;
        Ok(Uffd {
            fd,
            features: if features == 0 {
                arg.features
            } else {
                features
            },
        })
    }

    /// The features negotiated.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Registers private anonymous memory of our own as a target of [`Uffd::move_pages`], without
    /// any faults: missing pages there read as zeros, as usual.
    pub fn register_target(&self, range: PageRange) -> Result<(), Errno> {
        let mut arg = RegisterArg {
            range: range_arg(range),
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: opcode and struct belong together; write-protect mode alone changes nothing until
        // something is protected.
        unsafe { ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut arg)) }
    }

    /// Registers private anonymous memory for missing and write-protect faults.
    ///
    /// # Safety
    /// From now on a thread that touches a missing page of `range` waits until someone installs it.
    /// The caller answers for serving those faults for as long as the memory is registered, from a
    /// thread that never touches `range` itself.
    pub unsafe fn register(&self, range: PageRange) -> Result<(), Errno> {
        let mut arg = RegisterArg {
            range: range_arg(range),
            mode: REGISTER_MODE_MISSING | REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: opcode and struct belong together; what registration does to `range` the caller
        // answers for.
        unsafe { ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut arg)) }
    }

    /// Registers `range` for write-protect faults alone. Nothing is protected yet, so nothing
    /// changes for the program.
    pub fn register_write_protect(&self, range: PageRange) -> Result<(), Errno> {
        self.register_target(range)
    }

    /// Registers `range` for missing faults alone.
    ///
    /// # Safety
    /// As [`Uffd::register`].
    pub unsafe fn register_missing(&self, range: PageRange) -> Result<(), Errno> {
        let mut arg = RegisterArg {
            range: range_arg(range),
            mode: REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        // SAFETY: opcode and struct belong together; what registration does to `range` the caller
        // answers for.
        unsafe { ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut arg)) }
    }

    /// Ends registration; missing pages of `range` read as zeros from now on.
    ///
    /// # Safety
    /// The caller answers for every page of `range` whose bytes matter being resident.
    pub unsafe fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        let mut arg = range_arg(range);
        // SAFETY: opcode and struct belong together; the caller answers for the contents.
        unsafe { ioctl::ioctl(&self.fd, Updater::<UNREGISTER, _>::new(&mut arg)) }
    }

    /// Installs `range` with bytes copied from `source`, write-protected if asked, and wakes the
    /// threads that wait for it. Never overwrites a page.
    ///
    /// # Safety
    /// `source` is readable for the whole length and is not itself served by the calling thread.
    /// The bytes are what the program must find in `range`.
    pub unsafe fn copy(
        &self,
        range: PageRange,
        source: *const u8,
        write_protect: bool,
    ) -> Progress {
        let mode = if write_protect { COPY_MODE_WP } else { 0 };
        let mut arg = transfer(range, source as usize, mode);
        // SAFETY: opcode and struct belong together; the kernel reads `source`, which the caller
        // answers for, and installs only where nothing is mapped.
        let result = unsafe { ioctl::ioctl(&self.fd, Updater::<COPY, _>::new(&mut arg)) };
        progress(result, arg.done)
    }

    /// Whether `range` is one mapping, and registered, at a moment when no event is unread: what is
    /// unmapped, moved or emptied after that raises one, and until it has been read no page of the
    /// mapping is moved. [`Stop::Absent`] if it is not, [`Stop::EventPending`] if it cannot be
    /// said. Installs nothing: it asks for a copy of `unreadable`, a page without access, and the
    /// kernel looks at the mapping before it looks at what is to be copied.
    pub fn is_registered(&self, range: PageRange, unreadable: PageRange) -> Result<(), Stop> {
        let mut rest = range;
        // The kernel wants all of the source in the address space, though it gets no further than
        // its first page.
        let most = (USER_END_PAGE - unreadable.start.0).max(1);
        while !rest.is_empty() {
            let piece = PageRange {
                start: rest.start,
                end: PageNumber(rest.end.0.min(rest.start.0 + most)),
            };
            let mut arg = transfer(piece, unreadable.start.address(), 0);
            // SAFETY: opcode and struct belong together; nothing can be read from `unreadable`, so
            // nothing is installed.
            let result = unsafe { ioctl::ioctl(&self.fd, Updater::<COPY, _>::new(&mut arg)) };
            match result.map_err(Stop::from) {
                // The latter of a mapping whose first page is a huge one.
                Err(Stop::Other(Errno::FAULT) | Stop::Present) => {}
                Ok(()) => return Err(Stop::Other(Errno::FAULT)),
                Err(stop) => return Err(stop),
            }
            rest.start = piece.end;
        }
        Ok(())
    }

    /// Write-protects the present pages of `range`, or ends protection and wakes waiting writers.
    /// The range may span mappings.
    ///
    /// # Errors
    /// [`Stop::Absent`] where a part is not registered; what comes before it is done. So is a hole
    /// between mappings before Linux 6.3; later kernels pass over holes.
    pub fn write_protect(&self, range: PageRange, protect: bool) -> Result<(), Stop> {
        match self.write_protect_at_once(range, protect) {
            Err(Stop::Absent) if range.pages() > 1 => self.write_protect_in_pieces(range, protect),
            result => result,
        }
    }

    fn write_protect_at_once(&self, range: PageRange, protect: bool) -> Result<(), Stop> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        let mut arg = WriteprotectArg {
            range: range_arg(range),
            mode,
        };
        // SAFETY: opcode and struct belong together; protection changes no bytes.
        unsafe { ioctl::ioctl(&self.fd, Updater::<WRITEPROTECT, _>::new(&mut arg)) }
            .map_err(Stop::from)
    }

    /// Kernels before 6.3 want all of the range in one mapping. Where mappings end is found by
    /// halving: that needs no more than system calls, so it can be done in a signal handler.
    #[cold]
    fn write_protect_in_pieces(&self, range: PageRange, protect: bool) -> Result<(), Stop> {
        let mut rest = range;
        let mut pages = range.pages() / 2;
        while !rest.is_empty() {
            let piece = PageRange {
                start: rest.start,
                end: rest.start.add(pages),
            };
            match self.write_protect_at_once(piece, protect) {
                Ok(()) => {
                    rest.start = piece.end;
                    pages = rest.pages();
                }
                Err(Stop::Absent) if pages > 1 => pages /= 2,
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// Makes any access to the missing pages of `range` raise SIGBUS.
    pub fn poison(&self, range: PageRange) -> Progress {
        let mut arg = PoisonArg {
            range: range_arg(range),
            mode: 0,
            done: 0,
        };
        // SAFETY: opcode and struct belong together; only missing pages are affected.
        let result = unsafe { ioctl::ioctl(&self.fd, Updater::<POISON, _>::new(&mut arg)) };
        progress(result, arg.done)
    }

    /// Wakes the threads that wait on `range`, so that they try their access again.
    pub fn wake(&self, range: PageRange) {
        let mut arg = range_arg(range);
        // SAFETY: opcode and struct belong together; waking changes nothing.
        let _ = unsafe { ioctl::ioctl(&self.fd, Updater::<WAKE, _>::new(&mut arg)) };
    }

    /// Reads waiting messages without blocking; the number read, 0 when none waits.
    pub fn read(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        let len = size_of_val(messages);
        // SAFETY: `Message` is plain old data without padding, so any bytes written into it are
        // valid.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(messages.as_mut_ptr().cast::<u8>(), len) };
        match rustix::io::read(&self.fd, bytes) {
            Ok(read) => Ok(read / size_of::<Message>()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// Whether a message waits, or may. Does not block.
    pub fn is_readable(&self) -> bool {
        crate::wait::is_readable(&self.fd).unwrap_or(true)
    }

    /// The descriptor's number.
    pub fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn range_arg(range: PageRange) -> RangeArg {
    RangeArg {
        start: range.address() as u64,
        len: range.bytes() as u64,
    }
}

fn transfer(range: PageRange, source: usize, mode: u64) -> TransferArg {
    TransferArg {
        dst: range.address() as u64,
        src: source as u64,
        len: range.bytes() as u64,
        mode,
        done: 0,
    }
}

/// The kernel writes bytes done, or a negative errno; a partial result comes with EAGAIN.
fn progress(result: Result<(), Errno>, done: i64) -> Progress {
    Progress {
        pages: done.max(0) as u64 >> PAGE_SHIFT,
        stop: result.err().map(Stop::from),
    }
}
