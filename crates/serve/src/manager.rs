//! The service manager, which keeps descriptors for a process that is started again: systemd's
//! protocol (`sd_notify`, `FDSTORE=1`; `LISTEN_FDS` at the next start), which others speak as well.
#![allow(unsafe_code)] // descriptors that were inherited under the numbers the environment tells

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The first descriptor that is passed on.
const FIRST: RawFd = 3;
/// Most descriptors that are taken.
const INHERITED_MAX: RawFd = 1 << 20;
/// Descriptors kept in one message.
const AT_ONCE: usize = 3;
/// How long the manager may be busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    /// How many descriptors it keeps, where it says so.
    room: Option<u64>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Manager {
    /// The one that the environment names (`NOTIFY_SOCKET`); `None` where there is none.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn of_environment() -> Option<io::Result<Manager>> {
        let path = variable("NOTIFY_SOCKET")?;
        let room = variable("FDSTORE").and_then(|most| most.parse().ok());
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            let address = match path.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&path)?,
            };
            socket.connect_addr(&address)?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(Manager { socket, room })
        };
        Some(connect())
    }

    /// How many descriptors it keeps, as far as it says so.
    pub fn room(&self) -> Option<u64> {
        self.room
    }

    /// Says that the service is ready.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn ready(&self) -> io::Result<()> {
        self.socket.send(b"READY=1").map(drop)
    }

    /// Has copies of `descriptors`, at most three, kept under `name`.
    ///
    /// # Errors
    /// It cannot be told. It does not say whether it keeps them.
    pub(crate) fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = descriptors.len() <= AT_ONCE;
        if !fits || !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // It is told when they are of no use any more, and is not to find out itself.
        let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        let text = [IoSlice::new(text.as_bytes())];
        sendmsg(&self.socket, &text, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Has what is kept under `name` closed.
    pub(crate) fn forget(&self, name: &str) {
        // What stays is found to be over at the next start.
        let _ = self
            .socket
            .send(format!("FDSTOREREMOVE=1\nFDNAME={name}").as_bytes());
    }
}

/// The descriptors that were passed to this process, with their names. They are taken: a second
/// call finds none.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let is_ours = variable("LISTEN_PID") == Some(std::process::id().to_string());
    let count = variable("LISTEN_FDS").and_then(|count| count.parse().ok());
    let count = count.filter(|count| is_ours && (1..=INHERITED_MAX).contains(count));
    let Some(count) = count.filter(|_| !TAKEN.swap(true, SeqCst)) else {
        return Vec::new();
    };
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned);
    let names = names.chain(std::iter::repeat(String::new()));
    let taken = (FIRST..FIRST + count)
        .zip(names)
        .filter_map(|(number, name)| {
            // SAFETY: only to ask whether there is such a descriptor.
            fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
            // SAFETY: who started this process says that it is this process's, and this is the only
            // place that takes it, once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            fcntl_setfd(&descriptor, FdFlags::CLOEXEC).ok()?;
            Some((name, descriptor))
        });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_goes_to_the_manager_with_its_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&path).unwrap();
        let manager = Manager { socket, room: None };
        use std::os::fd::AsFd as _;
        let file = tempfile::tempfile().unwrap();
        manager.ready().unwrap();
        manager.keep("client-7", &[file.as_fd(); 3]).unwrap();
        assert!(manager.keep("client-8", &[file.as_fd(); 4]).is_err());
        manager.forget("client-7");
        let mut said = [0; 200];
        let mut next = || {
            let count = listener.recv(&mut said).unwrap();
            String::from_utf8(said[..count].to_vec()).unwrap()
        };
        assert_eq!(next(), "READY=1");
        assert_eq!(next(), "FDSTORE=1\nFDNAME=client-7\nFDPOLL=0");
        assert_eq!(next(), "FDSTOREREMOVE=1\nFDNAME=client-7");
    }
}
