//! The ways to a userfaultfd: the device file, the system call, and the system call for faults in
//! user mode only.
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};

use super::abi::IOC_NEW;
use crate::mask::{self, Masked};

/// Why a userfaultfd could not be opened: both ways in, and what each said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("userfaultfd cannot be opened: /dev/userfaultfd: {device}; system call: {syscall}")]
pub struct OpenError {
    /// What opening the device said.
    pub device: Errno,
    /// What the system call said.
    pub syscall: Errno,
}

/// `ioctl(/dev/userfaultfd, USERFAULTFD_IOC_NEW, flags)`, which returns the new descriptor.
struct New(u32);

// SAFETY: the request takes its flags by value, reads and writes no memory, and returns a fresh
// descriptor or an error.
unsafe impl Ioctl for New {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> Opcode {
        IOC_NEW
    }
    fn as_ptr(&mut self) -> *mut c_void {
        self.0 as usize as *mut c_void
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the request succeeded, so `out` is a descriptor nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

/// Opens `/dev/userfaultfd`, whose file permission decides who may page kernel-mode faults.
pub fn open_device() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    mask::check(Masked::Device, Errno::NOENT)?;
    open(
        c"/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Opens a userfaultfd that also serves faults taken in kernel mode: by `device` if given, else by
/// the device file, else by the system call. Not yet usable: [`super::Uffd::negotiate`] comes next.
pub fn open(device: Option<BorrowedFd<'_>>) -> Result<OwnedFd, OpenError> {
    use rustix::fs::OFlags;
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
    let by_device = |fd: BorrowedFd<'_>| {
        // SAFETY: `New` upholds its contract on any descriptor; on one that is not the device the
        // kernel answers ENOTTY.
        unsafe { ioctl::ioctl(fd, New(flags)) }
    };
    let device = match device {
        Some(fd) => by_device(fd),
        None => open_device().and_then(|fd| by_device(fd.as_fd())),
    };
    device.or_else(|device| open_by_syscall(false).map_err(|syscall| OpenError { device, syscall }))
}

/// Opens a userfaultfd through the system call only.
pub(crate) fn open_by_syscall(user_mode_only: bool) -> Result<OwnedFd, Errno> {
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    let user_mode_only = UserfaultfdFlags::from_bits_retain(u32::from(user_mode_only));
    let flags = user_mode_only | UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: userfaultfd(2) takes flags only and returns a fresh descriptor.
    unsafe { userfaultfd(flags) }
}

/// Opens a userfaultfd as [`open`] does, or else one that serves faults taken in user mode only,
/// which needs no privilege (5.11): a system call on a missing or protected page then gets
/// `EFAULT`. Enough for SIGBUS delivery, where faults in kernel mode fail anyway, and where the
/// kernel resolves the faults itself ([`super::feature::WP_ASYNC`]).
pub fn open_for_user_mode() -> Result<OwnedFd, OpenError> {
    open(None)
        .or_else(|error| open_by_syscall(true).map_err(|syscall| OpenError { syscall, ..error }))
}
