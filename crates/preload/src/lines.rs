//! Lines that the agent writes where allocating is not possible, and the run's file of them, for
//! processes that may not make files in the run's directory: forked after the program gave up its
//! privileges, they have inherited it.
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

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

/// Opens the run's file, which is made if need be.
pub fn open_file(run_dir: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    open(files::lines(run_dir), flags, Mode::RUSR | Mode::WUSR)
}

/// `file`, open for good in the agent's table, is the run's file.
pub fn keep(file: Option<RawFd>) {
    FILE.store(file.unwrap_or(-1), Ordering::Release);
}

/// Appends a note of this process to the run's file; false where that cannot be. Allocates nothing
/// and holds no lock; for the agent's threads, whose table the file is in.
pub fn append(note: Note, text: &str) -> bool {
    let file = FILE.load(Ordering::Acquire);
    if file < 0 {
        return false;
    }
    let mut digits = [0; 10];
    let pid = decimal(std::process::id(), &mut digits);
    let parts = [pid, note.suffix().as_bytes(), b" ", text.as_bytes()];
    // SAFETY: kept open for good.
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
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, u32::MAX] {
            let written = decimal(number, &mut [0; 10]).to_vec();
            assert_eq!(written, number.to_string().as_bytes());
        }
    }
}
