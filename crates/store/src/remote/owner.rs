//! Whose keys are whose, and who may remove them.
//!
//! Each store object is an *owner* with a random name that all its keys carry. Its record, kept on
//! the server, says how many slots its keys may have, so its keys can be removed without searching,
//! and how to tell whether it still lives:
//!
//! - On the machine (and in the file system namespace) it was made on, by a lock on a file, held
//!   through a descriptor that forked children inherit. The kernel lets go of it when the last of
//!   them ends, however that comes about. The process is looked for as well.
//! - From elsewhere, by its lease only: a time since its last sign of life.

use super::envelope::random;
use crate::descriptor::Descriptor;
use crate::{ErrorKind, StoreError};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat, open, stat};
use rustix::process::{geteuid, getpid};
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

/// What is known of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub owner: String,
    /// The process that made it.
    pub pid: u32,
    /// When that started, in clock ticks since the machine did.
    pub started: u64,
    /// The machine's boot and the file system namespace, if the lock can be looked at there.
    pub host: String,
    /// The file it holds locked.
    pub lock: String,
    /// Its keys are those of the slots below this.
    pub slots: u32,
    /// Its lease, in seconds since its last sign of life.
    pub lease_seconds: u64,
}

impl Record {
    /// As kept on the server: words `name=value`.
    pub(crate) fn to_text(&self) -> String {
        format!(
            "v=1 owner={} pid={} started={} host={} slots={} lease={} lock={}",
            self.owner,
            self.pid,
            self.started,
            self.host,
            self.slots,
            self.lease_seconds,
            self.lock
        )
    }

    /// `None` for what is not a record of ours: it is left alone.
    pub(crate) fn from_text(text: &str) -> Option<Record> {
        let value = |name: &str| {
            text.split(' ')
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let owner = value("owner")?;
        if value("v")? != "1" || owner.len() != 32 || !owner.bytes().all(|c| c.is_ascii_hexdigit())
        {
            return None;
        }
        Some(Record {
            owner: owner.to_owned(),
            pid: value("pid")?.parse().ok()?,
            started: value("started")?.parse().ok()?,
            host: value("host")?.to_owned(),
            lock: value("lock")?.to_owned(),
            slots: value("slots")?.parse().ok()?,
            lease_seconds: value("lease")?.parse().ok()?,
        })
    }

    /// Whether the owner is known to be dead, or to live; `None` if it cannot be told from here.
    pub fn lives(&self) -> Option<bool> {
        if self.host == "-" || self.host != host() {
            return None;
        }
        if started(self.pid) == Some(self.started) {
            return Some(true);
        }
        let lock = open(
            self.lock.as_str(),
            OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
        );
        match lock {
            Ok(file) => Some(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()),
            Err(_) => None,
        }
    }

    /// Takes the lock's file away, once the owner is gone.
    pub(crate) fn unlock(&self) {
        if self.host == host() && self.lock.contains("pagetide-owner-") {
            let _ = rustix::fs::unlink(self.lock.as_str());
        }
    }
}

/// A living owner: this process, and those forked from it.
pub(crate) struct Owner {
    pub(crate) id: [u8; 16],
    pub(crate) name: String,
    /// Where no file could be made, only the lease tells.
    lock: Option<Lock>,
}

/// A locked file. It gets its name with the first record: most processes never put a page, and
/// leave nothing to be found by.
struct Lock {
    path: String,
    file: Descriptor,
    named: OnceLock<bool>,
}

impl Lock {
    fn is_named(&self) -> bool {
        *self.named.get_or_init(|| {
            // Not /proc/self: that is the program's table of descriptors, which is not the one this
            // thread has.
            let file = format!("/proc/thread-self/fd/{}", self.file.raw());
            linkat(
                CWD,
                file.as_str(),
                CWD,
                self.path.as_str(),
                AtFlags::SYMLINK_FOLLOW,
            )
            .is_ok()
        })
    }
}

impl Owner {
    pub(crate) fn new() -> Result<Owner, StoreError> {
        let mut id = [0; 16];
        random(&mut id)?;
        let name = id.iter().fold(String::with_capacity(32), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        let lock = lock_file(&name);
        Ok(Owner { id, name, lock })
    }

    pub(crate) fn record(&self, slots: u32, lease: Duration) -> Record {
        let pid = getpid().as_raw_nonzero().get() as u32;
        let lock = self.lock.as_ref().filter(|lock| lock.is_named());
        Record {
            owner: self.name.clone(),
            pid,
            started: started(pid).unwrap_or(0),
            host: lock.map_or("-".to_owned(), |_| host()),
            lock: lock.map_or("-".to_owned(), |lock| lock.path.clone()),
            slots,
            lease_seconds: lease.as_secs(),
        }
    }

    /// The descriptor that forked children must hold.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        self.lock.iter().map(|lock| lock.file.raw()).collect()
    }

