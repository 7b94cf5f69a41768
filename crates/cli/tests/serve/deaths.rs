//! Clients that end, at each step; and those that are ended because a page is lost to them.
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use pagetide_kernel::uffd::feature;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::guest::{Guest, send, within_time};
use super::server::Server;
use super::{able, leaving, verify_all};

pub const PAGES: u64 = 3000;
const STEP: &str = "PAGETIDE_TEST_SERVE_STEP";
const SOCKET: &str = "PAGETIDE_TEST_SERVE_SOCKET";

/// Where a client stops, and waits to be killed.
const STEPS: [&str; 7] = [
    "connected",
    "half",
    "greeted",
    "closed",
    "reading",
    "emptied",
    "waiting",
];

/// Not a test but the client of the others, which run it in a process of its own.
#[test]
fn the_client_of_other_tests() {
    let (Ok(step), Ok(socket)) = (std::env::var(STEP), std::env::var(SOCKET)) else {
        return;
    };
    // It does not outlive a test that fails.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let socket = Path::new(&socket);
    let stop = || {
        println!("at the step");
        loop {
            std::thread::park();
        }
    };
    let mut guest = Guest::new(PAGES, feature::EVENT_REMOVE);
    let said = guest.regions(&[(0, PAGES, 0)]);
    if step == "connected" || step == "half" {
        let connection = UnixStream::connect(socket).unwrap();
        if step == "half" {
            use std::os::fd::AsFd as _;
            send(&connection, &said.as_bytes()[..40], &[guest.uffd.as_fd()]);
        }
        stop();
    }
    guest.connect(socket, &[&said]);
    if step == "greeted" {
        stop();
    }
    if step == "closed" {
        guest.hang_up();
    }
    guest.verify(0, 100, 0);
    if step == "closed" {
        stop();
    }
    if step == "reading" {
        println!("at the step");
        for page in (0..PAGES).cycle() {
            guest.verify(page, 1, page);
        }
    }
    if step == "emptied" {
        println!("at the step");
        for page in (0..PAGES).cycle() {
            guest.give_up(page, 1);
        }
    }
    println!("at the step");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    guest.verify(0, PAGES, 0);
    println!("verified");
    loop {
        std::thread::park();
    }
}

/// A client at a step, and what it says further on.
fn client(server: &Server, step: &str) -> (Child, BufReader<ChildStdout>) {
    client_at(&server.socket(), step)
}

/// The same with [`PAGES`] pages of whatever server listens at `socket`.
pub fn client_at(socket: &Path, step: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "deaths::the_client_of_other_tests",
            "--nocapture",
        ])
        .env(STEP, step)
        .env(SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let said = within_time(move || {
        let mut line = String::new();
        while !line.contains("at the step") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the client ended");
        }
        said
    });
    (child, said)
}

#[test]
fn a_client_may_die_at_any_step() {
    if !able() {
        return;
    }
    for options in [&[][..], &["--prefetch-rate", "max"]] {
        let server = leaving(PAGES, options);
        for step in STEPS {
            let (mut child, _said) = client(&server, step);
            child.kill().unwrap();
            child.wait().unwrap();
            server.wait_for("its end", |server| server.clients() == 0);
        }
        let said = server.log();
        assert_eq!(said.matches("ended").count(), 5, "{said}");
        // One said nothing, another half of it.
        server.wait_for("both", |server| server.status()["refused"] == 2);
        verify_all(&server, PAGES);
    }
}

pub fn is_killed(mut child: Child) -> bool {
    within_time(move || child.wait().unwrap().signal() == Some(9))
}

#[test]
fn who_loses_a_page_is_killed_and_others_are_not() {
    if !able() {
        return;
    }
    let server = Server::of(PAGES, &[]);
    let (mut one, _said) = client(&server, "waiting");
    let (other, _said) = client(&server, "waiting");
    let image = std::fs::File::options()
        .write(true)
        .open(server.path("image"))
        .unwrap();
    image.set_len(2000 * 4096).unwrap();
    // It reads on, beyond what the image has now.
    drop(one.stdin.take());
    assert!(is_killed(one));
    server.wait_for("its end", |server| {
        server.log().contains("the client was killed")
    });
    assert!(
        server.log().contains("has become shorter"),
        "{}",
        server.log()
    );
    server.wait_for("one to be left", |server| server.clients() == 1);
    // The end of the server is the loss of what the other misses.
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("not all of its pages are there"), "{log}");
    assert!(is_killed(other));
}

#[test]
fn who_has_all_pages_outlives_the_server() {
    if !able() {
        return;
    }
    let server = Server::of(PAGES, &["--prefetch-rate", "max"]);
    let (mut child, mut said) = client(&server, "waiting");
    server.counts(&["fault_pages", "block_pages", "background_pages"], PAGES);
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    drop(child.stdin.take());
    let line = within_time(move || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line
    });
    assert_eq!(line, "verified\n");
    child.kill().unwrap();
    child.wait().unwrap();
}
