//! `pagetide serve firecracker` over an image of the tests' own.
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pagetide_serve::moment::Moment;
use pagetide_serve::server as serve;

use super::guest::expected;
use super::support::patience::up_to;

pub const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");

/// The command, and where its files are.
pub struct Server {
    place: tempfile::TempDir,
    child: Child,
}

/// An image of so many pages at `path`.
pub fn write_image(path: &Path, pages: u64) {
    let mut file = File::create(path).unwrap();
    (0..pages).for_each(|page| file.write_all(&expected(page)).unwrap());
}

impl Server {
    /// Of an image of `pages` pages, with more options.
    pub fn of(pages: u64, options: &[&str]) -> Server {
        let place = tempfile::tempdir().unwrap();
        write_image(&place.path().join("image"), pages);
        Server::at(place, options)
    }

    /// Of `image` in `place`.
    pub fn at(place: tempfile::TempDir, options: &[&str]) -> Server {
        let arguments = ["firecracker", "socket", "image", "--status", "status"];
        Server::start(place, &[&arguments[..], options].concat(), "is served at")
    }

    /// `pagetide serve` with these arguments, in `place`; it says `ready` when it is.
    pub fn start(place: tempfile::TempDir, arguments: &[&str], ready: &str) -> Server {
        let mut command = Command::new(PAGETIDE);
        command.arg("serve").args(arguments);
        Server::run(place, command, ready)
    }

    /// `command` in `place`; it says `ready` when it is.
    pub fn run(place: tempfile::TempDir, mut command: Command, ready: &str) -> Server {
        let log = File::create(place.path().join("log")).unwrap();
        let child = command
            .current_dir(place.path())
            .env("XDG_RUNTIME_DIR", place.path())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { place, child };
        server.wait_for("that it serves", |server| server.log().contains(ready));
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What `pagetide` prints with these arguments, for which the server is the only one.
    pub fn asked(&self, arguments: &[&str]) -> Output {
        Command::new(PAGETIDE)
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.place.path())
            .output()
            .unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// What the status socket says.
    pub fn status(&self) -> serde_json::Value {
        let mut text = String::new();
        let mut connection = UnixStream::connect(self.path("status")).unwrap();
        connection.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).expect(&text)
    }

    /// A counter of all clients.
    pub fn total(&self, counter: &str) -> u64 {
        let status = self.status();
        let total = status["total"][counter].as_u64();
        total.unwrap_or_else(|| panic!("no {counter} in {status}"))
    }

    /// Waits until these counters, added up, are `sum`: a page is there before it is counted. They
    /// do not go beyond it.
    pub fn counts(&self, counters: &[&str], sum: u64) {
        let now = || {
            counters
                .iter()
                .map(|counter| self.total(counter))
                .sum::<u64>()
        };
        self.wait_for(&format!("{sum} {counters:?}"), |_| now() >= sum);
        assert_eq!(now(), sum, "{counters:?}");
    }

    pub fn clients(&self) -> usize {
        self.status()["clients"].as_array().unwrap().len()
    }

    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Server) -> bool) {
        let deadline = Instant::now() + up_to(60);
        while !is_so(self) {
            assert!(
                Instant::now() < deadline,
                "waited for {what}; it said:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM.
    pub fn tell(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends SIGTERM, and waits for its end.
    pub fn end(self) -> (ExitStatus, String, tempfile::TempDir) {
        self.tell();
        self.ended()
    }

    /// Kills it with SIGKILL.
    pub fn killed(self) -> tempfile::TempDir {
        self.signal(Signal::SIGKILL);
        self.ended().2
    }

    /// Waits for its end.
    pub fn ended(mut self) -> (ExitStatus, String, tempfile::TempDir) {
        let deadline = Instant::now() + up_to(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log = self.log();
                let place = std::mem::replace(&mut self.place, tempfile::tempdir().unwrap());
                return (status, log, place);
            }
            assert!(
                Instant::now() < deadline,
                "it did not end; it said:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A server in this process: where it listens, what ends it, and its thread.
pub fn inside(
    place: &Path,
    setup: serve::Setup,
) -> (PathBuf, Arc<Moment>, JoinHandle<Result<(), serve::Failed>>) {
    let socket = place.join("socket");
    let ending = Arc::new(Moment::new().unwrap());
    let listener = serve::listen(&socket).unwrap();
    let server = serve::Server::new(listener, setup, Arc::clone(&ending)).unwrap();
    let thread = std::thread::spawn(move || server.run());
    (socket, ending, thread)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
