//! Services that are given their sockets, say that they are ready, and are stopped.
use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, UCred, recvmsg, sockopt};

use super::support::compile::on_path;
use super::support::pagetide::{binary, number};
use super::support::patience::up_to;
use super::support::process::run;
use super::support::skip::skipped;
use super::{LIMIT, Place, compiled, wait_until};

/// What arrived at a socket, and who the kernel says has sent it.
fn received(socket: &UnixDatagram) -> (String, UCred) {
    let mut text = [0; 256];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut into = [IoSliceMut::new(&mut text)];
    let message = recvmsg(socket, &mut into, &mut control, RecvFlags::empty());
    let len = message.expect("a message in time").bytes;
    let sender = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender),
        _ => None,
    });
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    (text, sender.expect("the sender's credentials"))
}

/// One answer of the service at `path`.
fn answer(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).expect("the service listens");
    stream
        .set_read_timeout(Some(up_to(60)))
        .expect("it can be set");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer in time");
    text
}

/// With sockets as systemd makes them; its `LISTEN_PID` and `WATCHDOG_PID` name the process that it
/// started, and with `NotifyAccess=main` it believes no other.
#[test]
fn a_service_is_activated_says_that_it_is_ready_and_is_stopped() {
    let Some(place) = Place::new("a_service_is_activated_says_that_it_is_ready_and_is_stopped")
    else {
        return;
    };
    let (listens, notified) = (place.path("service"), place.path("notify"));
    let listener = UnixListener::bind(&listens).expect("it can listen");
    let ready = UnixDatagram::bind(&notified).expect("it can listen");
    ready
        .set_read_timeout(Some(up_to(60)))
        .expect("it can be set");
    sockopt::set_socket_passcred(&ready, true).expect("it can be set");
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ WATCHDOG_PID=$$ \
                  WATCHDOG_USEC=30000000 exec $pagetide run --exec --resident 4M -- $service 16";
    let mut command = place.shell(script);
    command.env("service", compiled("service", &[]));
    command.env("NOTIFY_SOCKET", &notified);
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let service = Started::new(&mut command);
    let (text, sender) = received(&ready);
    let main = service.pid();
    assert_eq!(
        (text.as_str(), sender.pid.as_raw_nonzero().get() as u32),
        ("READY=1", main)
    );
    // It answers when its child and itself have looked at all of their memory.
    assert_eq!(answer(&listens), format!("{main}\n"));
    let (text, sender) = received(&ready);
    let sender = sender.pid.as_raw_nonzero().get() as u32;
    assert_eq!((text.as_str(), sender), ("WATCHDOG=1", main));
    // While it runs its counters are to be had by its process ID.
    let stat = run(
        &mut place.pagetide(&["stat", "--json", &main.to_string()]),
        LIMIT,
    );
    stat.expect_code(0);
    let counted = |field| number(&stat.stdout_text(), field);
    assert_eq!(counted("pid"), Some(f64::from(main)), "{}", stat.describe());
    assert!(counted("fetches") > Some(0.0), "{}", stat.describe());
    assert_eq!(service.stop(), (Some(7), String::new()));
}

/// A child of this test with output of its own; [`Running`] has its input from a pipe.
struct Started {
    child: std::process::Child,
}

impl Started {
    fn new(command: &mut Command) -> Started {
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        Started {
            child: child.expect("it can be started"),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// By SIGTERM to the process itself; its exit code, and what it said on stderr.
    fn stop(mut self) -> (Option<i32>, String) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &pid]).status();
        assert!(sent.expect("kill can be started").success());
        let status = self.child.wait().expect("a child of our own");
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().expect("it is a pipe");
        stderr.read_to_string(&mut said).expect("it is text");
        (status.code(), said)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// systemd's own tool hands over the socket.
#[test]
fn a_service_is_activated_by_systemd_socket_activate() {
    let name = "a_service_is_activated_by_systemd_socket_activate";
    let Some(place) = Place::new(name) else {
        return;
    };
    if !on_path("systemd-socket-activate") {
        return skipped(
            name,
            "systemd-socket-activate is not installed (package systemd)",
        );
    }
    let listens = place.path("service");
    let mut command = Command::new("systemd-socket-activate");
    command.arg(format!("--listen={}", listens.display()));
    command.arg("--setenv=XDG_RUNTIME_DIR");
    command.arg(binary().expect("there is a command"));
    command.args(["run", "--exec", "--resident", "4M", "--"]);
    command.arg(compiled("service", &[])).arg("16");
    command.env("XDG_RUNTIME_DIR", place.directory.path());
    let service = Started::new(&mut command);
    wait_until("systemd-socket-activate listens", || listens.exists());
    assert_eq!(answer(&listens), format!("{}\n", service.pid()));
    let (code, said) = service.stop();
    assert_eq!(code, Some(7), "{said}");
}
