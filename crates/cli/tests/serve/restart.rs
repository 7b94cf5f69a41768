//! A server that is stopped or killed and started again, with a service manager that keeps
//! descriptors (`manager.rs`).
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use nix::sys::signal::Signal;
use pagetide_kernel::peer::Peer;

use super::guest::{Guest, expected, within_time};
use super::held::HeldStore;
use super::manager::Manager;
use super::packed::packed;
use super::server::{PAGETIDE, Server, write_image};
use super::support::skip::skipped;
use super::{LEAVE, ZEROS, able, text};

const PAGES: u64 = 20_000;
const LOAD: &str = "PAGETIDE_TEST_SERVE_LOAD";
const SOCKET: &str = "PAGETIDE_TEST_SERVE_SOCKET";
pub const SERVED: &str = "is served at";

/// Whether clients can be taken over here; says so if not.
fn takes_over() -> bool {
    let (one, _other) = UnixStream::pair().unwrap();
    let is_certain = Peer::of(one.as_fd()).unwrap().is_certain();
    if !is_certain {
        skipped("serve", "before Linux 6.5 clients are not taken over");
    }
    is_certain && able()
}

/// A place with an image.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    write_image(&place.path().join("image"), PAGES);
    place
}

/// Not a test but the client of the others, which run it in a process of its own. It reads, writes
/// and gives up pages until its input ends, then verifies all of them.
#[test]
fn the_client_of_other_tests() {
    let (Ok(load), Ok(socket)) = (std::env::var(LOAD), std::env::var(SOCKET)) else {
        return;
    };
    let guest = Guest::connected(PAGES, Path::new(&socket));
    let mut pages = Pages {
        guest: &guest,
        known: (0..PAGES).map(Holds::Image).collect(),
        random: u64::from(std::process::id()),
    };
    // One that does nothing has done some of each before.
    (0..200).for_each(|_| pages.step());
    println!("at the step");
    let over = AtomicBool::new(load == "idle");
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !over.load(SeqCst) {
                pages.step();
            }
            pages
        });
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        over.store(true, SeqCst);
        let pages = worker.join().unwrap();
        (0..PAGES).for_each(|page| pages.verify(page));
    });
    println!("verified");
}

/// What a page is to hold.
#[derive(Clone, Copy)]
enum Holds {
    Image(u64),
    Bytes(u8),
}

struct Pages<'g> {
    guest: &'g Guest,
    known: Vec<Holds>,
    random: u64,
}

impl Pages<'_> {
    fn next(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.random >> 33) % below
    }

    fn verify(&self, page: u64) {
        let expected = match self.known[page as usize] {
            Holds::Image(number) => expected(number),
            Holds::Bytes(byte) => [byte; 4096],
        };
        assert!(self.guest.read(page) == expected, "page {page} is wrong");
    }

    fn step(&mut self) {
        let page = self.next(PAGES);
        match self.next(8) {
            0 => {
                let pages = (1 + self.next(20)).min(PAGES - page);
                self.guest.give_up(page, pages);
                self.known[page as usize..][..pages as usize].fill(Holds::Bytes(0));
            }
            1 => {
                let byte = self.next(256) as u8;
                self.guest.write(page, byte);
                self.known[page as usize] = Holds::Bytes(byte);
            }
            _ => self.verify(page),
        }
    }
}

/// Such a client, at work or idle.
struct Client {
    child: Child,
    said: Option<BufReader<ChildStdout>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    fn new(load: &str, socket: &Path) -> Client {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "restart::the_client_of_other_tests",
                "--nocapture",
            ])
            .env(LOAD, load)
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let said = Some(said);
        Client { child, said }
    }

    /// Once it is served.
    fn served(load: &str, socket: &Path) -> Client {
        let mut client = Client::new(load, socket);
        assert!(client.says("at the step"), "the client ended");
        client
    }

    /// Whether it says `expected` before it ends.
    fn says(&mut self, expected: &'static str) -> bool {
        let mut said = self.said.take().unwrap();
        let (found, said) = within_time(move || {
            let mut line = String::new();
            loop {
                line.clear();
                if said.read_line(&mut line).unwrap() == 0 || line.contains(expected) {
                    return (!line.is_empty(), said);
                }
            }
        });
        self.said = Some(said);
        found
    }

    /// Has it verify all its pages; false if it was killed. Anything else is wrong.
    fn verifies(mut self) -> bool {
        // It may have been killed.
        let _ = self.child.stdin.take().unwrap().write_all(b"\n");
        let verified = self.says("verified");
        let status = within_time(move || (self.child.wait().unwrap(), self).0);
        assert_eq!(status.signal(), (!verified).then_some(9), "{status:?}");
        verified
    }
}