    pub(crate) fn inherit(&self, fds: &[i32]) {
        if let (Some(Lock { file, .. }), Some(fd)) = (&self.lock, fds.first()) {
            file.replace(*fd);
        }
    }

    /// Takes the lock's file away, in the process that made it.
    pub(crate) fn leave(&self) {
        if let Some(lock) = &self.lock
            && lock.named.get() == Some(&true)
        {
            let _ = rustix::fs::unlink(lock.path.as_str());
        }
    }
}

fn lock_file(name: &str) -> Option<Lock> {
    let uid = geteuid();
    let runtime = format!("/run/user/{}", uid.as_raw());
    let places = match uid.is_root() {
        true => ["/run", "/tmp"],
        false => [runtime.as_str(), "/tmp"],
    };
    places.iter().find_map(|place| {
        let path = format!("{place}/pagetide-owner-{name}");
        let mode = Mode::RUSR | Mode::WUSR;
        let file = open(
            *place,
            OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC,
            mode,
        )
        .ok()?;
        // Shared, so that a child that opens the file anew can hold it as well; who removes keys
        // asks for it alone.
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(Lock {
            path,
            file: Descriptor::new(file).ok()?,
            named: OnceLock::new(),
        })
    })
}

/// This boot of this machine, and this namespace of files.
fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace =
        |name: &str| stat(format!("/proc/self/ns/{name}").as_str()).map_or(0, |found| found.st_ino);
    match boot.trim() {
        "" => "?".to_owned(),
        boot => format!("{boot}/{}/{}", namespace("mnt"), namespace("pid")),
    }
}

/// When process `pid` started, in clock ticks since the machine did; `None` if there is none, or
/// only what is left of it.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name that may hold anything, in parentheses.
    let rest = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    match *fields.first()? {
        "Z" | "X" => None,
        _ => fields.get(19)?.parse().ok(),
    }
}

/// The error for a server that has records of ours it cannot keep.
#[cold]
pub(crate) fn unreadable(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("read the owners' records: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let owner = Owner::new().unwrap();
        let record = owner.record(4096, Duration::from_secs(60));
        assert_eq!(Record::from_text(&record.to_text()), Some(record.clone()));
        assert_eq!(record.lives(), Some(true));
        owner.leave();
        for text in [
            "",
            "v=2 owner=a",
            "v=1 owner=../../x pid=1 started=1 host=- slots=1 lease=1 lock=-",
        ] {
            assert_eq!(Record::from_text(text), None);
        }
    }

    #[test]
    fn an_owner_lives_as_long_as_its_process_or_its_lock() {
        let owner = Owner::new().unwrap();
        let mut record = owner.record(1, Duration::from_secs(60));
        record.started += 1; // the process is gone, and another has its number
        assert_eq!(
            record.lives(),
            Some(true),
            "a forked child would hold the lock"
        );
        let path = record.lock.clone();
        drop(owner);
        assert_eq!(record.lives(), Some(false));
        std::fs::remove_file(path).unwrap();
        assert_eq!(record.lives(), None, "without its file nobody can tell");
        record.host = "elsewhere".into();
        assert_eq!(record.lives(), None);
    }
}
