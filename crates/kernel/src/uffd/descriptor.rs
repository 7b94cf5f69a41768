//! A userfaultfd, and the operations that register, install and protect memory.
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::ioctl::{self, Updater};

use super::abi::*;
use super::feature;
use super::message::Message;
use crate::mask;
use crate::page::{PageNumber, PageRange};

/// An open userfaultfd of this process's address space.
///
/// Dropping the last descriptor of a userfaultfd unregisters its memory, and missing pages then
/// read as zeros: the pager keeps its descriptors until the process ends.
#[derive(Debug)]
pub struct Uffd {
    pub(super) fd: OwnedFd,
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

    /// A descriptor that its owner has negotiated `features` for.
    pub(super) fn enabled(fd: OwnedFd, features: u64) -> Uffd {
        Uffd { fd, features }
    }

    /// The features negotiated.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Registers private anonymous memory of our own as a target of [`Uffd::move_pages`], without
    /// any faults: missing pages there read as zeros, as usual.
    pub fn register_target(&self, range: PageRange) -> Result<(), Errno> {
        self.register_modes(range, REGISTER_MODE_WP)
    }

    /// Registers private anonymous memory for missing faults, and for write-protection; with a
    /// descriptor that negotiated [`feature::RWP`], for read-write protection instead. Where the
    /// kernel refuses that (`EINVAL`), it is write-protection.
    ///
    /// # Safety
    /// From now on a thread that touches a missing page of `range` waits until someone installs it.
    /// The caller answers for serving those faults for as long as the memory is registered, from a
    /// thread that never touches `range` itself.
    pub unsafe fn register(&self, range: PageRange) -> Result<(), Errno> {
        if self.features & feature::RWP != 0 {
            match self.register_modes(range, REGISTER_MODE_MISSING | REGISTER_MODE_RWP) {
                Err(Errno::INVAL) => {}
                result => return result,
            }
        }
        self.register_modes(range, REGISTER_MODE_MISSING | REGISTER_MODE_WP)
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
        self.register_modes(range, REGISTER_MODE_MISSING)
    }

    /// Registers `range` in these modes. What missing faults do to it the callers answer for.
    pub(super) fn register_modes(&self, range: PageRange, mode: u64) -> Result<(), Errno> {
        let mut arg = RegisterArg {
            range: range_arg(range),
            mode,
            ioctls: 0,
        };
        // SAFETY: opcode and struct belong together; the callers are told of what
        // the modes do to `range`.
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

    /// Whether the mapping at `page`, which is registered, is one of shared memory: that can be
    /// registered as well. Asks the kernel to map what the page cache has, which it does for shared
    /// memory alone; there it changes no bytes. Before Linux 5.14 always false.
    ///
    /// # Errors
    /// [`Stop::EventPending`] if it cannot be said.
    pub fn is_shared(&self, page: PageNumber) -> Result<bool, Stop> {
        let mut arg = PoisonArg {
            range: range_arg(PageRange::one(page)),
            mode: 0,
            done: 0,
        };
        // SAFETY: opcode and struct belong together; a page of shared memory is mapped where the
        // program finds the same one by a fault.
        let result = unsafe { ioctl::ioctl(&self.fd, Updater::<CONTINUE, _>::new(&mut arg)) };
        match result.map_err(Stop::from) {
            Err(Stop::EventPending) => Err(Stop::EventPending),
            // It is there already, or the page cache has none.
            Ok(()) | Err(Stop::Present | Stop::Other(Errno::FAULT)) => Ok(true),
            Err(_) => Ok(false),
        }
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
        read_count(rustix::io::read(&self.fd, bytes_of(messages)))
    }

    /// The same of one whose owner is another process, which can make it block at any time: then
    /// too this does not (from Linux 6.10 on; before, it waits for the next message).
    pub fn read_at_once(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        /// The kernel cannot be told so.
        static UNABLE: AtomicBool = AtomicBool::new(false);
        // At the descriptor's own place: it has none.
        const HERE: u64 = u64::MAX;
        if !UNABLE.load(Relaxed) {
            let mut bytes = [IoSliceMut::new(bytes_of(messages))];
            match preadv2(&self.fd, &mut bytes, HERE, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => UNABLE.store(true, Relaxed),
                result => return read_count(result),
            }
        }
        self.read(messages)
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

fn bytes_of(messages: &mut [Message]) -> &mut [u8] {
    let len = size_of_val(messages);
    // SAFETY: `Message` is plain old data without padding, so any bytes written into it are valid.
    unsafe { std::slice::from_raw_parts_mut(messages.as_mut_ptr().cast::<u8>(), len) }
}

/// Messages that were read; none where none waits.
fn read_count(result: Result<usize, Errno>) -> Result<usize, Errno> {
    match result {
        Ok(read) => Ok(read / size_of::<Message>()),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno),
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const _: () = assert!(size_of::<Message>() == 32);