fn count(log: &str, what: &str) -> usize {
    log.matches(what).count()
}

#[test]
fn stopped_in_order_and_started_again_it_loses_nothing() {
    if !takes_over() {
        return;
    }
    let manager = Manager::new();
    let mut server = manager.start(place(), &[]);
    let socket = server.socket();
    let loads = ["busy", "busy", "idle"];
    let mut clients = Vec::from(loads.map(|load| Client::served(load, &socket)));
    // Those that have all their pages need nobody any more.
    let (mut kept, mut left) = (clients.len(), 0);
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(30 + 17 * round));
        let (status, log, place) = server.end();
        assert_eq!(status.code(), Some(0), "{log}");
        let whole = count(&log, "is served no more");
        let to_next = count(&log, "is left to who is started next");
        assert_eq!(whole + to_next, kept, "{log}");
        (kept, left) = (to_next, left + to_next);
        // One that comes while nobody serves waits at the socket.
        let early = Client::new("busy", &socket);
        server = manager.start(place, &[]);
        let log = server.log();
        assert_eq!(count(&log, "is taken over"), kept, "{log}");
        kept += 1;
        clients.push(early);
        assert!(clients.last_mut().unwrap().says("at the step"));
    }
    assert_eq!(manager.clients(), kept);
    // The idle one each time, at least.
    assert!(left >= 6, "{left} were left");
    assert!(clients.into_iter().all(Client::verifies));
    server.wait_for("that none is kept", |_| manager.clients() == 0);
    assert_eq!(server.total("lost_pages"), 0);
    // Each is counted just after the manager has forgotten it.
    server.wait_for("that all have ended", |server| {
        server.status()["clients_ended"] == kept
    });
}

#[test]
fn who_waits_for_a_store_that_stalls_is_left_to_the_next_start() {
    if !takes_over() {
        return;
    }
    let Some(store) = HeldStore::start() else {
        return;
    };
    let (manager, place) = (Manager::new(), place());
    let image = place.path().join("image");
    packed(&image, &store.uri(), &["--remove-pages"]);
    std::fs::rename(place.path().join("image.pages"), &image).unwrap();
    let server = manager.start(place, &[]);
    let client = Client::served("idle", &server.socket());
    store.stall();
    let verifying = std::thread::spawn(move || client.verifies());
    server.wait_for("that a page is asked for", |_| store.is_asked());
    let (status, log, place) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(count(&log, "is left to who is started next"), 1, "{log}");
    store.go_on();
    let server = manager.start(place, &[]);
    assert!(verifying.join().unwrap());
    assert_eq!(server.total("lost_pages"), 0);
}

#[test]
fn killed_while_nothing_happens_it_loses_nothing() {
    if !takes_over() {
        return;
    }
    let manager = Manager::new();
    let server = manager.start(place(), &LEAVE);
    let guest = Guest::connected(PAGES, &server.socket());
    let guest = within_time(move || {
        guest.verify(0, 100, 0);
        guest.give_up(50, 100);
        guest.verify(700, 1, 700);
        guest
    });
    server.counts(&["removed_pages"], 100);
    std::thread::sleep(Duration::from_millis(300));
    let place = server.killed();
    // It gives up more while nobody hears of it.
    let guest = std::thread::spawn(move || {
        guest.give_up(400, 100);
        guest
    });
    std::thread::sleep(Duration::from_millis(50));
    let server = manager.start(place, &LEAVE);
    assert_eq!(count(&server.log(), "is taken over"), 1, "{}", server.log());
    within_time(move || {
        let guest = guest.join().unwrap();
        for given_up in [50..150, 400..500] {
            given_up.for_each(|page| assert!(guest.read(page) == ZEROS, "page {page}"));
        }
        for (first, pages) in [(0, 50), (150, 250), (500, PAGES - 500)] {
            guest.verify(first, pages, first);
        }
    });
    server.counts(&["removed_pages"], 100);
}

