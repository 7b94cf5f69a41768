//! Whether memory is short where this process runs: what its service manager has it watch, in the
//! protocol of systemd (`MEMORY_PRESSURE_WATCH` and `MEMORY_PRESSURE_WRITE`), or else the pressure
//! of its cgroup.
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use pagetide_kernel::procfs::memory::{field, pressure_file};
use pagetide_kernel::sync::now_ns;
use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The path to watch.
const WATCH: &str = "MEMORY_PRESSURE_WATCH";
/// What is to be written to it first, in Base64.
const WRITE: &str = "MEMORY_PRESSURE_WRITE";
/// How often the pressure of a cgroup is read.
const LOOK_NS: u64 = 1_000_000_000;
/// Memory is short where tasks have waited for it for one part in so many of the time between.
const SHORT_PART: u64 = 10;

/// What the environment says is to be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Nothing,
    /// The pressure of the cgroup, if it can be read.
    Group,
    /// What is at this path, once these bytes have been written to it.
    Path(PathBuf, Vec<u8>),
    /// What is to be written is not Base64.
    Garbled,
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::Nothing => f.write_str("nothing"),
            Wish::Group => f.write_str("the pressure of the cgroup"),
            Wish::Path(path, _) => write!(f, "{WATCH}={}", path.display()),
            Wish::Garbled => write!(f, "{WRITE} is not Base64"),
        }
    }
}

impl Wish {
    /// From this process's environment.
    pub fn from_environment() -> Wish {
        Wish::of(std::env::var_os(WATCH), std::env::var_os(WRITE))
    }

    fn of(watch: Option<OsString>, write: Option<OsString>) -> Wish {
        let Some(path) = watch.filter(|path| !path.is_empty()) else {
            return Wish::Group;
        };
        let write = write.unwrap_or_default();
        match decoded(write.as_bytes()) {
            // How a service manager says that nothing is to be watched.
            _ if path == "/dev/null" => Wish::Nothing,
            Some(bytes) => Wish::Path(path.into(), bytes),
            None => Wish::Garbled,
        }
    }
}

/// Bytes from Base64, padded or not; none if it is not that.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    const CONFIG: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&STANDARD, CONFIG).decode(text).ok()
}

/// What is watched.
pub enum Watch {
    /// Tells by an event.
    Events(OwnedFd, PollFlags),
    /// The pressure file of a cgroup: when it was read last, and how long tasks had waited then.
    Group(OwnedFd, u64, u64),
}

impl Watch {
    /// Begins to watch what is wished; none where there is nothing to watch.
    ///
    /// # Errors
    /// What is at the path cannot be opened, connected to or written to, or is none of what the
    /// protocol knows; what is to be written is not Base64.
    pub fn begin(wish: &Wish) -> Result<Option<Watch>, Errno> {
        match wish {
            Wish::Nothing => Ok(None),
            Wish::Group => Ok(Watch::of_group()),
            Wish::Path(path, bytes) => Watch::of_path(path, bytes).map(Some),
            Wish::Garbled => Err(Errno::INVAL),
        }
    }

    fn of_group() -> Option<Watch> {
        let path = pressure_file("self")?;
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let waited_us = waited_us(file.as_fd())?;
        Some(Watch::Group(file, now_ns(), waited_us))
    }

    fn of_path(path: &Path, bytes: &[u8]) -> Result<Watch, Errno> {
        let found = rustix::fs::stat(path)?;
        let (fd, events) = match FileType::from_raw_mode(found.st_mode) {
            FileType::Socket => (connected(path)?, PollFlags::IN),
            FileType::Fifo => (opened(path)?, PollFlags::IN),
            FileType::RegularFile => (opened(path)?, PollFlags::PRI),
            _ => return Err(Errno::INVAL),
        };
        if !bytes.is_empty() && rustix::io::write(&fd, bytes)? != bytes.len() {
            return Err(Errno::IO);
        }
        Ok(Watch::Events(fd, events))
    }

