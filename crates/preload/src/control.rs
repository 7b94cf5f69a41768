//! The control socket: statistics and limit changes for the same user or root, one JSON line each
//! way (see `pagetide_pager::report`).
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::wait::wait_for;
use pagetide_pager::protocol::files;
use pagetide_pager::report::{Reply, Request};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
    sockopt,
};

use crate::agent::{self, Agent};
use crate::credentials;
use crate::deferral;
use crate::pressure::Watch;
use crate::requests::{AUXILIARY, BELL};

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// Longest request line.
const LINE: usize = 4096;
/// How long it sleeps where the kernel does not say what is there to read.
const BLIND: Duration = Duration::from_millis(20);
/// A connection that is silent this long is closed.
const SILENCE: Duration = Duration::from_secs(30);

struct Connection {
    socket: OwnedFd,
    line: Vec<u8>,
    /// A limit change that does not hold yet, and until when it may take.
    pending: Option<Instant>,
    last: Instant,
}

/// Serves until the process ends; returns only if there can be no socket.
pub fn serve(agent: &'static Agent) {
    let Some(listener) = listener(agent) else {
        return;
    };
    let mut connections: Vec<Connection> = Vec::with_capacity(CONNECTIONS);
    let mut followed = 0;
    let mut pressure = watch(agent);
    loop {
        let timeout = if connections.iter().any(|c| c.pending.is_some()) {
            2
        } else {
            250
        };
        let mut fds: Vec<PollFd<'_>> = connections
            .iter()
            .map(|c| PollFd::new(&c.socket, PollFlags::IN))
            .collect();
        if connections.len() < CONNECTIONS {
            fds.push(PollFd::new(&listener, PollFlags::IN));
        }
        let sockets = fds.len();
        let watched = pressure.as_ref().and_then(Watch::polled);
        fds.extend(watched.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)));
        let known = wait_for(&mut fds, None, Duration::from_millis(timeout)).is_some();
        if !known {
            std::thread::sleep(BLIND);
        }
        let found = fds
            .drain(sockets..)
            .fold(PollFlags::empty(), |all, fd| all | fd.revents());
        let ready: Vec<bool> = fds
            .iter()
            .map(|fd| !known || !fd.revents().is_empty())
            .collect();
        drop(fds);
        if agent::scanner_tid() == 0 {
            agent.pager.end_process(
                "a thread of the pager was ended from outside; new memory \
                cannot be governed any more",
            );
        }
        let _working = AUXILIARY.lock();
        credentials::keep_up(&mut followed);
        if let Some(watch) = &mut pressure {
            match watch.look(found) {
                Some(true) => agent.pager.note_short_memory(),
                Some(false) => {}
                None => pressure = None,
            }
        }
        let mut index = 0;
        connections.retain_mut(|connection| {
            index += 1;
            connection.step(agent, ready[index - 1])
        });
        if ready.len() > index && ready[index] {
            connections.extend(admit(&listener));
        }
    }
}

/// What tells that memory is short, if that is wished and there is something.
fn watch(agent: &Agent) -> Option<Watch> {
    let wish = &agent.config.pressure;
    Watch::begin(wish).unwrap_or_else(|errno| {
        let text = format!("what is to be watched for short memory cannot be ({errno}): {wish}");
        agent.pager.ledger.set_message(text.as_bytes());
        None
    })
}

fn listener(agent: &Agent) -> Option<OwnedFd> {
    let path = files::socket(&agent.config.wishes.run_dir, std::process::id());
    // An earlier image of this process (before an exec) may have left its socket.
    let _ = std::fs::remove_file(&path);
    let address = SocketAddrUnix::new(&path).ok()?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .ok()?;
    bind(&socket, &address).ok()?;
    listen(&socket, 16).ok()?;
    Some(socket)
}

