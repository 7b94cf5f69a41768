//! A connected socket, by bare system calls, with time limits.

use super::address::Server;
use crate::descriptor::Descriptor;
use crate::{ErrorKind, StoreError};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::thread::sched_getcpu;
use std::time::{Duration, Instant};

/// A connected socket.
pub(crate) struct Socket {
    descriptor: Descriptor,
    spin: Spin,
}

/// How an answer is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spin {
    /// How long to look for it before sleeping until it is there.
    pub(crate) time: Duration,
    /// On this processor not at all: looking would only keep the server from answering.
    pub(crate) server_cpu: Option<u32>,
}

impl Spin {
    /// For how long the calling thread should look, where it runs now.
    fn time_here(self) -> Duration {
        match self.server_cpu {
            Some(cpu) if sched_getcpu() as u32 == cpu => Duration::ZERO,
            _ => self.time,
        }
    }
}

impl Socket {
    /// Connects to `server`, each step within `timeout`.
    pub(crate) fn connect(
        server: &Server,
        timeout: Duration,
        spin: Spin,
    ) -> Result<Socket, StoreError> {
        let fails = |error: Errno| unreachable(error, server, timeout);
        let family = match server {
            Server::Unix(_) => AddressFamily::UNIX,
            Server::Tcp { address, .. } if address.is_ipv4() => AddressFamily::INET,
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
        Socket::of(socket, spin)
    }

    /// Takes a socket that is connected.
    pub(crate) fn of(socket: OwnedFd, spin: Spin) -> Result<Socket, StoreError> {
        Ok(Socket {
            descriptor: Descriptor::new(socket)?,
            spin,
        })
    }

    /// Whether nothing waits to be read, the end of the connection included.
    pub(crate) fn is_idle(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        recv(self.descriptor.read_only(), &mut [0u8; 1], flags).err() == Some(Errno::AGAIN)
    }

    /// Sends all of `bytes`.
    pub(crate) fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        // The number is checked first: if the program has closed it, it may be a file of the
        // program's by now.
        let socket = self.descriptor.writable().map_err(|mut error| {
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

    /// Receives at least one byte into `bytes`, and returns how many.
    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, StoreError> {
        let socket = self.descriptor.read_only();
        let time = self.spin.time_here();
        let mut flags = match time.is_zero() {
            true => RecvFlags::empty(),
            false => RecvFlags::DONTWAIT,
        };
        let mut begun = None;
        loop {
            match recv(socket, &mut *bytes, flags) {
                Ok((0, _)) => {
                    return Err(closed());
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

/// The error for a connection that the server has ended.
#[cold]
pub(crate) fn closed() -> StoreError {
    StoreError::new(
        ErrorKind::Temporary,
        "read an answer: the server closed the connection",
    )
}

#[cold]
fn unreachable(error: Errno, server: &Server, timeout: Duration) -> StoreError {
    let kind = match error {
        Errno::ACCESS | Errno::PERM | Errno::NAMETOOLONG => ErrorKind::Config,
        _ => ErrorKind::Temporary,
    };
    let cause = match error {
        Errno::AGAIN | Errno::INPROGRESS | Errno::TIMEDOUT => {
            format!("no answer within {} ms", timeout.as_millis())
        }
        error => error.to_string(),
    };
    let next = next_step(error, server);
    StoreError::new(kind, format!("connect to {}", server.name()))
        .with_cause(format!("{cause}{next}"))
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