    /// What to poll, if an event tells.
    pub fn polled(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Watch::Events(fd, events) => Some((fd.as_fd(), *events)),
            Watch::Group(..) => None,
        }
    }

    /// Looks at what polling found, or at the cgroup: whether memory is short. `None` if that will
    /// never be told any more.
    pub fn look(&mut self, found: PollFlags) -> Option<bool> {
        match self {
            Watch::Events(..) if found.is_empty() => Some(false),
            // Its owner is gone: what is left of a FIFO this process itself holds open.
            Watch::Events(..) if found.intersects(PollFlags::ERR | PollFlags::NVAL) => None,
            Watch::Events(_, PollFlags::PRI) => Some(found.contains(PollFlags::PRI)),
            Watch::Events(fd, _) => read_all(fd.as_fd()),
            Watch::Group(file, read_ns, before_us) => {
                let since_ns = now_ns().saturating_sub(*read_ns);
                if since_ns < LOOK_NS {
                    return Some(false);
                }
                let now_us = waited_us(file.as_fd())?;
                let waited_us = now_us.saturating_sub(std::mem::replace(before_us, now_us));
                *read_ns += since_ns;
                Some(waited_us > since_ns / 1000 / SHORT_PART)
            }
        }
    }
}

fn opened(path: &Path) -> Result<OwnedFd, Errno> {
    // A FIFO that is open for writing too has no end.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    open(path, flags, Mode::empty())
}

fn connected(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Reads what there is, whatever it says: that there is something is what counts. `None` at the
/// end.
fn read_all(fd: BorrowedFd<'_>) -> Option<bool> {
    let mut buffer = [0u8; 512];
    let mut any = false;
    loop {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => return any.then_some(true),
            Ok(_) => any = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Some(any),
            Err(_) => return None,
        }
    }
}

/// Microseconds for which at least one task has waited for memory.
fn waited_us(file: BorrowedFd<'_>) -> Option<u64> {
    let mut buffer = [0u8; 512];
    let count = rustix::io::pread(file, &mut buffer, 0).ok()?;
    total_us(std::str::from_utf8(&buffer[..count]).ok()?)
}

fn total_us(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    field(&some.replace(' ', "\n"), "total=")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn base64_is_decoded_and_what_is_not_that_is_refused() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("c29tZSAyMDAwMDAgMjAwMDAwMAA=", b"some 200000 2000000\0"),
            ("/+8=", b"\xff\xef"),
            ("YQ==", b"a"),
            ("YQ", b"a"),
        ] {
            assert_eq!(decoded(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for wrong in ["a", "ab!=", "YWJjZ"] {
            assert_eq!(decoded(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_environment_says_what_is_watched() {
        let of = |watch: Option<&str>, write: Option<&str>| {
            Wish::of(watch.map(OsString::from), write.map(OsString::from))
        };
        assert_eq!(of(None, Some("YQ==")), Wish::Group);
        assert_eq!(of(Some("/dev/null"), None), Wish::Nothing);
        assert_eq!(of(Some("/a"), Some("?")), Wish::Garbled);
        assert!(Watch::begin(&Wish::Garbled).is_err());
        assert_eq!(
            of(Some("/a"), Some("YQ==")),
            Wish::Path("/a".into(), b"a".into())
        );
    }

    #[test]
    fn what_a_pressure_file_says_is_read() {
        let text = "some avg10=0.00 avg60=1.50 avg300=0.00 total=371003812\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(total_us(text), Some(371_003_812));
        assert_eq!(total_us("some avg10=0.00\n"), None);
    }

    #[test]
    fn a_socket_is_written_to_tells_and_ends() {
        let path = std::env::temp_dir().join(format!("pagetide-pressure-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let wish = Wish::Path(path.clone(), b"hello".into());
        let mut watch = Watch::begin(&wish).unwrap().unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let mut said = [0; 5];
        std::io::Read::read_exact(&mut theirs, &mut said).unwrap();
        assert_eq!(&said, b"hello");
        assert_eq!(watch.look(PollFlags::empty()), Some(false));
        assert_eq!(watch.look(PollFlags::IN), Some(false), "nothing is there");
        theirs.write_all(b"x").unwrap();
        assert_eq!(watch.look(PollFlags::IN), Some(true));
        drop(theirs);
        assert_eq!(watch.look(PollFlags::IN), None);
        std::fs::remove_file(&path).unwrap();
        assert!(Watch::begin(&wish).is_err());
    }
}
