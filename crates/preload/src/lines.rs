//! Lines that the agent writes where allocating is not possible, and the run's file of them, for
//! processes that cannot make files in the run's directory: its file system is full (the launcher
//! has reserved space for the lines), or they were forked after the program gave up its privileges
//! and have inherited the file.
use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use pagetide_pager::protocol::files::{self, LINES_OTHERS_BYTES, Note};
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

/// Where it is, for threads in whose table it is not open.
static PATH: OnceLock<CString> = OnceLock::new();

/// On a thread of the agent's, for good: the file of the run in `run_dir`, which is made if need
/// be. Its number in the agent's table, if it can be had.
pub fn begin(run_dir: &Path) -> Option<RawFd> {
    let file = path_in(run_dir).and_then(|path| open_at(path, OFlags::CREATE));
    let file = file.ok().map(OwnedFd::into_raw_fd);
    keep(file);
    file
}

fn path_in(run_dir: &Path) -> Result<&'static CString, Errno> {
    let path = CString::new(files::lines(run_dir).as_os_str().as_bytes());
    let path = path.map_err(|_| Errno::INVAL)?;
    Ok(PATH.get_or_init(|| path))
}

fn open_at(path: &CString, more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // What may have taken its name is not waited for.
    let flags = flags | OFlags::NONBLOCK;
    open(path.as_c_str(), flags | more, Mode::RUSR | Mode::WUSR)
}

/// `file`, open for good in the agent's table, is the run's file; on a thread of the agent's.
pub fn keep(file: Option<RawFd>) {
    // SAFETY: only asked what it is; that it is closed is an answer.
    let file_fd = file.map(|file| unsafe { BorrowedFd::borrow_raw(file) });
    if let Some(known) = file_fd.and_then(Known::of) {
        INODE.store(known.inode, Ordering::Relaxed);
        DEVICE.store(known.device, Ordering::Relaxed);
    }
    FILE.store(file.unwrap_or(-1), Ordering::Release);
}

/// What a descriptor is of, and how long that is.
struct Known {
    inode: u64,
    device: u64,
    bytes: u64,
}

impl Known {
    fn of(file: BorrowedFd<'_>) -> Option<Known> {
        let stat = rustix::fs::fstat(file).ok()?;
        Some(Known {
            inode: stat.st_ino,
            device: stat.st_dev,
            bytes: stat.st_size as u64,
        })
    }

    /// Whether it is the run's file, as far as that is known.
    fn is_ours(&self) -> bool {
        let (inode, device) = (
            INODE.load(Ordering::Relaxed),
            DEVICE.load(Ordering::Relaxed),
        );
        (inode, device) == (0, 0) || (inode, device) == (self.inode, self.device)
    }
}

/// Leaves a note of this process in a file of its own, or else in the run's file; false where
/// neither takes it.
pub fn leave(run_dir: &Path, note: Note, text: &str) -> bool {
    let path = note.path(run_dir, std::process::id());
    if std::fs::write(&path, text).is_ok() {
        return true;
    }
    // What was made without room for the text would be a note that says nothing.
    let _ = std::fs::remove_file(&path);
    let _ = path_in(run_dir);
    append(note, text)
}

/// Appends a note of this process to the run's file; false where that cannot be. Allocates nothing
/// and holds no lock.
pub fn append(note: Note, text: &str) -> bool {
    let number = FILE.load(Ordering::Acquire);
    // SAFETY: the run's file, which is kept open for good in the agent's table. In the program's
    // the number may be another file's, or closed: it is asked what it is before it is written to.
    let kept = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) });
    if kept.is_some_and(|file| append_to(file, note, text) == Some(true)) {
        return true;
    }
    let opened = PATH
        .get()
        .and_then(|path| open_at(path, OFlags::empty()).ok());
    opened.is_some_and(|file| append_to(file.as_fd(), note, text) == Some(true))
}

/// Whether `file` took it; `None` if it is not the run's.
fn append_to(file: BorrowedFd<'_>, note: Note, text: &str) -> Option<bool> {
    let known = Known::of(file).filter(Known::is_ours)?;
    if note != Note::Lost && known.bytes >= LINES_OTHERS_BYTES {
        return Some(false);
    }
    let mut digits = [0; 10];
    let pid = decimal(std::process::id(), &mut digits);
    let parts = [pid, note.suffix().as_bytes(), b" ", text.as_bytes()];
    Some(rustix::io::write(file, Line::of(&parts).as_bytes()).is_ok())
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
    use std::os::fd::FromRawFd as _;

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
        assert!(!append(Note::Lost, "none is known"));
        let number = begin(&directory).unwrap();
        assert!(append(Note::Lost, "because"));
        // Another file takes its number, as in the program's table.
        let path = directory.join("program's");
        let other = std::fs::File::create(&path).unwrap();
        // SAFETY: the file's number, which nobody else closes.
        let mut file = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        rustix::io::dup2(&other, &mut file).unwrap();
        assert!(append(Note::Lost, "by its path"));
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let pid = std::process::id();
        let told = ["because", "by its path"].map(|text| (pid, text.to_owned()));
        assert_eq!(Note::Lost.read_all(&directory), told);
        // Beyond a length there is room for losses alone.
        let lines = std::fs::File::options()
            .write(true)
            .open(files::lines(&directory));
        lines.unwrap().set_len(LINES_OTHERS_BYTES).unwrap();
        assert!(!append(Note::Uncounted, "no room") && append(Note::Lost, "room"));
        // Another file has its name.
        std::fs::rename(&path, files::lines(&directory)).unwrap();
        assert!(!append(Note::Lost, "not here"));
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
