//! What Firecracker says when it connects: one JSON array of its guest's memory regions, and the
//! userfaultfd beside it. Nothing is ever answered.
mod framing;
mod regions;

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use pagetide_kernel::uffd::{ForeignError, Uffd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::discard::discard;
use crate::memory::Area;
use framing::{Framing, Seen};

pub use regions::parse;

/// Most bytes of a handshake: of many at a time that are never finished, each keeps as many.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Bytes received at once.
const PART_BYTES: usize = 64 << 10;
/// The kernel's bound on descriptors in one message (SCM_MAX_FD): no more come, so none is lost.
const DESCRIPTORS: usize = 253;

/// Why a client is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It went before it had said what it wants.
    #[error("it closed the connection within its handshake, after {0} bytes")]
    Closed(usize),
    /// The connection failed.
    #[error("its connection failed: {0}")]
    Connection(io::Error),
    /// What it said is too long.
    #[error("its handshake is longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// It is not what Firecracker says.
    #[error("its handshake is not the JSON array of regions that was expected: {0}")]
    NotRegions(String),
    /// The regions cannot be.
    #[error("{0}")]
    Regions(String),
    /// No descriptor came, or none that can be used.
    #[error("no userfaultfd came with its handshake")]
    NoDescriptor,
    /// Another descriptor came.
    #[error("{0}")]
    Descriptor(#[from] ForeignError),
    /// The userfaultfd is used in a way that is not served.
    #[error("{0}")]
    Features(String),
}

/// A connection whose handshake is under way.
#[derive(Debug)]
pub struct Handshake {
    connection: UnixStream,
    said: Vec<u8>,
    framing: Framing,
    sent: Sent,
}

/// Descriptors as they were sent; nobody waits until they are closed.
#[derive(Debug, Default)]
struct Sent(Vec<OwnedFd>);

impl Drop for Sent {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            discard(std::mem::take(&mut self.0));
        }
    }
}

/// What a handshake came to.
#[derive(Debug)]
pub struct Greeting {
    /// The connection.
    pub connection: UnixStream,
    /// The client's memory, checked.
    pub areas: Vec<Area>,
    /// Its userfaultfd.
    pub uffd: Uffd,
}

impl Handshake {
    /// Nothing has been said yet. From now on `connection` does not block.
    ///
    /// # Errors
    /// It is no usable connection.
    pub fn new(connection: UnixStream) -> io::Result<Handshake> {
        connection.set_nonblocking(true)?;
        Ok(Handshake {
            connection,
            said: Vec::new(),
            framing: Framing::default(),
            sent: Sent::default(),
        })
    }

    /// Receives what there is; true once all has been said.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn receive(&mut self) -> Result<bool, Refusal> {
        let mut part = [0; PART_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut part)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let count = match recvmsg(&self.connection, &mut slices, &mut control, flags) {
                Ok(message) => message.bytes,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
                Err(errno) => return Err(Refusal::Connection(errno.into())),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.keep(descriptors);
                }
            }
            if count == 0 {
                return Err(Refusal::Closed(self.said.len()));
            }
            if self.said.len() + count > MESSAGE_BYTES_MAX {
                return Err(Refusal::TooLong);
            }
            self.said.extend_from_slice(&part[..count]);
            match self.framing.look(&part[..count]) {
                Seen::Part => {}
                Seen::All => return Ok(true),
                Seen::Other(what) => return Err(Refusal::NotRegions(what)),
            }
        }
    }

    /// Two are enough (a userfaultfd, and the memory's file): others are closed.
    fn keep(&mut self, descriptors: impl Iterator<Item = OwnedFd>) {
        self.sent.0.extend(descriptors);
        drop(Sent(self.sent.0.split_off(self.sent.0.len().min(2))));
    }

    /// What was said, for an image of `image_pages` pages; to be called once all was.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn finish(mut self, image_pages: u64) -> Result<Greeting, Refusal> {
        let areas = parse(&self.said, image_pages)?;
        let sent = self.sent.0.iter();
        let kinds: Vec<_> = sent.map(|fd| Uffd::recognise(fd.as_fd())).collect();
        let Some(at) = kinds.iter().position(Result::is_ok) else {
            let mut kinds = kinds.into_iter();
            let first = kinds.find_map(Result::err);
            return Err(first.map_or(Refusal::NoDescriptor, Refusal::Descriptor));
        };
        let uffd = Uffd::adopt(self.sent.0.swap_remove(at))?;
        Ok(Greeting {
            connection: self.connection,
            areas,
            uffd,
        })
    }

    /// The connection.
    pub fn connection(&self) -> &UnixStream {
        &self.connection
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn said(parts: &[&[u8]]) -> Result<bool, Refusal> {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut handshake = Handshake::new(server).unwrap();
        for part in parts {
            client.write_all(part).unwrap();
            if handshake.receive()? {
                return Ok(true);
            }
        }
        drop(client);
        handshake.receive()
    }

    #[test]
    fn a_handshake_is_whole_when_its_array_is() {
        assert!(said(&[b"[{\"size\"", b": 3}", b"]"]).unwrap());
        assert!(said(&[b" [", b"\"]\\\"]\"", b"]"]).unwrap());
        assert!(matches!(said(&[b"[[]"]), Err(Refusal::Closed(3))));
        assert!(matches!(
            said(&[b"GET / HTTP/1.1"]),
            Err(Refusal::NotRegions(_))
        ));
        let long = vec![b' '; PART_BYTES];
        let parts = vec![&long[..]; MESSAGE_BYTES_MAX / PART_BYTES + 1];
        assert!(matches!(said(&parts), Err(Refusal::TooLong)));
    }
}
