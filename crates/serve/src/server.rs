//! The server: takes connections, hears what each client says, and gives each a thread.
//!
//! Those that have not said all yet cost a descriptor and no thread. One thread waits for all of
//! them, so who connects and says nothing holds up nobody.
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagetide_kernel::peer::Peer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::client::{self, Client, End, Handed, Service};
use crate::counters::Counters;
use crate::ending::Ending;
use crate::firecracker::{Handshake, Refusal};
use crate::plan::Plan;
use crate::record::Recorder;
use crate::source::Source;
use crate::status::Status;

/// How long a client may take for its handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that have not said all yet; of more, the oldest is closed.
const HANDSHAKES_MAX: usize = 256;
/// Connections taken before those that are there are heard.
const ACCEPTED_AT_ONCE: usize = 64;
/// How long clients' threads may take to end.
const ENDING: Duration = Duration::from_secs(5);
/// The stack of a client's thread.
const STACK_BYTES: usize = 512 << 10;

/// What is told to whoever watches.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What a server is made of.
pub struct Setup {
    /// Where pages come from.
    pub source: Arc<dyn Source>,
    /// How clients are served.
    pub plan: Plan,
    /// The order of first touches is recorded here.
    pub recorder: Option<Recorder>,
    /// Clients served at a time; others are refused.
    pub clients_max: usize,
    /// Told of clients that come and go, and of what goes wrong.
    pub say: Say,
}

/// See the module's text.
pub struct Server {
    listener: UnixListener,
    source: Arc<dyn Source>,
    plan: Plan,
    recorder: Option<Arc<Recorder>>,
    clients_max: usize,
    say: Say,
    status: Arc<Status>,
    ending: Arc<Ending>,
    handshakes: VecDeque<(Instant, Handshake)>,
    threads: Vec<JoinHandle<()>>,
    /// How many clients there have been.
    number: u64,
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
    pub fn new(listener: UnixListener, setup: Setup, ending: Arc<Ending>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        Ok(Server {
            listener,
            source: setup.source,
            plan: setup.plan,
            recorder: setup.recorder.map(Arc::new),
            clients_max: setup.clients_max,
            say: setup.say,
            status: Arc::default(),
            ending,
            handshakes: VecDeque::new(),
            threads: Vec::new(),
            number: 0,
        })
    }

    /// What it does, for those who ask.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Serves until the end comes; then all clients' service has ended, but for one that keeps its
    /// thread from ending, which is left behind after some seconds.
    ///
    /// # Errors
    /// The working set could not be saved.
    pub fn run(mut self) -> io::Result<()> {
        while !self.ending.has_come() {
            self.wait();
            self.accept();
            self.hear();
        }
        self.end_threads();
        match &self.recorder {
            Some(recorder) => recorder.save().map(drop),
            None => Ok(()),
        }
    }

    fn end_threads(&mut self) {
        let deadline = Instant::now() + ENDING;
        while !self.threads.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            self.threads.retain(|thread| !thread.is_finished());
        }
        if !self.threads.is_empty() {
            (self.say)(&format!("{} clients did not let go", self.threads.len()));
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
            PollFd::new(&*self.ending, PollFlags::IN),
        ];
        let waiting = self.handshakes.iter();
        fds.extend(waiting.map(|(_, handshake)| PollFd::new(handshake, PollFlags::IN)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((connection, _)) => match Handshake::new(connection) {
                    Ok(handshake) => self.handshakes.push_back((Instant::now(), handshake)),
                    Err(error) => (self.say)(&format!("a connection failed: {error}")),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No more descriptors, say: who says nothing gives up its own.
                Err(error) => {
                    (self.say)(&format!("a connection could not be taken: {error}"));
                    self.refuse_oldest("to make room");
                    std::thread::sleep(Duration::from_millis(10));
                    break;
                }
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

    fn refuse(&self, connection: &impl AsFd, why: &str) {
        self.status.note_refused();
        let pid = Peer::of(connection.as_fd())
            .ok()
            .and_then(|peer| peer.pid());
        let who = pid.map_or("a client".to_owned(), |pid| format!("process {pid}"));
        (self.say)(&format!("{who} is refused: {why}"));
    }

    /// Hears what there is from those that have not said all.
    fn hear(&mut self) {
        for (since, mut handshake) in std::mem::take(&mut self.handshakes) {
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
        self.threads.retain(|thread| !thread.is_finished());
        let connection = handshake.connection().as_fd().try_clone_to_owned();
        let Ok(connection) = connection else {
            return (self.say)("a client is refused: there are no more descriptors");
        };
        if self.threads.len() >= self.clients_max {
            let text = format!("{} clients are served, the most allowed", self.clients_max);
            return self.refuse(&connection, &text);
        }
        let result =
            handshake.finish(self.source.pages()).and_then(|greeting| {
                match client::refuses(greeting.uffd.features()) {
                    Some(why) => Err(Refusal::Features(why)),
                    None => Ok(greeting),
                }
            });
        let result = result.and_then(|greeting| {
            let peer = Peer::of(connection.as_fd());
            let peer = peer.map_err(|errno| Refusal::Connection(errno.into()))?;
            Ok((greeting, peer))
        });
        match result {
            Ok((greeting, peer)) => self.start(Handed {
                uffd: greeting.uffd,
                areas: greeting.areas,
                connection: greeting.connection,
                peer,
            }),
            Err(refusal) => self.refuse(&connection, &refusal.to_string()),
        }
    }

    /// Gives a client its thread.
    fn start(&mut self, handed: Handed) {
        self.number += 1;
        let (number, pid) = (self.number, handed.peer.pid());
        let who = match pid {
            Some(pid) => format!("client {number} (process {pid})"),
            None => format!("client {number}"),
        };
        let pages: u64 = handed.areas.iter().map(|area| area.range.pages()).sum();
        let counters = Arc::new(Counters::default());
        let service = Service {
            source: Arc::clone(&self.source),
            plan: self.plan.clone(),
            recorder: self.recorder.clone(),
            counters: Arc::clone(&counters),
            latencies: self.status.latencies(),
        };
        let (status, ending) = (Arc::clone(&self.status), Arc::clone(&self.ending));
        let (say, recorder) = (Arc::clone(&self.say), self.recorder.clone());
        status.add(number, pid, pages, counters);
        say(&format!("{who}: {pages} pages of memory"));
        let body = move || {
            let say = |text: &str| say(&format!("{who}: {text}"));
            match Client::new(handed, service).serve(&ending, &say) {
                End::Gone => say("ended"),
                End::Told => say("is served no more"),
                End::Lost(why) => say(&why),
                End::Broken(why) => say(&format!("is served no more: {why}")),
            }
            status.remove(number);
            if let Some(recorder) = recorder {
                save(&recorder, &say);
            }
        };
        let thread = std::thread::Builder::new()
            .name("pagetide-client".into())
            .stack_size(STACK_BYTES)
            .spawn(body);
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.status.remove(number);
                (self.say)(&format!(
                    "client {number} is refused: no thread for it ({error})"
                ));
            }
        }
    }
}

fn save(recorder: &Recorder, say: &dyn Fn(&str)) {
    match recorder.save() {
        Ok(pages) => say(&format!("{pages} pages of a working set were recorded")),
        Err(error) => say(&format!("the working set could not be recorded: {error}")),
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
