//! The server: takes connections, hears what each client says, and gives each a thread.
//!
//! Those that have not said all yet cost a descriptor and no thread. One thread waits for all of
//! them, so who connects and says nothing holds up nobody.
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagetide_kernel::peer::Peer;
use pagetide_kernel::uffd::feature;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::bounded::Bounded;
use crate::client::{self, Handed, Owner};
use crate::crew::Crew;
use crate::discard::discard;
use crate::firecracker::{Greeting, Handshake, Refusal};
use crate::keeper::{Holding, Keeper, Returned};
use crate::kept::Of;
use crate::memory::Memory;
use crate::moment::Moment;
use crate::plan::OnLost;
use crate::said::counted;
use crate::status::Status;
use crate::takeover::{Left, take_over};

pub use crate::crew::{ENDING, Say, Setup};

/// How long a client may take for its handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long clients' threads may take to end where who is started next takes clients over: those
/// wait meanwhile, and what such a thread still does is not missed.
const HANDING_OVER: Duration = Duration::from_secs(5);
/// Connections that have not said all yet; of more, the oldest is closed.
const HANDSHAKES_MAX: usize = 256;
/// Connections taken before those that are there are heard.
const ACCEPTED_AT_ONCE: usize = 64;
/// Of a guest, memory is only given up and unmapped.
const REFUSED: u64 = feature::EVENT_FORK | feature::EVENT_REMAP | feature::SIGBUS;

/// Why the end was not in order.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Clients were given up, as their pages did not come.
    #[error("given up: {}, as the source of the pages did not answer", counted(*.0, "client"))]
    GivenUp(u64),
    /// The working set could not be saved.
    #[error("--record: the working set is not saved: {0}")]
    Recorded(#[from] io::Error),
}

/// See the module's text.
pub struct Server {
    listener: UnixListener,
    crew: Arc<Crew>,
    keeper: Option<Arc<Keeper>>,
    handshakes: VecDeque<(Instant, Handshake)>,
    refusals: Bounded,
}

/// What was kept for this process by the one before.
pub struct KeptBefore {
    has_listener: bool,
    clients: Vec<Returned>,
    /// Where the socket is.
    path: PathBuf,
}

/// The socket at `path`: the one that was kept by `keeper` among `inherited` descriptors, or else a
/// new one as of [`listen`]; and the clients among them.
///
/// # Errors
/// As [`listen`].
pub fn listen_again(
    path: &Path,
    keeper: &Keeper,
    inherited: Vec<(String, OwnedFd)>,
) -> io::Result<(UnixListener, KeptBefore)> {
    let (listener, clients) = keeper.sort(inherited, path);
    let has_listener = listener.is_some();
    let listener = listener.map_or_else(|| listen(path), Ok)?;
    let kept = KeptBefore {
        has_listener,
        clients,
        path: path.to_owned(),
    };
    Ok((listener, kept))
}

/// A socket at `path`. A socket that nobody listens on any more is removed first.
///
/// # Errors
/// Something else is there, somebody listens, or the socket cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match UnixStream::connect(path) {
                // A file that is no socket refuses as well.
                Err(refused)
                    if refused.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) =>
                {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                _ => Err(error),
            }
        }
        result => result,
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

impl Server {
    /// A server on `listener`, until `ending` comes.
    ///
    /// # Errors
    /// The socket is not usable.
    pub fn new(listener: UnixListener, setup: Setup, ending: Arc<Moment>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        Ok(Server {
            listener,
            crew: Arc::new(Crew::new(setup, ending, None)),
            keeper: None,
            handshakes: VecDeque::new(),
            refusals: Bounded::new(Instant::now()),
        })
    }

