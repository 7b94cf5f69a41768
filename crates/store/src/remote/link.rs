//! Connections to one server, and a buffer for what comes back.

use super::address::Server;
use super::socket::{Socket, Spin};
use super::tls::{Session, Tls};
use crate::sync::Pool;
use crate::{ErrorKind, StoreError};
use std::time::{Duration, Instant};

/// Bytes received at a time: eight pages.
const INPUT_BYTES: usize = 33 << 10;
/// What a connection's requests may grow to before it goes back to the pool.
const OUTPUT_BYTES: usize = 16 << 10;
/// Connections kept.
const IDLE_MAX: usize = 16;

/// One connection with its buffers.
pub(crate) struct Link {
    socket: Socket,
    tls: Option<Session>,
    input: Box<[u8; INPUT_BYTES]>,
    start: usize,
    end: usize,
    /// How long a line or a blob may take to come in, from its first bytes on: as long as the
    /// socket lets the first ones take.
    timeout: Duration,
    /// The request that is being made.
    pub(crate) output: Vec<u8>,
}

impl Link {
    pub(crate) fn new(socket: Socket, tls: Option<Session>, timeout: Duration) -> Link {
        Link {
            socket,
            tls,
            input: Box::new([0; INPUT_BYTES]),
            start: 0,
            end: 0,
            timeout,
            output: Vec::with_capacity(OUTPUT_BYTES),
        }
    }

    /// Whether every answer has been read to its end, so that what comes next is the answer to the
    /// next request. Of what waits under TLS that is not known: it may be the server's own affair.
    fn is_idle(&self) -> bool {
        self.start == self.end && (self.tls.is_some() || self.socket.is_idle())
    }

    /// Sends the request made in `output`.
    pub(crate) fn send(&mut self) -> Result<(), StoreError> {
        let sent = match &mut self.tls {
            None => self.socket.send_all(&self.output),
            Some(session) => session.send_all(&self.output, &mut self.socket),
        };
        self.output.clear();
        sent
    }

    /// The next line, without its end (`\r\n`).
    pub(crate) fn line(&mut self) -> Result<&[u8], StoreError> {
        let (mut looked, mut begun) = (self.start, None);
        loop {
            if let Some(at) = self.input[looked..self.end]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                let (start, end) = (self.start, looked + at);
                self.start = end + 1;
                let line = &self.input[start..end];
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            let len = self.end - self.start;
            self.more_in_time(len + 1, &mut begun)?;
            looked = self.start + len;
        }
    }

    /// The next `len` bytes, which may be changed in place.
    pub(crate) fn take(&mut self, len: usize) -> Result<&mut [u8], StoreError> {
        let mut begun = None;
        while self.end - self.start < len {
            self.more_in_time(len, &mut begun)?;
        }
        let start = self.start;
        self.start += len;
        Ok(&mut self.input[start..start + len])
    }

    /// Receives more of what began to come in at `begun`. A server that sends byte after byte, each
    /// within the socket's time limit, answers as little as one that sends none.
    fn more_in_time(&mut self, len: usize, begun: &mut Option<Instant>) -> Result<(), StoreError> {
        if begun.is_some_and(|begun| begun.elapsed() > self.timeout) {
            let late = StoreError::new(ErrorKind::Temporary, "read an answer");
            return Err(late.with_cause("not all of it within the time limit"));
        }
        self.more(len)?;
        begun.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Receives more, so that `len` bytes can lie together.
    fn more(&mut self, len: usize) -> Result<(), StoreError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + len > INPUT_BYTES || self.end == INPUT_BYTES {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if len > INPUT_BYTES || self.end == INPUT_BYTES {
            return Err(StoreError::new(
                ErrorKind::Io,
                format!("read an answer: a part of it is longer than {INPUT_BYTES} bytes"),
            ));
        }
        let free = &mut self.input[self.end..];
        self.end += match &mut self.tls {
            None => self.socket.receive(free)?,
            Some(session) => session.receive(free, &mut self.socket)?,
        };
        Ok(())
    }
}

/// How to begin a connection: log in, look whether it is the right kind of server.
pub(crate) type Greet = dyn Fn(&mut Link) -> Result<(), StoreError> + Send + Sync;

/// What all connections of a store have in common.
pub(crate) struct Options {
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
    pub(crate) spin: Spin,
    pub(crate) greet: Box<Greet>,
}

/// One server and the idle connections to it.
pub(crate) struct Node {
    pub(crate) server: Server,
    idle: Pool<Link>,
}

impl Node {
    pub(crate) fn new(server: Server) -> Node {
        Node {
            server,
            idle: Pool::new(IDLE_MAX),
        }
    }

    /// Runs `talk` on a connection. After an error of `talk` the connection is closed: where its
    /// answers stand is not known.
    pub(crate) fn with<T>(
        &self,
        options: &Options,
        talk: impl FnOnce(&mut Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // Bytes nobody asked for, or a server that has closed it: no answer on it can be trusted to
        // be the right one's.
        let mut link = match self.idle.take().filter(Link::is_idle) {
            Some(link) => link,
            None => self.connect(options)?,
        };
        let said = talk(&mut link).map_err(|error| self.named(error))?;
        link.output.clear();
        link.output.shrink_to(OUTPUT_BYTES);
        self.idle.give_back(link);
        Ok(said)
    }

    fn connect(&self, options: &Options) -> Result<Link, StoreError> {
        let mut socket = Socket::connect(&self.server, options.timeout, options.spin)?;
        let session = match (&options.tls, &self.server) {
            (Some(tls), Server::Tcp { host, .. }) => Some(tls.session(host, &mut socket)?),
            _ => None,
        };
        let mut link = Link::new(socket, session, options.timeout);
        (options.greet)(&mut link).map_err(|error| self.named(error))?;
        Ok(link)
    }

    /// Forgets the idle connections.
    pub(crate) fn disconnect(&self) {
        while self.idle.take().is_some() {}
    }

    #[cold]
    fn named(&self, mut error: StoreError) -> StoreError {
        let name = self.server.name();
        if !error.context.contains(&name) {
            error.context = format!("{name}: {}", error.context);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::{sleep, spawn};

    #[test]
    fn a_server_that_sends_byte_after_byte_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.read_exact(&mut [0; 4]).unwrap();
            // It ends when the other side does.
            while peer.write_all(b"x").is_ok() {
                sleep(Duration::from_millis(10));
            }
        });
        let node = Node::new(Server::Tcp {
            host: "localhost".into(),
            address,
        });
        let options = Options {
            tls: None,
            timeout: Duration::from_millis(100),
            spin: Spin {
                time: Duration::ZERO,
                server_cpu: None,
            },
            greet: Box::new(|_| Ok(())),
        };
        let answer = node.with(&options, |link| {
            link.output.extend_from_slice(b"get\n");
            link.send()?;
            link.take(4096).map(|blob| blob.len())
        });
        let error = answer.expect_err("4096 bytes take 40 s");
        assert_eq!(error.kind, ErrorKind::Temporary, "{error}");
        server.join().unwrap();
    }
}
