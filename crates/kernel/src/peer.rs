//! Which process is at the other end of a Unix socket.
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// `SO_PEERPIDFD` (Linux 6.5).
const PEER_PIDFD: libc::c_int = 77;

/// The process that connected.
#[derive(Debug)]
pub struct Peer {
    pid: Option<Pid>,
    pidfd: Option<OwnedFd>,
    /// The descriptor is the kernel's own answer.
    certain: bool,
}

/// An option of a socket, which is plain data.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, which has as many.
    let result = unsafe {
        let place = value.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, place, &mut len)
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: zeroed, and callers ask for integers and structures of integers only.
    Ok(unsafe { value.assume_init() })
}

impl Peer {
    /// The process that connected to the other end of `socket`, as it was then.
    ///
    /// # Errors
    /// What is no connected Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Peer, Errno> {
        let credentials: libc::ucred = option(socket, libc::SO_PEERCRED)?;
        // 0: a process that this one's PID namespace does not see.
        let pid = Pid::from_raw(credentials.pid);
        let by_kernel = option::<libc::c_int>(socket, PEER_PIDFD).ok();
        let by_kernel = by_kernel.filter(|fd| *fd >= 0);
        let certain = by_kernel.is_some();
        let pidfd = match by_kernel {
            // SAFETY: the option gives a descriptor that nobody else owns.
            Some(fd) => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            None => pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
        };
        Ok(Peer {
            pid,
            pidfd,
            certain,
        })
    }

    /// Whether it is that process for sure, however long ago it connected; else another one may
    /// have its number by now (before Linux 6.5, or where it has ended).
    pub fn is_certain(&self) -> bool {
        self.certain
    }

    /// Its process ID, where this process can see it.
    pub fn pid(&self) -> Option<u32> {
        self.pid.map(|pid| pid.as_raw_nonzero().get() as u32)
    }

    /// A descriptor that becomes readable when it ends.
    pub fn pidfd(&self) -> Option<&OwnedFd> {
        self.pidfd.as_ref()
    }

    /// Ends it with SIGKILL; never the calling process, and never another process that has its
    /// number since [`Peer::of`]. (Before Linux 6.5, where it had ended by then, its number may
    /// have been another's already.)
    ///
    /// # Errors
    /// The kernel's (`EPERM`); `ESRCH` where the process is not known, or is over.
    pub fn kill(&self) -> Result<(), Errno> {
        if self.pid == Some(rustix::process::getpid()) {
            return Err(Errno::PERM);
        }
        let pidfd = self.pidfd.as_ref().ok_or(Errno::SRCH)?;
        pidfd_send_signal(pidfd, Signal::KILL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process_is_its_own_peer_and_does_not_end_itself() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(one.as_fd()).unwrap();
        assert_eq!(peer.pid(), Some(std::process::id()));
        assert!(peer.pidfd().is_some());
        // Where the kernel answers, which it does since 6.5.
        assert_eq!(
            peer.is_certain(),
            option::<libc::c_int>(one.as_fd(), PEER_PIDFD).is_ok()
        );
        assert_eq!(peer.kill(), Err(Errno::PERM));
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert_eq!(Peer::of(pipe.as_fd()).unwrap_err(), Errno::NOTSOCK);
    }
}