    /// Has its socket and all its clients kept by `keeper` from now on, and takes over those that
    /// were.
    ///
    /// # Errors
    /// The socket cannot be kept.
    pub fn keep(&mut self, keeper: &Arc<Keeper>, kept: KeptBefore) -> io::Result<()> {
        if !kept.has_listener {
            keeper.keep_listener(&self.listener, &kept.path)?;
        }
        self.keeper = Some(Arc::clone(keeper));
        for returned in kept.clients {
            match take_over(keeper, returned, self.image()) {
                Ok(handed) => {
                    (self.crew.say)("a client is taken over:");
                    self.crew.start(handed);
                }
                Err(left) => self.give_up(left),
            }
        }
        Ok(())
    }

    fn image(&self) -> Of {
        Of {
            id: self.crew.source.id(),
            pages: self.crew.source.pages(),
        }
    }

    /// A client that was kept cannot be served on: all its pages are lost.
    fn give_up(&self, left: Left) {
        self.crew.status.note_refused();
        let pid = left.peer.as_ref().and_then(Peer::pid);
        let who = pid.map_or("a client".to_owned(), |pid| format!("process {pid}"));
        let done = match (&left.peer, self.crew.plan.on_lost) {
            (Some(peer), OnLost::Kill) => match peer.kill() {
                Ok(()) => "it was killed".to_owned(),
                Err(errno) => format!("it could not be killed ({errno})"),
            },
            _ => "who waits for its pages is left waiting".to_owned(),
        };
        let why = left.why;
        (self.crew.say)(&format!("{who} is not taken over: {why}; {done}"));
    }

