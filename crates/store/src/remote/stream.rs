//! A connection's bytes: a socket by bare system calls, with time limits, under TLS or not.

use super::address::Server;
use super::tls::{Session, Tls};
use crate::descriptor::Descriptor;
use crate::{ErrorKind, StoreError};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::thread::sched_getcpu;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connected socket.
pub(crate) struct Stream {
    socket: Descriptor,
    tls: Option<Session>,
    looking: Looking,
}

/// How an answer is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looking {
    /// How long to look for it before sleeping until it is there.
    pub(crate) spin: Duration,
    /// On this processor not at all: looking would only keep the server from answering.
    pub(crate) server_cpu: Option<u32>,
}

impl Looking {
    /// For how long the calling thread should look, where it runs now.
    fn time(self) -> Duration {
        match self.server_cpu {
            Some(cpu) if sched_getcpu() as u32 == cpu => Duration::ZERO,
            _ => self.spin,
        }
    }
}

impl Stream {
    /// Connects to `server`, each step within `timeout`.
    pub(crate) fn connect(
        server: &Server,
        tls: Option<&Tls>,
        timeout: Duration,
        looking: Looking,
    ) -> Result<Stream, StoreError> {
        let fails = |error: Errno| {
            let kind = match error {
                Errno::ACCESS | Errno::PERM | Errno::NAMETOOLONG => ErrorKind::Config,
                _ => ErrorKind::Temporary,
            };
            StoreError::new(kind, format!("connect to {}", server.name())).with_cause(format!(
                "{}{}",
                in_time(error, timeout),
                next_step(error, server)
            ))
        };
        let family = match server {
            Server::Unix(_) => AddressFamily::UNIX,
            Server::Tcp {
                address: SocketAddr::V4(_),
                ..
            } => AddressFamily::INET,
            Server::Tcp { .. } => AddressFamily::INET6,
        };
        let socket =
            socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(fails)?;
        // The limit on sending holds for connecting as well.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout)).map_err(fails)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(timeout)).map_err(fails)?;
        match server {
            Server::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_str()).map_err(fails)?;
                connect(&socket, &address).map_err(fails)?;
            }
            Server::Tcp { address, .. } => {
                connect(&socket, address).map_err(fails)?;
                set_tcp_nodelay(&socket, true).map_err(fails)?;
                set_socket_keepalive(&socket, true).map_err(fails)?;
            }
        }
        let mut stream = Stream {
            socket: Descriptor::new(socket)?,
            tls: None,
            looking,
        };
        if let (Some(tls), Server::Tcp { host, .. }) = (tls, server) {
            let session = tls.session(host, &mut stream)?;
            stream.tls = Some(session);
        }
        Ok(stream)
    }

    /// Whether nothing waits to be read, the end of the connection included. Under TLS not known:
    /// the server's bytes may be its own affair.
    pub(crate) fn is_quiet(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        self.tls.is_some()
            || recv(self.socket.read_only(), &mut [0u8; 1], flags).err() == Some(Errno::AGAIN)
    }

    /// Sends all of `bytes`.
    pub(crate) fn send_all(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self.tls.take() {
            None => self.send_plain(bytes),
            Some(mut session) => {
                let done = session.send(bytes, self);
                self.tls = Some(session);
                done
            }
        }
    }

    /// Receives at least one byte into `bytes`, and returns how many.
    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, StoreError> {
        match self.tls.take() {
            None => self.receive_plain(bytes),
            Some(mut session) => {
                let done = session.receive(bytes, self);
                self.tls = Some(session);
                done
            }
        }
    }

    pub(super) fn send_plain(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        // The number is checked first: if the program has closed it, it may be a file of the
        // program's by now.
        let socket = self.socket.writable().map_err(|mut error| {
            error.kind = ErrorKind::Temporary;
            error
        })?;
        while !bytes.is_empty() {
            match send(socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken("send", error)),
            }
        }
        Ok(())
    }

    pub(super) fn receive_plain(&mut self, bytes: &mut [u8]) -> Result<usize, StoreError> {
        let socket = self.socket.read_only();
        let time = self.looking.time();
        let mut flags = match time.is_zero() {
            true => RecvFlags::empty(),
            false => RecvFlags::DONTWAIT,
        };
        let mut begun = None;
        loop {
            match recv(socket, &mut *bytes, flags) {
                Ok((0, _)) => {
                    return Err(StoreError::new(
                        ErrorKind::Temporary,
                        "read an answer: the server closed the connection",
                    ));
                }
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if flags == RecvFlags::DONTWAIT => {
                    let begun = *begun.get_or_insert_with(Instant::now);
                    if begun.elapsed() >= time {
                        flags = RecvFlags::empty();
                    } else {
                        std::hint::spin_loop();
                    }
                }
                Err(error) => return Err(broken("read an answer", error)),
            }
        }
    }
}

fn in_time(error: Errno, timeout: Duration) -> String {
    match error {
        Errno::AGAIN | Errno::INPROGRESS | Errno::TIMEDOUT => {
            format!("no answer within {} ms", timeout.as_millis())
        }
        error => error.to_string(),
    }
}

/// What to look at when nobody can be reached.
fn next_step(error: Errno, server: &Server) -> &'static str {
    match (error, server) {
        (Errno::NOENT | Errno::CONNREFUSED, Server::Unix(_)) => {
            "; is the server running, and is this the path of its socket?"
        }
        (Errno::CONNREFUSED, _) => "; is the server running? check host and port",
        (
            Errno::AGAIN
            | Errno::INPROGRESS
            | Errno::TIMEDOUT
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH,
            Server::Tcp { .. },
        ) => "; check host and port, and whether a firewall is between",
        (Errno::ACCESS | Errno::PERM, Server::Unix(_)) => {
            "; this user needs the right to write to the socket"
        }
        _ => "",
    }
}

#[cold]
fn broken(doing: &str, error: Errno) -> StoreError {
    let cause = match error {
        Errno::AGAIN => "not within the time limit (option `timeout`)".to_owned(),
        error => error.to_string(),
    };
    StoreError::new(ErrorKind::Temporary, doing).with_cause(cause)
}
