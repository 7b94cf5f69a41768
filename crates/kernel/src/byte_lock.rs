//! Locks on single bytes of a file, which belong to an open file description.
//!
//! The kernel takes such a lock from whoever ends, in whatever instruction, and executing another
//! program ends it too when the description closes then. Nobody waits here: who holds a lock may
//! be stopped.
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::syscall::syscall;

const FCNTL: usize = 72;

/// Asks `command` of byte `byte` of `file`, with a lock of this type; what the kernel answers.
fn lock(file: BorrowedFd<'_>, command: i32, kind: i32, byte: u64) -> Result<i32, Errno> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte as i64,
        l_len: 1,
        l_pid: 0,
    };
    let arguments = [
        file.as_raw_fd() as usize,
        command as usize,
        &raw mut lock as usize,
    ];
    // SAFETY: fcntl(2) with a lock description that lives for the call.
    unsafe { syscall(FCNTL, arguments) }?;
    Ok(i32::from(lock.l_type))
}

/// Locks byte `byte`; false if another open file description has it locked.
///
/// # Errors
/// The kernel's, where the file cannot be locked.
pub fn try_lock(file: BorrowedFd<'_>, byte: u64) -> Result<bool, Errno> {
    match lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives the lock on byte `byte` up, if there is one.
///
/// # Errors
/// The kernel's, where the file cannot be locked.
pub fn unlock(file: BorrowedFd<'_>, byte: u64) -> Result<(), Errno> {
    lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, byte).map(|_| ())
}

/// Whether another open file description has byte `byte` locked.
///
/// # Errors
/// The kernel's, where the file cannot be locked.
pub fn is_locked(file: BorrowedFd<'_>, byte: u64) -> Result<bool, Errno> {
    lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte).map(|kind| kind != libc::F_UNLCK)
}
