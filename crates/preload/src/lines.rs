//! Lines that the agent writes where allocating is not possible, and the run's file of them, for
//! processes that may not make files in the run's directory: forked after the program gave up its
//! privileges, they have inherited it.
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use pagetide_pager::protocol::files::{self, Note};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// A line of at most 1024 bytes; what is beyond them is left out.
pub struct Line {
    bytes: [u8; Line::MAX],
    len: usize,
}

impl Line {
    const MAX: usize = 1024;

    /// Of these parts, one after the other.
    pub fn of(parts: &[&[u8]]) -> Line {
        let mut line = Line {
            bytes: [0; Line::MAX],
            len: 0,
        };
        for part in parts {
            let taken = part.len().min(Line::MAX - 1 - line.len);
            line.bytes[line.len..line.len + taken].copy_from_slice(&part[..taken]);
            line.len += taken;
        }
        line.bytes[line.len] = b'\n';
        line
    }

    /// With its line feed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..=self.len]
    }
}

/// The run's file in the agent's table; -1 where there is none.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// Its inode and device. In the program's table its number is another file's.
static INODE: AtomicU64 = AtomicU64::new(0);
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// Opens the run's file, which is made if need be.
pub fn open_file(run_dir: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    open(files::lines(run_dir), flags, Mode::RUSR | Mode::WUSR)
}

/// `file`, open for good in the agent's table, is the run's file; on a thread of the agent's.
pub fn keep(file: Option<RawFd>) {
    if let Some((inode, device)) = file.and_then(identity) {
        INODE.store(inode, Ordering::Relaxed);
        DEVICE.store(device, Ordering::Relaxed);
    }
    FILE.store(file.unwrap_or(-1), Ordering::Release);
}

fn identity(file: RawFd) -> Option<(u64, u64)> {
    // SAFETY: only asked what it is; that it is closed is an answer.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(file) }).ok()?;
    Some((stat.st_ino, stat.st_dev))
}

/// Appends a note of this process to the run's file; false where that cannot be, as on a thread of
/// the program's, whose table the file is not in. Allocates nothing and holds no lock.
pub fn append(note: Note, text: &str) -> bool {
    let file = FILE.load(Ordering::Acquire);
    let expected = (
        INODE.load(Ordering::Relaxed),
        DEVICE.load(Ordering::Relaxed),
    );
    if file < 0 || identity(file) != Some(expected) {
        return false;
    }
    let mut digits = [0; 10];
    let pid = decimal(std::process::id(), &mut digits);
    let parts = [pid, note.suffix().as_bytes(), b" ", text.as_bytes()];
    // SAFETY: the run's file, which is kept open for good in this table.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    rustix::io::write(file, Line::of(&parts).as_bytes()).is_ok()
}

fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_line_ends_with_a_line_feed_however_long_it_is() {
        assert_eq!(Line::of(&[b"a", b"", b"bc"]).as_bytes(), b"abc\n");
        let long = [b'x'; 3000];
        let line = Line::of(&[b"a", &long, b"b"]);
        assert_eq!(line.as_bytes().len(), Line::MAX);
        assert!(line.as_bytes().ends_with(b"x\n"));
    }

    #[test]
    fn no_other_file_gets_the_lines() {
        let directory = std::env::temp_dir().join(format!("pagetide-lines-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = open_file(&directory).unwrap();
        assert!(!append(Note::Lost, "none is kept"));
        keep(Some(file.as_raw_fd()));
        assert!(append(Note::Lost, "because"));
        // Another file takes its number, as in another table.
        let path = directory.join("program's");
        let other = std::fs::File::create(&path).unwrap();
        let mut number = std::mem::ManuallyDrop::new(file);
        rustix::io::dup2(&other, &mut number).unwrap();
        assert!(!append(Note::Lost, "not here"));
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let pid = std::process::id();
        assert_eq!(
            Note::Lost.read_all(&directory),
            [(pid, "because".to_owned())]
        );
        keep(None);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, u32::MAX] {
            let written = decimal(number, &mut [0; 10]).to_vec();
            assert_eq!(written, number.to_string().as_bytes());
        }
    }
}
