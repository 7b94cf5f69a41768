//! What a client says to `pagetide serve`, given any bytes, in any parts and with any descriptors:
//! nothing panics, no descriptor is kept, and a handshake is whole whenever its text can be read.
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pagetide_kernel::uffd::{Uffd, open_for_user_mode};
use pagetide_serve::firecracker::{Greeting, Handshake, Refusal, parse};
use pagetide_serve::memory::Area;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Bytes that say how the others are sent: the lengths of parts, in turn (0: all the rest); the
/// part with the descriptors; how many there are; bits for those that are a userfaultfd; and the
/// image's pages, as a power of two.
const HEAD_BYTES: usize = 7;
/// So much fits into a connection that nobody reads from.
const SAID_BYTES_MAX: usize = 16 << 10;
const DESCRIPTORS_MAX: u8 = 5;
/// How long closing them may take on a busy machine.
const CLOSING_MAX: Duration = Duration::from_secs(30);

/// Has `bytes` said by a client, and heard.
pub fn exercise(bytes: &[u8]) {
    let Some((head, said)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return;
    };
    let [first, second, third, carrier, count, kinds, shift] = *head;
    let said = &said[..said.len().min(SAID_BYTES_MAX)];
    let image_pages = 1 << (shift % 64);
    // Where descriptors are closed, this pipe ends.
    let (end, sent) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&end, true).expect("it need not block");
    let is_uffd = |index: u8| kinds >> index & 1 == 1 && uffd().is_some();
    let given: Vec<bool> = (0..count % (DESCRIPTORS_MAX + 1)).map(is_uffd).collect();
    let descriptors = given.iter().map(|is_uffd| match uffd() {
        Some(uffd) if *is_uffd => uffd.as_fd(),
        _ => sent.as_fd(),
    });
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
    let (client, server) = UnixStream::pair().expect("a connection");
    let mut handshake = Handshake::new(server).expect("a handshake");
    let (mut rest, mut is_whole, mut part, mut is_given) = (said, Ok(false), 0, false);
    while let (Ok(false), false) = (&is_whole, rest.is_empty()) {
        let length = match [first, second, third][part % 3] {
            0 => rest.len(),
            length => rest.len().min(length.into()),
        };
        let (now, later) = rest.split_at(length);
        match part == usize::from(carrier % 4) {
            true => send(&client, now, &descriptors),
            false => (&client).write_all(now).expect("it is read at once"),
        }
        is_given |= part == usize::from(carrier % 4);
        (rest, part) = (later, part + 1);
        is_whole = handshake.receive();
    }
    let read = parse(said, image_pages);
    match is_whole {
        Ok(true) => check(handshake.finish(image_pages), read, is_given, &given),
        _ if read.is_ok() => panic!("{is_whole:?}, and it says {read:?}"),
        _ => drop(handshake),
    }
    drop(descriptors);
    drop((client, sent));
    // A thread of its own closes what nobody wants.
    let (mut byte, begun) = ([0], Instant::now());
    while rustix::io::read(&end, &mut byte) == Err(Errno::AGAIN) {
        assert!(begun.elapsed() < CLOSING_MAX, "a descriptor was kept");
        std::thread::yield_now();
    }
}

/// A handshake that is `read` so comes to this, where descriptors of the kinds `given` came.
fn check(
    result: Result<Greeting, Refusal>,
    read: Result<Vec<Area>, Refusal>,
    is_given: bool,
    given: &[bool],
) {
    let has_uffd = is_given && given.iter().take(2).any(|is_uffd| *is_uffd);
    match (result, read) {
        (Ok(greeting), read) => {
            assert!(has_uffd, "{greeting:?}");
            // What comes after the array may be no part of it.
            read.into_iter()
                .for_each(|areas| assert_eq!(greeting.areas, areas));
        }
        (Err(Refusal::NoDescriptor | Refusal::Descriptor(_)), _) => assert!(!has_uffd),
        (Err(error), Ok(areas)) => panic!("{error}: {areas:?}"),
        (Err(_), Err(_)) => {}
    }
}

fn send(client: &UnixStream, part: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space =
        [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX as usize))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let slices = [std::io::IoSlice::new(part)];
    let sent = sendmsg(client, &slices, &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(part.len()));
}

/// A userfaultfd in use, where one may be had.
fn uffd() -> Option<&'static OwnedFd> {
    static UFFD: OnceLock<Option<(OwnedFd, Uffd)>> = OnceLock::new();
    let open = || {
        let fd = open_for_user_mode().ok()?;
        let copy = fd.try_clone().ok()?;
        Some((copy, Uffd::negotiate(fd, 0).ok()?))
    };
    UFFD.get_or_init(open).as_ref().map(|(copy, _)| copy)
}
