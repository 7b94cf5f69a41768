//! Clients that say what cannot be, or do what they should not: refused, and nobody else suffers.
use std::io::{IoSliceMut, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pagetide_kernel::uffd::{Uffd, feature, open};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::guest::{Guest, is_closed, send, within_time};
use super::server::Server;
use super::support::skip::skipped;
use super::{able, leaving, verify_all};

const PAGES: u64 = 64;

/// Says `said` in parts, with these descriptors at the first, and is refused with a message that
/// has `why`.
fn refused(server: &Server, said: &[&[u8]], descriptors: &[BorrowedFd<'_>], why: &str) {
    let before = server.status()["refused"].as_u64().unwrap();
    let connection = UnixStream::connect(server.socket()).unwrap();
    for (number, part) in said.iter().enumerate() {
        let descriptors = if number == 0 { descriptors } else { &[] };
        send(&connection, part, descriptors);
    }
    if why.contains("closed the connection") {
        connection.shutdown(std::net::Shutdown::Write).unwrap();
    }
    assert!(is_closed(&connection), "not refused: {why}");
    server.wait_for("the message", |server| server.log().contains(why));
    assert_eq!(server.status()["refused"], before + 1, "{why}");
}

#[test]
fn what_cannot_be_is_refused_with_a_message() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    let guest = Guest::new(PAGES, feature::EVENT_REMOVE);
    let good = guest.regions(&[(0, PAGES, 0)]);
    let uffd = [guest.uffd.as_fd()];
    let said = |regions: &[(u64, u64, u64)]| guest.regions(regions);
    let overlapping = said(&[(0, 10, 0), (9, 10, 20)]);
    let twice = said(&[(0, 10, 0), (10, 10, 9)]);
    let beyond = said(&[(0, 10, PAGES - 9)]);
    let far = said(&[(0, 10, u64::MAX / 4096 - 3)]);
    let none = said(&[]);
    let cases: [(&str, &str); 9] = [
        ("GET / HTTP/1.1\r\n\r\n", "there is 'G' at its beginning"),
        ("[{\"size\": 4096}]", "missing field"),
        ("[1, 2, 3]", "expected struct"),
        ("[} ]", "JSON array of regions"),
        (&overlapping, "overlap in memory"),
        (&twice, "overlap in the image, at 0x9000"),
        (&beyond, "(0x"),
        (&far, "beyond the image"),
        (&none, "0 regions"),
    ];
    for (text, why) in cases {
        refused(&server, &[text.as_bytes()], &uffd, why);
    }
    refused(
        &server,
        &[&good.as_bytes()[..30]],
        &uffd,
        "closed the connection within its handshake",
    );
    refused(&server, &[good.as_bytes()], &[], "no userfaultfd came");
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    refused(
        &server,
        &[good.as_bytes()],
        &[pipe.as_fd()],
        "and no userfaultfd",
    );
    let fresh = open(None).unwrap();
    refused(
        &server,
        &[good.as_bytes()],
        &[fresh.as_fd()],
        "not enabled by its owner",
    );
    let moving = Uffd::negotiate(open(None).unwrap(), feature::EVENT_REMAP).unwrap();
    refused(
        &server,
        &[good.as_bytes()],
        &[moving.as_fd()],
        "remap events",
    );
    verify_all(&server, PAGES);
}

#[test]
fn a_handshake_without_end_is_refused() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    let connection = UnixStream::connect(server.socket()).unwrap();
    let blank = [b' '; 4096];
    // It may be closed before all is said.
    while (&connection).write_all(&blank).is_ok() {}
    server.wait_for("the message", |server| server.log().contains("longer than"));
    // Long, and whole.
    let mut guest = Guest::new(PAGES, feature::EVENT_REMOVE);
    let said = guest.regions(&[(0, PAGES, 0)]);
    let long = format!("{}{said}", " ".repeat(100_000));
    guest.connect(&server.socket(), &[&long]);
    within_time(move || guest.verify(0, PAGES, 0));
}

