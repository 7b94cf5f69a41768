//! Following the program's privileges. The kernel keeps them per thread; the C library changes
//! those of all threads it knows, and it does not know the agent's. One that stayed root would be a
//! way back to root for whoever takes over the program.
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pagetide_kernel::procfs::status::Status;
use pagetide_kernel::sync::Mutex;
use pagetide_kernel::syscall::syscall;

use crate::agent::Agent;

/// Users, groups and capabilities of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective, saved.
    users: [usize; 3],
    /// The same.
    groups: [usize; 3],
    supplementary: Vec<u32>,
    /// Inheritable, permitted, effective.
    capabilities: [u64; 3],
    no_new_privileges: bool,
}

static WANTED: Mutex<Option<Credentials>> = Mutex::new(None);
static CHANGES: AtomicU64 = AtomicU64::new(0);

impl Credentials {
    /// As `/proc/PID/status` says them.
    pub fn from_status(status: Status<'_>) -> Option<Credentials> {
        let three = |name| {
            let mut numbers = status.field(name)?.split_whitespace();
            let mut next = || numbers.next()?.parse::<usize>().ok();
            Some([next()?, next()?, next()?])
        };
        let supplementary = status.field("Groups")?.split_whitespace();
        Some(Credentials {
            users: three("Uid")?,
            groups: three("Gid")?,
            supplementary: supplementary
                .map(|group| group.parse().ok())
                .collect::<Option<_>>()?,
            capabilities: [
                status.set("CapInh")?,
                status.set("CapPrm")?,
                status.set("CapEff")?,
            ],
            no_new_privileges: status.field("NoNewPrivs") == Some("1"),
        })
    }

    /// Makes them the calling thread's, as far as it may, and never more than it has.
    fn adopt(&self) {
        const PRCTL: usize = 157;
        const SETGROUPS: usize = 116;
        const SETRESUID: usize = 117;
        const SETRESGID: usize = 119;
        const SET_NO_NEW_PRIVS: usize = 38;
        let groups = || {
            let list = &self.supplementary;
            let [real, effective, saved] = self.groups;
            // SAFETY: plain numbers, and a list of so many.
            unsafe {
                let array = list.as_ptr() as usize;
                let _ = syscall(SETGROUPS, [list.len(), array]);
                let _ = syscall(SETRESGID, [real, effective, saved]);
            }
        };
        // Privileges that go are needed for the groups before, privileges that come back after.
        groups();
        let [real, effective, saved] = self.users;
        // SAFETY: plain numbers.
        let _ = unsafe { syscall(SETRESUID, [real, effective, saved]) };
        groups();
        limit_capabilities(self.capabilities);
        if self.no_new_privileges {
            // SAFETY: plain numbers.
            let _ = unsafe { syscall(PRCTL, [SET_NO_NEW_PRIVS, 1, 0, 0, 0]) };
        }
    }
}

/// Takes from the calling thread what is not in `wanted` (inheritable, permitted, effective).
fn limit_capabilities(wanted: [u64; 3]) {
    const CAPGET: usize = 125;
    const CAPSET: usize = 126;
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0];
    // Effective, permitted, inheritable; the low half of each, then the high.
    let mut sets = [[0u32; 3]; 2];
    let arguments = [&raw mut header as usize, &raw mut sets as usize];
    // SAFETY: capget(2) and capset(2) with a header and two sets, of the calling thread (0).
    unsafe {
        if syscall(CAPGET, arguments).is_err() {
            return;
        }
        for (half, set) in sets.iter_mut().enumerate() {
            for (have, want) in set.iter_mut().rev().zip(wanted) {
                *have &= (want >> (32 * half)) as u32;
            }
        }
        let _ = syscall(CAPSET, arguments);
    }
}

/// Has all of the agent's threads take on the program's credentials, the calling one, the scanner,
/// at once.
pub fn follow(agent: &Agent, credentials: Option<Credentials>) {
    *WANTED.lock() = credentials;
    CHANGES.fetch_add(1, SeqCst);
    adopt_wanted();
    agent.pager.call_in_threads(adopt_wanted);
}

/// For a thread that looks from time to time: `done` is what it has followed.
pub fn keep_up(done: &mut u64) {
    let changes = CHANGES.load(SeqCst);
    if std::mem::replace(done, changes) != changes {
        adopt_wanted();
    }
}

fn adopt_wanted() {
    if let Some(credentials) = &*WANTED.lock() {
        credentials.adopt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_from_the_status() {
        let status = "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \
            \nCapInh:\t0\nCapPrm:\t1f\nCapEff:\t10\nNoNewPrivs:\t1\n";
        let read = Credentials::from_status(Status(status)).unwrap();
        assert_eq!((read.users, read.groups), ([1, 2, 3], [5, 6, 7]));
        assert_eq!(read.supplementary, [9, 10]);
        assert_eq!(read.capabilities, [0, 0x1f, 0x10]);
        assert!(read.no_new_privileges);
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(Credentials::from_status(Status(&own)).is_some());
    }

    #[test]
    fn a_thread_never_gets_more_than_it_has() {
        // A thread of its own: what it gives up stays given up.
        let before_and_after = std::thread::spawn(|| {
            let read = || {
                let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                Credentials::from_status(Status(&status)).unwrap()
            };
            let before = read();
            let mut all = before.clone();
            all.capabilities = [u64::MAX; 3];
            all.adopt();
            let same = read();
            let mut none = before.clone();
            none.capabilities = [0; 3];
            none.adopt();
            (before, same, read())
        });
        let (before, same, after) = before_and_after.join().unwrap();
        assert_eq!(before, same);
        assert_eq!(after.capabilities, [0; 3]);
        assert_eq!(after.users, before.users);
    }
}