/// Accepts a connection, if its maker may control this process.
fn admit(listener: &OwnedFd) -> Option<Connection> {
    let socket = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
    let peer = sockopt::socket_peercred(&socket).ok()?.uid;
    let mut connection = Connection {
        socket,
        line: Vec::with_capacity(LINE),
        pending: None,
        last: Instant::now(),
    };
    if peer == rustix::process::getuid() || peer == rustix::process::geteuid() || peer.is_root() {
        return Some(connection);
    }
    connection.answer(&Reply::Error {
        message: format!(
            "user {} may not control a process of user {}",
            peer.as_raw(),
            rustix::process::getuid().as_raw()
        ),
    });
    None
}

impl Connection {
    /// One step; whether the connection goes on.
    fn step(&mut self, agent: &Agent, readable: bool) -> bool {
        if let Some(deadline) = self.pending {
            let holds = deferral::is_counted() && agent.pager.is_bound_kept();
            if holds || Instant::now() > deadline {
                self.pending = None;
                let reply = if holds {
                    statistics(agent)
                } else {
                    late(agent)
                };
                return self.answer(&reply);
            }
        }
        if !readable {
            return self.pending.is_some() || self.last.elapsed() < SILENCE;
        }
        let mut buffer = [0u8; 1024];
        match rustix::io::read(&self.socket, &mut buffer) {
            Ok(0) => return false,
            Ok(count) => self.line.extend_from_slice(&buffer[..count]),
            Err(errno) if std::io::Error::from(errno).kind() == ErrorKind::WouldBlock => {
                return true;
            }
            Err(_) => return false,
        }
        self.last = Instant::now();
        while let Some(end) = self.line.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            if !self.request(agent, &line) {
                return false;
            }
        }
        self.line.len() < LINE
    }

    fn request(&mut self, agent: &Agent, line: &[u8]) -> bool {
        match serde_json::from_slice(line) {
            Ok(Request::Stat) => self.answer(&statistics(agent)),
            Ok(Request::Limit { bytes, timeout_ms }) => {
                if let Err(why) = agent.pager.ledger.statistics().check_limit(bytes) {
                    let message = format!("its memory in all cannot be {bytes} bytes: {why}");
                    return self.answer(&Reply::Error { message });
                }
                agent.pager.set_limit(bytes.div_ceil(PAGE_SIZE as u64));
                deferral::note_limit();
                BELL.ring();
                self.pending =
                    Some(Instant::now() + Duration::from_millis(timeout_ms.min(3_600_000)));
                true
            }
            Ok(Request::Measure { for_ms }) => {
                let until_ns = now_ns().saturating_add(for_ms.saturating_mul(1_000_000));
                agent.pager.measure_until(until_ns);
                deferral::give_up();
                BELL.ring();
                self.answer(&statistics(agent))
            }
            Err(error) => self.answer(&Reply::Error {
                message: format!("not a request: {error}"),
            }),
        }
    }

    fn answer(&mut self, reply: &Reply) -> bool {
        let Ok(mut text) = serde_json::to_vec(reply) else {
            return false;
        };
        text.push(b'\n');
        let mut rest = &text[..];
        while !rest.is_empty() {
            let sent =
                rustix::net::send(self.socket.as_fd(), rest, rustix::net::SendFlags::NOSIGNAL);
            match sent {
                Ok(count) => rest = &rest[count..],
                Err(_) => return false,
            }
        }
        true
    }
}

fn statistics(agent: &Agent) -> Reply {
    agent.pager.note_store();
    Reply::Ok {
        statistics: Box::new(agent.pager.ledger.statistics()),
    }
}

fn late(agent: &Agent) -> Reply {
    let pager = &agent.pager;
    pager.note_store();
    let now = pager.ledger.statistics();
    let what = match now.memory_budget_bytes {
        0 => "resident",
        _ => "in memory in all",
    };
    Reply::Error {
        message: format!(
            "{} bytes are still {what} against a limit of {}: locked pages, pages that do not \
             compress, or a store that takes none ({} errors); the limit stays in force and is \
             reached as soon as that allows",
            now.limited_bytes(),
            now.limit_bytes(),
            now.errors
        ),
    }
}