#[test]
fn of_two_descriptors_the_userfaultfd_is_taken() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    for is_first in [true, false] {
        let guest = Guest::new(PAGES, feature::EVENT_REMOVE);
        let memory: OwnedFd = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let mut descriptors = [guest.uffd.as_fd(), memory.as_fd()];
        if !is_first {
            descriptors.reverse();
        }
        let connection = UnixStream::connect(server.socket()).unwrap();
        let said = guest.regions(&[(0, PAGES, 0)]);
        send(&connection, said.as_bytes(), &descriptors);
        within_time(move || guest.verify(0, PAGES, 0));
    }
}

#[test]
fn many_that_say_nothing_hold_up_nobody() {
    if !able() {
        return;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let server = leaving(PAGES, &[]);
    let silent: Vec<UnixStream> = (0..800)
        .map(|_| UnixStream::connect(server.socket()).unwrap())
        .collect();
    verify_all(&server, PAGES);
    // The oldest had to make room.
    server.wait_for("the oldest to go", |server| {
        server.log().contains("make room")
    });
    assert!(is_closed(&silent[0]));
    verify_all(&server, PAGES);
}

/// Its userfaultfd is shared with the server, and so is whether it blocks.
#[test]
fn a_userfaultfd_that_blocks_holds_up_neither_others_nor_the_end() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    let guest = Guest::connected(PAGES, &server.socket());
    let guest = within_time(move || {
        guest.verify(0, 1, 0);
        guest
    });
    let flags = fcntl_getfl(&guest.uffd).unwrap();
    fcntl_setfl(&guest.uffd, flags - OFlags::NONBLOCK).unwrap();
    verify_all(&server, PAGES);
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Now it blocks, and now it does not: a thread of the server's that reads it then is not to wait.
#[test]
fn a_userfaultfd_that_blocks_now_and_then_leaves_no_thread_waiting() {
    if !able() {
        return;
    }
    let uffd = Uffd::negotiate(open(None).unwrap(), 0).unwrap();
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    if preadv2(&uffd, &mut bytes, u64::MAX, ReadWriteFlags::NOWAIT) == Err(Errno::OPNOTSUPP) {
        return skipped("serve", "RWF_NOWAIT of a userfaultfd (Linux 6.10)");
    }
    // It looks at its client again and again.
    let server = leaving(PAGES, &["--prefetch-rate", "512K"]);
    for _ in 0..16 {
        let guest = Guest::connected(PAGES, &server.socket());
        let flags = fcntl_getfl(&guest.uffd).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            fcntl_setfl(&guest.uffd, flags - OFlags::NONBLOCK).unwrap();
            fcntl_setfl(&guest.uffd, flags | OFlags::NONBLOCK).unwrap();
        }
    }
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// A socket that takes a minute to close, sent in the place of a userfaultfd.
#[test]
fn a_descriptor_that_takes_long_to_close_holds_up_nobody() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut unread = Vec::new();
    for _ in 0..4 {
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_socket_linger(&socket, Some(Duration::from_secs(600))).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 4096]).is_ok() {}
        unread.push(listener.accept().unwrap());
        let connection = UnixStream::connect(server.socket()).unwrap();
        send(&connection, b"[", &[socket.as_fd()]);
        // The one that was sent is the last.
        drop(socket);
        send(&connection, b"]", &[]);
        assert!(is_closed(&connection));
        verify_all(&server, PAGES);
    }
}

/// Memory that it registers anew where it had unmapped some: pages the server knows nothing of.
#[test]
fn faults_that_lead_nowhere_are_not_answered_for_ever() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    let features = feature::EVENT_REMOVE | feature::EVENT_UNMAP;
    let mut guest = Guest::new(PAGES, features);
    let said = guest.regions(&[(0, PAGES, 0)]);
    guest.connect(&server.socket(), &[&said]);
    let guest = within_time(move || {
        guest.verify(0, 2, 0);
        guest.map_anew(8);
        guest
    });
    // This one is left waiting, as it was told.
    std::thread::spawn(move || guest.read(8));
    server.wait_for("the message", |server| {
        server.log().contains("again and again")
    });
    verify_all(&server, PAGES);
}
