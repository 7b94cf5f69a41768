//! Connections to one server, and a buffer for what comes back.

use super::address::Server;
use super::stream::{Looking, Stream};
use super::tls::Tls;
use crate::sync::lock;
use crate::{ErrorKind, StoreError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes received at a time: eight pages.
const INPUT_BYTES: usize = 33 << 10;
/// What a connection's requests may grow to before it goes back to the pool.
const OUTPUT_BYTES: usize = 16 << 10;
/// Connections kept; more threads than this at once connect anew.
const IDLE_MAX: usize = 16;

/// One connection with its buffers.
pub(crate) struct Link {
    stream: Stream,
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
    /// Whether every answer has been read to its end, so that what comes next is the answer to the
    /// next request.
    fn is_quiet(&self) -> bool {
        self.start == self.end && self.stream.is_quiet()
    }

    /// Sends the request made in `output`.
    pub(crate) fn send(&mut self) -> Result<(), StoreError> {
        let sent = self.stream.send_all(&self.output);
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
        self.end += self.stream.receive(&mut self.input[self.end..])?;
        Ok(())
    }
}

/// How to begin a connection: log in, look whether it is the right kind of server.
pub(crate) type Greet = dyn Fn(&mut Link) -> Result<(), StoreError> + Send + Sync;

/// What all connections of a store have in common.
pub(crate) struct Manner {
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
    pub(crate) spin: Duration,
    pub(crate) server_cpu: Option<u32>,
    pub(crate) greet: Box<Greet>,
}

/// One server and the idle connections to it.
pub(crate) struct Node {
    pub(crate) server: Server,
    idle: Mutex<Vec<Link>>,
}

impl Node {
    pub(crate) fn new(server: Server) -> Node {
        Node {
            server,
            idle: Mutex::new(Vec::with_capacity(IDLE_MAX)),
        }
    }

    /// Runs `talk` on a connection. After an error of `talk` the connection is closed: where its
    /// answers stand is not known.
    pub(crate) fn with<T>(
        &self,
        manner: &Manner,
        talk: impl FnOnce(&mut Link) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = lock(&self.idle).pop();
        // Bytes nobody asked for, or a server that has closed it: no answer on it can be trusted to
        // be the right one's.
        let mut link = match idle.filter(Link::is_quiet) {
            Some(link) => link,
            None => self.connect(manner)?,
        };
        let said = talk(&mut link).map_err(|error| self.named(error))?;
        link.output.clear();
        link.output.shrink_to(OUTPUT_BYTES);
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX {
            idle.push(link);
        }
        Ok(said)
    }

    fn connect(&self, manner: &Manner) -> Result<Link, StoreError> {
        let stream = Stream::connect(
            &self.server,
            manner.tls.as_ref(),
            manner.timeout,
            Looking {
                spin: manner.spin,
                server_cpu: manner.server_cpu,
            },
        )?;
        let mut link = Link {
            stream,
            input: Box::new([0; INPUT_BYTES]),
            start: 0,
            end: 0,
            timeout: manner.timeout,
            output: Vec::with_capacity(OUTPUT_BYTES),
        };
        (manner.greet)(&mut link).map_err(|error| self.named(error))?;
        Ok(link)
    }

    /// Forgets the idle connections.
    pub(crate) fn let_go(&self) {
        lock(&self.idle).clear();
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
        let manner = Manner {
            tls: None,
            timeout: Duration::from_millis(100),
            spin: Duration::ZERO,
            server_cpu: None,
            greet: Box::new(|_| Ok(())),
        };
        let answer = node.with(&manner, |link| {
            link.output.extend_from_slice(b"get\n");
            link.send()?;
            link.take(4096).map(|blob| blob.len())
        });
        let error = answer.expect_err("4096 bytes take 40 s");
        assert_eq!(error.kind, ErrorKind::Temporary, "{error}");
        server.join().unwrap();
    }
}
