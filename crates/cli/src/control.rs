//! Asking a governed process over its control socket.
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use pagetide_pager::report::{Reply, Request, Statistics};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::text::printable;

/// A reply is a few kilobytes; more than this is not one.
const REPLY_BYTES_MAX: u64 = 1 << 20;

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be reached, or went silent.
    #[error("no answer ({cause}) on its control socket {0}; it may be stopped or have just \
        ended", cause = why(.1))]
    Silent(String, std::io::Error),
    /// Something else than a reply came back.
    #[error(
        "its answer is not understood ({0}); launcher and program may run different versions of \
         Pagetide"
    )]
    Garbled(String),
    /// The process said no.
    #[error("{0}")]
    Refused(String),
}

impl ControlError {
    /// Whether nobody has the socket any more.
    pub fn is_gone(&self) -> bool {
        let gone = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
        matches!(self, ControlError::Silent(_, error) if gone.contains(&error.kind()))
    }
}

/// A time-out by its own name: the kernel calls it by that of a call that would block.
fn why(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it took too long".into(),
        _ => error.to_string(),
    }
}

/// A connection that is over at a fixed time, however little is said at a time until then.
pub struct Connection {
    stream: UnixStream,
    until: Instant,
}

/// Connects to the Unix socket at `path`, never waiting: who does not take connections any more has
/// no room for one at some time. All that is said then takes at most `patience`. A link is not
/// followed: root looks into other users' directories.
pub fn connect(path: &Path, patience: Duration) -> std::io::Result<Connection> {
    let until = Instant::now() + patience;
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(patience))?;
    Ok(Connection { stream, until })
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Asks one question and waits at most `patience` for the answer.
pub fn ask(
    socket: &Path,
    request: &Request,
    patience: Duration,
) -> Result<Statistics, ControlError> {
    let silent = |error| ControlError::Silent(socket.display().to_string(), error);
    let mut connection = connect(socket, patience).map_err(silent)?;
    let mut line =
        serde_json::to_vec(request).map_err(|error| ControlError::Garbled(error.to_string()))?;
    line.push(b'\n');
    connection.stream.write_all(&line).map_err(silent)?;
    let mut answer = String::new();
    BufReader::new(connection.take(REPLY_BYTES_MAX))
        .read_line(&mut answer)
        .map_err(silent)?;
    if answer.is_empty() {
        return Err(silent(std::io::ErrorKind::UnexpectedEof.into()));
    }
    match serde_json::from_str(&answer) {
        Ok(Reply::Ok { statistics }) => Ok(*statistics),
        Ok(Reply::Error { message }) => Err(ControlError::Refused(printable(&message))),
        Err(error) => Err(ControlError::Garbled(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn asked(answer: &'static str) -> Result<Statistics, ControlError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            question
        });
        let result = ask(&path, &Request::Stat, Duration::from_secs(5));
        assert_eq!(server.join().unwrap(), "{\"op\":\"stat\"}\n");
        result
    }

    #[test]
    fn refusals_and_nonsense_are_told_apart() {
        let refused = asked("{\"status\":\"error\",\"message\":\"no\"}\n");
        assert!(matches!(refused, Err(ControlError::Refused(m)) if m == "no"));
        assert!(matches!(asked("what?\n"), Err(ControlError::Garbled(_))));
        assert!(matches!(asked(""), Err(error @ ControlError::Silent(..)) if !error.is_gone()));
        let nowhere = ask(
            Path::new("/no/such.sock"),
            &Request::Stat,
            Duration::from_secs(1),
        );
        assert!(matches!(nowhere, Err(error) if error.is_gone()));
    }

    #[test]
    fn a_link_to_a_socket_is_not_followed_and_bytes_one_by_one_do_not_prolong_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("1.sock"), dir.path().join("2.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = ask(&link, &Request::Stat, Duration::from_secs(5));
        assert!(matches!(refused, Err(error) if error.is_gone()));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Until the other side has gone, for which there is no other end.
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let silent = ask(&path, &Request::Stat, Duration::from_millis(200));
        assert!(matches!(silent, Err(error @ ControlError::Silent(..)) if !error.is_gone()));
        server.join().unwrap();
    }
}
