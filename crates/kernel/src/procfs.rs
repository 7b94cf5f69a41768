//! `/proc/self`, also after the program has changed its root directory; and what its files say.
pub mod memory;
pub mod stat;
pub mod status;

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;

static PROC: AtomicI32 = AtomicI32::new(-1);

/// Opens `/proc` itself, to be kept for [`keep`].
pub fn open_directory() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, c"/proc", flags, Mode::empty())
}

/// From now on files are opened below `directory`, a descriptor (in the table of the threads that
/// open them) that is never closed.
pub fn keep(directory: RawFd) {
    PROC.store(directory, Ordering::Release);
}

/// Opens `self/NAME` of the proc file system for reading; `path` is the absolute path,
/// `/proc/self/NAME`.
pub fn open_self(path: &'static CStr) -> Result<OwnedFd, Errno> {
    open_self_for(path, OFlags::RDONLY)
}

/// The same, for what `flags` say.
pub fn open_self_for(path: &'static CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let (directory, path) = place(path);
    openat(directory, path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Opens anew, with an open file description of its own, what descriptor `number` of the calling
/// thread's table is of. Allocates.
///
/// # Errors
/// As `open`; the file's own mode has to allow what `flags` say, the directories above it do not
/// count.
pub fn reopen(number: RawFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let (directory, path) = place(c"/proc/thread-self/fd/");
    let path = format!("{}{number}", path.to_str().map_err(|_| Errno::INVAL)?);
    openat(directory, path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// The inode number of what `path`, as for [`open_self`], leads to.
pub fn inode_of_self(path: &'static CStr) -> Result<u64, Errno> {
    let (directory, path) = place(path);
    statat(directory, path, AtFlags::empty()).map(|stat| stat.st_ino)
}

/// Reads a file of `/proc`, of any length, from its start.
pub fn read_all(file: &OwnedFd, text: &mut Vec<u8>) -> Result<(), Errno> {
    const STEP: usize = 4096;
    let mut len = 0;
    loop {
        text.resize(len + STEP, 0);
        let count = rustix::io::pread(file, &mut text[len..], len as u64)?;
        len += count;
        if count == 0 {
            text.truncate(len);
            return Ok(());
        }
    }
}

/// Sizes from `statm`, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Address space. It changes with every mapping made or undone.
    pub address_space: u64,
    /// Resident anonymous memory. Kernels before 6.2 may be late with 64 pages a thread.
    pub anonymous: u64,
}

/// From an open `statm` of a process or thread; zeros where it cannot be read. Costs a microsecond.
pub fn sizes(statm: &OwnedFd) -> Sizes {
    let mut text = [0u8; 128];
    let len = rustix::io::pread(statm, &mut text, 0).unwrap_or(0);
    sizes_in(&text[..len])
}

/// The first three fields: address space, resident, and what of that is a file's or shared memory.
fn sizes_in(text: &[u8]) -> Sizes {
    let mut fields = text.split(|b| *b == b' ').map(|digits| {
        let digits = digits.iter().take_while(|b| b.is_ascii_digit());
        digits.fold(0u64, |n, b| n * 10 + u64::from(b - b'0'))
    });
    let [address_space, resident, shared] = [(); 3].map(|()| fields.next().unwrap_or(0));
    Sizes {
        address_space,
        anonymous: resident.saturating_sub(shared),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_first_fields_of_statm() {
        let sizes = sizes_in(b"83462 1234 1000 1 0 93 0\n");
        assert_eq!((sizes.address_space, sizes.anonymous), (83462, 234));
        // Cut off, or not to be read.
        assert_eq!(sizes_in(b"83462 12").anonymous, 12);
        assert_eq!(sizes_in(b""), Sizes::default());
    }
}
