//! What the launcher was given by whoever started it, so that the program gets the same.
use nix::sys::signal::{SigSet, Signal};
use pagetide_kernel::procfs::status::Status;
use rustix::fs::{Mode, OFlags};
use rustix::io::fcntl_getfd;

/// Signal state as it was before the launcher changed anything.
#[derive(Debug, Clone)]
pub struct Inherited {
    /// Signals blocked.
    pub mask: SigSet,
    /// Signals ignored, bit N-1 for signal N.
    ignored: u64,
}

impl Inherited {
    /// Reads the state, and opens `/dev/null` on closed standard descriptors (to be closed again on
    /// exec), so that no file of the launcher's can land there.
    pub fn read() -> Inherited {
        plug_standard_descriptors();
        let status = Status::read(None).unwrap_or_default();
        Inherited {
            mask: SigSet::thread_get_mask().unwrap_or(SigSet::empty()),
            ignored: Status(&status).set("SigIgn").unwrap_or(0),
        }
    }

    /// Whether the launcher was started with `signal` ignored.
    pub fn ignores(&self, signal: Signal) -> bool {
        self.ignored & (1 << (signal as i32 - 1)) != 0
    }
}

fn plug_standard_descriptors() {
    // In ascending order: open takes the lowest free number.
    for closed in [
        fcntl_getfd(rustix::stdio::stdin()).is_err(),
        fcntl_getfd(rustix::stdio::stdout()).is_err(),
        fcntl_getfd(rustix::stdio::stderr()).is_err(),
    ] {
        if closed
            && let Ok(fd) =
                rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        {
            // Held for the life of the process.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found_by_their_bits() {
        let inherited = Inherited {
            mask: SigSet::empty(),
            ignored: 0x1001,
        };
        assert!(inherited.ignores(Signal::SIGHUP) && inherited.ignores(Signal::SIGPIPE));
        assert!(!inherited.ignores(Signal::SIGTERM));
    }
}
