//! What this process may lock, and what it has locked.
use rustix::process::{Resource, getrlimit};

use crate::procfs::status::{Status, in_first_user_namespace};

/// The lock limit and its use. Bytes; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockLimits {
    /// Locked now: `VmLck`.
    pub in_use: u64,
    /// `RLIMIT_MEMLOCK`, which the kernel enforces.
    pub soft: Option<u64>,
    /// What an unprivileged process can raise the soft limit to.
    pub hard: Option<u64>,
    /// Whether this process has `CAP_IPC_LOCK`, to which no limit applies.
    pub capable: bool,
}

impl LockLimits {
    /// Of this process, now. Where `/proc/self/status` cannot be read, nothing is in use and there
    /// is no capability.
    pub fn read() -> LockLimits {
        LockLimits::try_read().unwrap_or_else(|_| LockLimits::from_status(""))
    }

    /// The same, or why it cannot be read.
    pub fn try_read() -> std::io::Result<LockLimits> {
        Ok(LockLimits::from_status(&Status::read(None)?))
    }

    fn from_status(status: &str) -> LockLimits {
        const CAP_IPC_LOCK: u32 = 14;
        let limit = getrlimit(Resource::Memlock);
        let status = Status(status);
        LockLimits {
            in_use: status.bytes("VmLck").unwrap_or(0),
            soft: limit.current,
            hard: limit.maximum,
            // It counts for locking in the first user namespace only.
            capable: status.is_capable(CAP_IPC_LOCK) && in_first_user_namespace() == Some(true),
        }
    }

    /// Bytes that may be locked in all; `None` if there is no limit.
    pub fn room(&self) -> Option<u64> {
        if self.capable {
            return None;
        }
        // The kernel counts whole pages of the limit.
        self.soft.map(|soft| soft & !(crate::PAGE_SIZE as u64 - 1))
    }

    /// Bytes that may be locked beyond those that are; `None` if there is no limit.
    pub fn left(&self) -> Option<u64> {
        self.room().map(|room| room.saturating_sub(self.in_use))
    }
}

/// `VmLck` of process `pid` (this one if `None`), in bytes.
pub fn locked_bytes(pid: Option<u32>) -> std::io::Result<u64> {
    let status = Status::read(pid)?;
    // A kernel thread, or a process that has ended, has none.
    Ok(Status(&status).bytes("VmLck").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_read() {
        let limits =
            LockLimits::from_status("Name:\tx\nVmLck:\t      12 kB\nCapEff:\t0000000000000000\n");
        assert_eq!(limits.in_use, 12 * 1024);
        assert!(!limits.capable);
        assert_eq!(limits.left().is_none(), limits.soft.is_none());
    }

    #[test]
    fn what_is_left_counts_whole_pages() {
        let limits = LockLimits {
            in_use: 4096,
            soft: Some(3 * 4096 + 5),
            hard: None,
            capable: false,
        };
        assert_eq!(limits.left(), Some(2 * 4096));
        let capable = LockLimits {
            capable: true,
            ..limits
        };
        assert_eq!(capable.left(), None);
    }
}
