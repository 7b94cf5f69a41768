//! A userfaultfd of another process, which handed it over: what it is, and zeros for its memory.
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::ioctl::{self, Updater};
use rustix::time::Timespec;

use super::abi::{Progress, ZEROPAGE, ZeropageArg, progress, range_arg};
use super::descriptor::Uffd;
use crate::page::{PageNumber, PageRange};

/// What the kernel calls a userfaultfd in `/proc/PID/fd`.
const LINK: &str = "anon_inode:[userfaultfd]";

/// An address that memory can have.
const SOMEWHERE: PageNumber = PageNumber(0x400);

/// Why a descriptor that was handed over cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// It is something else.
    #[error("the descriptor is {0}, and no userfaultfd")]
    NotUserfaultfd(String),
    /// Its owner has not said `UFFDIO_API` yet, so it serves nothing.
    #[error("the userfaultfd was not enabled by its owner (UFFDIO_API)")]
    NotEnabled,
    /// `/proc` does not say.
    #[error("what the descriptor is cannot be told: {0}")]
    Unknown(Errno),
}

impl From<Errno> for ForeignError {
    fn from(errno: Errno) -> ForeignError {
        ForeignError::Unknown(errno)
    }
}

impl Uffd {
    /// Whether `fd` is a userfaultfd. Allocates.
    ///
    /// # Errors
    /// [`ForeignError`]: it is none, or that cannot be told.
    pub fn recognise(fd: BorrowedFd<'_>) -> Result<(), ForeignError> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let link = rustix::fs::readlink(path, Vec::new())?;
        let link = link.to_string_lossy().into_owned();
        match link == LINK {
            true => Ok(()),
            false => Err(ForeignError::NotUserfaultfd(link)),
        }
    }

    /// Takes over a descriptor that another process sent. From now on it does not block, and is not
    /// inherited by executed programs. Pages are numbered as in that process. Allocates.
    ///
    /// # Errors
    /// [`ForeignError`]: it is no userfaultfd, or not one that is in use.
    pub fn adopt(fd: OwnedFd) -> Result<Uffd, ForeignError> {
        Uffd::recognise(fd.as_fd())?;
        let number = fd.as_raw_fd();
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        let path = format!("/proc/self/fdinfo/{number}");
        let text = std::fs::read_to_string(path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let features = features_in(&text).ok_or(Errno::INVAL)?;
        match is_enabled(&fd)? {
            true => Ok(Uffd::enabled(fd, features)),
            false => Err(ForeignError::NotEnabled),
        }
    }

    /// The userfaultfd of a forked child, which came with the message of the fork. The child has
    /// the features of its parent. From now on it does not block.
    ///
    /// # Safety
    /// `number` is what [`super::Event::Fork`] told, read from this userfaultfd, and nobody has
    /// taken it yet.
    pub unsafe fn of_child(&self, number: RawFd) -> Uffd {
        // SAFETY: the kernel made the descriptor for who reads the message; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        if let Ok(flags) = fcntl_getfl(&fd) {
            let _ = fcntl_setfl(&fd, flags | OFlags::NONBLOCK);
        }
        Uffd::enabled(fd, self.features())
    }

    /// Whether a thread of the process has begun to unmap, move or empty memory, or to fork, and
    /// its event is unread, or was until just now: then nothing is installed.
    pub fn has_event_pending(&self) -> bool {
        // The kernel looks at that before it looks for the memory; nothing is protected.
        let somewhere = PageRange::one(SOMEWHERE);
        self.write_protect(somewhere, false) == Err(super::Stop::EventPending)
    }

    /// Installs zeros in `range` and wakes the threads that wait for it; the kernel's own page of
    /// zeros where it can. Not for huge pages: [`super::Stop::Refused`].
    ///
    /// # Safety
    /// Zeros are what the program must find in `range`.
    pub unsafe fn zero(&self, range: PageRange) -> Progress {
        let mut arg = ZeropageArg {
            range: range_arg(range),
            mode: 0,
            done: 0,
        };
        // SAFETY: opcode and struct belong together; the kernel installs only where nothing is
        // mapped, and the caller answers for the zeros.
        let result = unsafe { ioctl::ioctl(&self.fd, Updater::<ZEROPAGE, _>::new(&mut arg)) };
        progress(result, arg.done)
    }
}

/// Before `UFFDIO_API` polling a userfaultfd is an error. `fd` does not block.
fn is_enabled(fd: &OwnedFd) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(!fds[0].revents().contains(PollFlags::ERR))
}

/// The bit by which the kernel notes for itself that `UFFDIO_API` was said.
const ENABLED: u64 = 1 << 31;

/// The features in a userfaultfd's `fdinfo`: `API: aa:FEATURES:IOCTLS`, in hexadecimal.
fn features_in(fdinfo: &str) -> Option<u64> {
    let line = fdinfo.lines().find_map(|line| line.strip_prefix("API:"))?;
    let features = line.trim().split(':').nth(1)?;
    let features = u64::from_str_radix(features, 16).ok()?;
    Some(features & !ENABLED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::{feature, open_for_user_mode};

    #[test]
    fn features_are_read_from_fdinfo() {
        let text = "pos:\t0\nflags:\t02004002\npending:\t0\ntotal:\t0\nAPI:\taa:80000008:ffff\n";
        assert_eq!(features_in(text), Some(feature::EVENT_REMOVE));
        assert_eq!(features_in("pos:\t0\n"), None);
    }

    #[test]
    fn what_is_no_userfaultfd_in_use_is_refused() {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let error = Uffd::adopt(pipe).unwrap_err();
        assert!(matches!(&error, ForeignError::NotUserfaultfd(what) if what.starts_with("pipe:")));
        let Ok(fresh) = open_for_user_mode() else {
            return eprintln!("skipped: no right to open a userfaultfd");
        };
        let copy = fresh.try_clone().unwrap();
        assert_eq!(Uffd::adopt(copy).unwrap_err(), ForeignError::NotEnabled);
        let copy = fresh.try_clone().unwrap();
        let owner = Uffd::negotiate(fresh, feature::EVENT_REMOVE).unwrap();
        let adopted = Uffd::adopt(copy).unwrap();
        assert_eq!(adopted.features(), owner.features());
    }
}
