//! Copies of the agent's descriptors, in the table of a thread that forks.
//!
//! The agent's threads have a descriptor table of their own, and a child starts with a copy of the
//! forking thread's. So what the child needs of the agent's is copied over just before:
//! 1. through a descriptor of the scanner as a thread, from Linux 6.9 on;
//! 2. before that, in messages of the scanner over a pair of sockets that the forking thread makes.
//!    The scanner takes its end by number out of the table of the process's first thread, as a rule
//!    the forking thread's too;
//! 3. where that table is another one, or has gone with the first thread, over a socket that the
//!    kernel names. The name is known only in its network namespace, which is why this way comes
//!    last.
//!
//! The program's own descriptors stay as they are; for the time of the fork some free numbers are
//! in use.
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use pagetide_kernel::mask::{self, Masked};
use pagetide_kernel::sync::Mutex;
use rustix::fs::fstat;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    bind, getsockname, recvmsg, sendmsg, sendmsg_addr, socket_with, socketpair, sockopt,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::agent::{Agent, scanner_tid};
use crate::requests;

/// Descriptors in one message; the kernel takes 253 at most.
const FDS_A_MESSAGE: usize = 64;
const SOCKET: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Where the scanner sends to.
enum Address {
    /// The socket of this number and inode in the table of the process's first thread.
    Number(RawFd, u64),
    /// The socket of this name.
    Name(SocketAddrUnix),
}

/// What a forking thread asks of the scanner.
struct Parcel {
    fds: Vec<RawFd>,
    to: Address,
}

/// Where the two meet. Forks come one at a time, and so do parcels.
#[derive(Default)]
struct Desk {
    wanted: Option<Parcel>,
    sent: Option<Result<(), Errno>>,
}

static DESK: Mutex<Desk> = Mutex::new(Desk {
    wanted: None,
    sent: None,
});

/// Copies of `fds`, which are numbers in the agent's table, in the calling thread's, in the same
/// order. They close on exec.
pub fn copies(agent: &Agent, fds: &[RawFd]) -> Result<Vec<OwnedFd>, Errno> {
    through_thread(fds)
        .or_else(|_| through_pair(agent, fds))
        .or_else(|_| through_name(agent, fds))
}

fn through_thread(fds: &[RawFd]) -> Result<Vec<OwnedFd>, Errno> {
    const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);
    mask::check(Masked::PidfdThread, Errno::INVAL)?;
    let scanner = Pid::from_raw(scanner_tid() as i32).ok_or(Errno::SRCH)?;
    let scanner = pidfd_open(scanner, PIDFD_THREAD)?;
    let copy = |fd: &RawFd| pidfd_getfd(&scanner, *fd, PidfdGetfdFlags::empty());
    fds.iter().map(copy).collect()
}

fn through_pair(agent: &Agent, fds: &[RawFd]) -> Result<Vec<OwnedFd>, Errno> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SOCKET, None)?;
    let to = Address::Number(theirs.as_raw_fd(), fstat(&theirs)?.st_ino);
    ask(agent, fds, to)?;
    receive(&ours, fds.len())
}

fn through_name(agent: &Agent, fds: &[RawFd]) -> Result<Vec<OwnedFd>, Errno> {
    let ours = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SOCKET, None)?;
    // Anybody may send to a name: who did is said by the kernel.
    sockopt::set_socket_passcred(&ours, true)?;
    bind(&ours, &SocketAddrUnix::new_unnamed())?;
    let name = SocketAddrUnix::try_from(getsockname(&ours)?).map_err(|_| Errno::AFNOSUPPORT)?;
    ask(agent, fds, Address::Name(name))?;
    receive(&ours, fds.len())
}

/// Has the scanner send, and waits until it has.
fn ask(agent: &Agent, fds: &[RawFd], to: Address) -> Result<(), Errno> {
    *DESK.lock() = Desk {
        wanted: Some(Parcel {
            fds: fds.to_vec(),
            to,
        }),
        sent: None,
    };
    requests::wait_for(agent, || DESK.lock().sent.take()).unwrap_or_else(|| {
        DESK.lock().wanted = None;
        Err(Errno::AGAIN)
    })
}

/// Takes `count` descriptors out of the messages that wait at `socket`.
fn receive(socket: &OwnedFd, count: usize) -> Result<Vec<OwnedFd>, Errno> {
    let mut copies = Vec::with_capacity(count);
    while copies.len() < count {
        let mut byte = [0];
        let mut room = [MaybeUninit::uninit();
            rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let message = recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let (mut fds, mut is_ours) = (Vec::new(), true);
        for part in control.drain() {
            match part {
                RecvAncillaryMessage::ScmRights(some) => fds.extend(some),
                RecvAncillaryMessage::ScmCredentials(sender) => is_ours = sender.pid == getpid(),
                _ => {}
            }
        }
        if is_ours {
            // The kernel leaves out what there are no numbers for.
            if message.flags.contains(ReturnFlags::CTRUNC) || fds.is_empty() {
                return Err(Errno::MFILE);
            }
            copies.append(&mut fds);
        }
    }
    Ok(copies)
}

/// On the scanner: sends what is wanted. Whether anything was.
pub fn serve() -> bool {
    let mut desk = DESK.lock();
    let Some(parcel) = desk.wanted.take() else {
        return false;
    };
    desk.sent = Some(parcel.send());
    true
}

impl Parcel {
    fn send(&self) -> Result<(), Errno> {
        let socket = match &self.to {
            Address::Number(number, inode) => out_of_first_table(*number, *inode)?,
            Address::Name(_) => socket_with(AddressFamily::UNIX, SocketType::DGRAM, SOCKET, None)?,
        };
        for numbers in self.fds.chunks(FDS_A_MESSAGE) {
            // SAFETY: numbers in the table of the agent's threads, this one's, which are kept open
            // for good.
            let borrow = |fd: &RawFd| unsafe { BorrowedFd::borrow_raw(*fd) };
            let fds: Vec<BorrowedFd<'_>> = numbers.iter().map(borrow).collect();
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
            let mut control = SendAncillaryBuffer::new(&mut room);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let (byte, flags) = ([IoSlice::new(&[0])], SendFlags::NOSIGNAL);
            match &self.to {
                Address::Number(..) => sendmsg(&socket, &byte, &mut control, flags)?,
                Address::Name(name) => sendmsg_addr(&socket, name, &byte, &mut control, flags)?,
            };
        }
        Ok(())
    }
}

/// A copy, in the agent's table, of a socket in the table of the process's first thread, if that is
/// the one that was meant.
fn out_of_first_table(number: RawFd, inode: u64) -> Result<OwnedFd, Errno> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
    match fstat(socket.as_fd())?.st_ino == inode {
        true => Ok(socket),
        false => Err(Errno::BADF),
    }
}
