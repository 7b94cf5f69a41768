//! `/proc/self`, also after the program has changed its root directory.
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;

static PROC: AtomicI32 = AtomicI32::new(-1);

/// Opens `/proc` itself, to be kept for [`keep`].
pub fn open_directory() -> Result<OwnedFd, Errno> {
    openat(
        CWD,
        c"/proc",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// From now on files are opened below `directory`, a descriptor (in the table of the threads that
/// open them) that is never closed.
pub fn keep(directory: RawFd) {
    PROC.store(directory, Ordering::Release);
}

/// Opens `self/NAME` of the proc file system for reading; `path` is the absolute path,
/// `/proc/self/NAME`.
pub fn open_self(path: &'static CStr) -> Result<OwnedFd, Errno> {
    let (directory, path) = place(path);
    openat(
        directory,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// The inode number of what `path`, as for [`open_self`], leads to.
pub fn inode_of_self(path: &'static CStr) -> Result<u64, Errno> {
    let (directory, path) = place(path);
    statat(directory, path, AtFlags::empty()).map(|stat| stat.st_ino)
}

/// The directory to start at, and the path from there.
fn place(path: &'static CStr) -> (BorrowedFd<'static>, &'static CStr) {
    match PROC.load(Ordering::Acquire) {
        -1 => (CWD, path),
        directory => {
            let relative =
                CStr::from_bytes_with_nul(&path.to_bytes_with_nul()[c"/proc/".count_bytes()..])
                    .unwrap_or(path);
            // SAFETY: kept open for good, by `keep`'s contract.
            (unsafe { BorrowedFd::borrow_raw(directory) }, relative)
        }
    }
}
