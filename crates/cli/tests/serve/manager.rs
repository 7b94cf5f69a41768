//! A service manager of the tests' own, which keeps descriptors as systemd does.
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::restart::SERVED;
use super::server::{PAGETIDE, Server};
use super::text;

/// Said to the manager by its owner, after what was said before.
const ASKED: &str = "ASKED=1";

/// What keeps descriptors by their names.
pub struct Manager {
    pub place: tempfile::TempDir,
    pub kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
pub struct Kept {
    pub descriptors: BTreeMap<String, Vec<OwnedFd>>,
    pub ready: bool,
    /// How often everything said before was asked for.
    pub asked: u64,
    /// What was said that is none of this.
    pub unknown: Vec<String>,
}

impl Kept {
    fn hear(&mut self, said: &str, descriptors: Vec<OwnedFd>) {
        let lines: BTreeSet<&str> = said.lines().collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or_default().to_owned();
        if lines.contains("FDSTORE=1") && lines.contains("FDPOLL=0") {
            self.descriptors
                .entry(name)
                .or_default()
                .extend(descriptors);
        } else if lines.contains("FDSTOREREMOVE=1") {
            self.descriptors.remove(&name);
        } else if said == "READY=1" {
            self.ready = true;
        } else if said == ASKED {
            self.asked += 1;
        } else {
            self.unknown.push(said.to_owned());
        }
    }
}

impl Manager {
    pub fn new() -> Manager {
        let place = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(place.path().join("notify")).unwrap();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let hearing = Arc::clone(&kept);
        // It ends with the tests.
        std::thread::spawn(move || {
            loop {
                let mut said = [0; 4096];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut slices = [IoSliceMut::new(&mut said)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                let count = recvmsg(&socket, &mut slices, &mut control, flags)
                    .unwrap()
                    .bytes;
                let descriptors = control.drain().flat_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                    _ => Vec::new(),
                });
                let descriptors = descriptors.collect();
                hearing
                    .lock()
                    .unwrap()
                    .hear(&text(&said[..count]), descriptors);
            }
        });
        Manager { place, kept }
    }

    /// What it has, once it has heard all that was said until now.
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        let before = self.kept.lock().unwrap().asked;
        let asking = UnixDatagram::unbound().unwrap();
        let socket = self.place.path().join("notify");
        asking.send_to(ASKED.as_bytes(), socket).unwrap();
        loop {
            let kept = self.kept.lock().unwrap();
            if kept.asked > before {
                return kept;
            }
            drop(kept);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The names of clients that are kept.
    pub fn clients(&self) -> usize {
        let kept = self.kept();
        let names = kept.descriptors.keys();
        names.filter(|name| name.starts_with("client-")).count()
    }

    /// Starts the server as a service, with what is kept.
    pub fn start(&self, place: tempfile::TempDir, options: &[&str]) -> Server {
        self.kept.lock().unwrap().ready = false;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "export LISTEN_PID=$$; exec \"$@\"",
                "sh",
                PAGETIDE,
                "serve",
            ])
            .args([
                "firecracker",
                "socket",
                "image",
                "--status",
                "status",
                "--takeover",
            ])
            .args(options)
            .env("NOTIFY_SOCKET", self.place.path().join("notify"));
        self.pass_on(&mut command);
        let server = Server::run(place, command, SERVED);
        server.wait_for("that it is ready", |_| self.kept.lock().unwrap().ready);
        assert_eq!(self.kept.lock().unwrap().unknown, Vec::<String>::new());
        server
    }

    /// As systemd does: copies of all that is kept, from number 3 on, and their names.
    pub fn pass_on(&self, command: &mut Command) {
        let kept = self.kept();
        let all = kept.descriptors.iter();
        // In an order that is not the one in which they were kept.
        let all = all.flat_map(|(name, of)| of.iter().rev().map(move |fd| (name, fd)));
        let (names, copies): (Vec<&str>, Vec<OwnedFd>) = all
            .map(|(name, fd)| {
                // Out of the way of the numbers that they get.
                let copy = rustix::io::fcntl_dupfd_cloexec(fd, 500).unwrap();
                (name.as_str(), copy)
            })
            .unzip();
        if copies.is_empty() {
            return;
        }
        command
            .env("LISTEN_FDS", copies.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        let place_all = move || {
            for (number, copy) in (3..).zip(&copies) {
                // SAFETY: in the child, before it executes: nobody else uses the number.
                let place = unsafe { OwnedFd::from_raw_fd(number) };
                let mut place = ManuallyDrop::new(place);
                rustix::io::dup2(copy.as_fd(), &mut place)?;
            }
            Ok(())
        };
        // SAFETY: it calls dup2 alone.
        unsafe { command.pre_exec(place_all) };
    }
}