    /// What it does, for those who ask.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.crew.status)
    }

    /// Serves until the end comes; then all clients' service has ended, but for those whose threads
    /// the source keeps from ending. They are given up after [`Setup::patience`].
    ///
    /// # Errors
    /// [`Failed`].
    pub fn run(mut self) -> Result<(), Failed> {
        while !self.crew.ending.has_come() {
            self.wait();
            self.accept();
            self.hear();
        }
        let keeper = self.keeper.as_ref();
        let hands_over = keeper.is_some_and(|keeper| keeper.is_handing_over());
        let patience = match hands_over {
            true => self.crew.patience.min(HANDING_OVER),
            false => self.crew.patience,
        };
        let left = self.crew.wait_for_all(patience, &|| {});
        let given_up = match left {
            0 => 0,
            _ => self.crew.give_up(hands_over),
        };
        self.refusals.end(&*self.crew.say);
        let saved = self.crew.recorder.as_ref().map(|recorder| recorder.save());
        match (given_up, saved) {
            (0, Some(Err(error))) => Err(Failed::Recorded(error)),
            (0, _) => Ok(()),
            _ => Err(Failed::GivenUp(given_up)),
        }
    }

    fn wait(&self) {
        let oldest = self.handshakes.front();
        let left = oldest.map(|(since, _)| PATIENCE.saturating_sub(since.elapsed()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut fds = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&*self.crew.ending, PollFlags::IN),
        ];
        let waiting = self.handshakes.iter();
        fds.extend(waiting.map(|(_, handshake)| PollFd::new(handshake, PollFlags::IN)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn accept(&mut self) {
        let mut heard = false;
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((connection, _)) => match Handshake::new(connection) {
                    Ok(handshake) => self.handshakes.push_back((Instant::now(), handshake)),
                    Err(error) => (self.crew.say)(&format!("a connection failed: {error}")),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No more descriptors, say: who says nothing gives up its own.
                Err(error) => {
                    let text = format!("a connection could not be taken: {error}");
                    self.refusals.tell(Instant::now(), &text, &*self.crew.say);
                    self.refuse_oldest("to make room");
                    std::thread::sleep(Duration::from_millis(10));
                    break;
                }
            }
            if self.handshakes.len() > HANDSHAKES_MAX && !std::mem::replace(&mut heard, true) {
                // Some have said all perhaps.
                self.hear();
            }
            if self.handshakes.len() > HANDSHAKES_MAX {
                self.refuse_oldest("to make room for others");
            }
        }
    }

    fn refuse_oldest(&mut self, why: &str) {
        if let Some((_, handshake)) = self.handshakes.pop_front() {
            self.refuse(
                &handshake.connection().as_fd(),
                &format!("it has said nothing useful yet; closed {why}"),
            );
        }
    }

    fn refuse(&mut self, connection: &impl AsFd, why: &str) {
        self.crew.status.note_refused();
        let pid = Peer::of(connection.as_fd())
            .ok()
            .and_then(|peer| peer.pid());
        let who = pid.map_or("a client".to_owned(), |pid| format!("process {pid}"));
        let text = format!("{who} is refused: {why}");
        self.refusals.tell(Instant::now(), &text, &*self.crew.say);
    }

    /// Hears what there is from those that have not said all.
    fn hear(&mut self) {
        for _ in 0..self.handshakes.len() {
            let Some((since, mut handshake)) = self.handshakes.pop_front() else {
                return;
            };
            match handshake.receive() {
                Ok(true) => self.greet(handshake),
                Ok(false) if since.elapsed() < PATIENCE => {
                    self.handshakes.push_back((since, handshake));
                }
                Ok(false) => {
                    let text = format!("it has not finished its handshake in {PATIENCE:?}");
                    self.refuse(&handshake, &text);
                }
                Err(refusal) => self.refuse(&handshake, &refusal.to_string()),
            }
        }
    }

    fn greet(&mut self, handshake: Handshake) {
        let connection = loop {
            match handshake.connection().as_fd().try_clone_to_owned() {
                Ok(connection) => break connection,
                // Who has said nothing yet gives up its own.
                Err(_) if !self.handshakes.is_empty() => self.refuse_oldest("to make room"),
                Err(_) => return self.refuse(&handshake, "there are no more descriptors"),
            }
        };
        if self.crew.clients() >= self.crew.clients_max {
            let most = self.crew.clients_max;
            let text = format!("{most} clients are served, the most allowed");
            return self.refuse(&connection, &text);
        }
        let result = handshake
            .finish(self.crew.source.pages())
            .and_then(
                |greeting| match client::refuses(greeting.uffd.features(), REFUSED) {
                    Some(why) => {
                        discard(greeting);
                        Err(Refusal::Features(why))
                    }
                    None => Ok(greeting),
                },
            );
        let result = result.and_then(|greeting| {
            let peer = Peer::of(connection.as_fd());
            let peer = peer.map_err(|errno| Refusal::Connection(errno.into()))?;
            Ok((greeting, peer))
        });
        match result {
            Ok((greeting, peer)) => {
                let (memory, holding) = self.known(&greeting);
                self.crew.start(Handed {
                    uffd: greeting.uffd,
                    memory,
                    pid: peer.pid(),
                    owner: Some(Owner {
                        connection: greeting.connection,
                        peer: Arc::new(peer),
                    }),
                    holding,
                });
            }
            Err(refusal) => self.refuse(&connection, &refusal.to_string()),
        }
    }

    /// The memory of a client, which is kept if clients are.
    fn known(&self, greeting: &Greeting) -> (Memory, Option<Holding>) {
        let areas = greeting.areas.clone();
        let Some(keeper) = &self.keeper else {
            return (Memory::new(areas), None);
        };
        let kept = Memory::keeping(areas.clone(), self.image()).map_err(io::Error::from);
        let kept = kept.and_then(|(file, memory)| {
            let holding = keeper.keep_client(&greeting.uffd, &greeting.connection, &file)?;
            Ok((memory, Some(holding)))
        });
        kept.unwrap_or_else(|error| {
            (self.crew.say)(&format!("a client is not kept for the next start: {error}"));
            (Memory::new(areas), None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let (socket, file) = (place.path().join("socket"), place.path().join("file"));
        std::fs::write(&file, "kept").unwrap();
        assert_eq!(listen(&file).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        let listener = listen(&socket).unwrap();
        assert_eq!(
            listen(&socket).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(listener);
        assert!(listen(&socket).is_ok());
    }
}