#[test]
fn killed_at_any_moment_every_page_is_right_or_the_client_is_ended() {
    if !takes_over() {
        return;
    }
    let manager = Manager::new();
    let mut server = manager.start(place(), &[]);
    let (mut taken_over, mut ended) = (0, 0);
    for round in 0..16 {
        let socket = server.socket();
        let clients = [(); 2].map(|()| Client::served("busy", &socket));
        std::thread::sleep(Duration::from_micros(5_000 + 3_137 * round));
        server = manager.start(server.killed(), &[]);
        let log = server.log();
        let verified = clients.map(Client::verifies);
        let verified = verified.iter().filter(|verified| **verified).count();
        assert_eq!(count(&log, "a client is taken over"), verified, "{log}");
        assert_eq!(count(&log, "just as it heard"), 2 - verified, "{log}");
        assert_eq!(count(&log, "it was killed"), 2 - verified, "{log}");
        taken_over += verified;
        ended += 2 - verified;
        server.wait_for("that none is kept", |_| manager.clients() == 0);
    }
    println!("{taken_over} clients were taken over, {ended} were ended");
    assert!(taken_over > 0);
}

#[test]
fn what_is_kept_is_served_from_its_own_image_or_not_at_all() {
    if !takes_over() {
        return;
    }
    let manager = Manager::new();
    let server = manager.start(place(), &[]);
    let client = Client::served("idle", &server.socket());
    let place = server.killed();
    write_image(&place.path().join("image"), PAGES + 1);
    let server = manager.start(place, &["--on-loss", "kill"]);
    let log = server.log();
    assert!(
        log.contains("served from another image; it was killed"),
        "{log}"
    );
    assert!(!client.verifies());
    assert_eq!(manager.clients(), 0);
    // The end for good is as it is without a manager.
    let mut client = Client::served("idle", &server.socket());
    server.signal(Signal::SIGINT);
    let (status, log, _place) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("not all of its pages are there"), "{log}");
    let status = within_time(move || (client.child.wait().unwrap(), client).0);
    assert_eq!(status.signal(), Some(9));
    assert_eq!(manager.clients(), 0);
}

#[test]
fn without_a_manager_that_has_room_it_is_said() {
    if !takes_over() {
        return;
    }
    let place = place();
    let run = |variables: &[(&str, &str)]| {
        let output = Command::new(PAGETIDE)
            .args(["serve", "firecracker", "socket", "image", "--takeover"])
            .current_dir(place.path())
            .env_remove("NOTIFY_SOCKET")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    assert!(run(&[]).contains("--takeover: there is no service manager"));
    assert!(run(&[("NOTIFY_SOCKET", "/no/where")]).contains("--takeover: the service manager"));
    let manager = Manager::new();
    let notify = manager.place.path().join("notify");
    let notify = ("NOTIFY_SOCKET", notify.to_str().unwrap());
    assert!(run(&[notify, ("FDSTORE", "0")]).contains("FileDescriptorStoreMax="));
    // Room for the socket and one client.
    let mut command = Command::new(PAGETIDE);
    command
        .args([
            "serve",
            "firecracker",
            "socket",
            "image",
            "--takeover",
            "--status",
            "status",
        ])
        .envs([notify, ("FDSTORE", "5")]);
    let server = Server::run(place, command, SERVED);
    let clients = [(); 2].map(|()| Client::served("idle", &server.socket()));
    server.wait_for("both", |server| server.clients() == 2);
    let log = server.log();
    assert_eq!(count(&log, "is not kept for the next start"), 1, "{log}");
    assert_eq!(manager.clients(), 1);
    assert!(clients.into_iter().all(Client::verifies));
    server.wait_for("that none is kept", |_| manager.clients() == 0);
}
