//! The memory that the processes of a run share, a file in the run's directory.
use std::fs::OpenOptions;
use std::io::Write as _;
use std::mem::offset_of;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use pagetide_kernel::byte_lock::is_locked;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::protocol::outside;

/// Processes that can have a part in one budget at a time.
pub const SLOTS: usize = 1024;
/// What each process has at least, whatever the others have: 256 KiB.
pub const FLOOR_PAGES: u64 = 64;
/// The weight of a process that has none of its own.
pub const WEIGHT_DEFAULT: u64 = 100;
/// The weights there are.
pub const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;
/// A target that asks nothing of a process.
pub const NO_TARGET: u64 = u64::MAX;
/// Says that a file is of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"PTTREE02");

/// What is of the run as a whole.
#[repr(C, align(4096))]
pub struct Header {
    pub(super) magic: AtomicU64,
    /// Pages that all together may have resident. Anybody may change it at any time.
    pub budget: AtomicU64,
    /// `CLOCK_MONOTONIC` of the last division and of the last look for processes that have ended,
    /// in nanoseconds.
    pub(super) divided_ns: AtomicU64,
    pub(super) swept_ns: AtomicU64,
    /// Slots from here on have never been used.
    pub(super) used_slots: AtomicU64,
    /// Processes that have had a slot.
    pub(super) generation: AtomicU64,
}

/// One process's part. All numbers of pages unless the name says otherwise.
#[repr(C, align(256))]
pub struct Slot {
    /// The number of the process that had the slot, 1 for the first; 0 where nobody has it.
    pub(super) generation: AtomicU64,
    pub(super) pid: AtomicU64,
    /// What the process may have resident. Its own to change.
    pub(super) granted: AtomicU64,
    /// What it had resident when it looked last.
    pub(super) used: AtomicU64,
    /// What others want it to go down to, or let it go up to; [`NO_TARGET`] for neither. Changes
    /// under the lock.
    pub(super) target: AtomicU64,
    /// Pages that it found it cannot give up (locked, pinned), and when, in nanoseconds.
    pub(super) held: AtomicU64,
    pub(super) held_ns: AtomicU64,
    /// What its user lets it have at most.
    pub(super) cap: AtomicU64,
    pub(super) weight: AtomicU64,
    /// What it has asked for in vain, and when, in nanoseconds.
    pub(super) wanted: AtomicU64,
    pub(super) wanted_ns: AtomicU64,
    /// Faults on pages that it would have had with twice the memory.
    pub(super) near_misses: AtomicU64,
    /// When it used a processor last, in nanoseconds.
    pub(super) busy_ns: AtomicU64,
    /// Of whoever divides: `near_misses` when it looked last, when that was in nanoseconds, and
    /// what they came to, an `f64`: near misses a page and second.
    pub(super) seen_misses: AtomicU64,
    pub(super) seen_ns: AtomicU64,
    pub(super) gain: AtomicU64,
    /// While the kernel fills the process's memory unasked, what has to stay free of the budget for
    /// that ([`super::deferred`]); else 0.
    pub(super) margin: AtomicU64,
}

/// The whole file.
#[repr(C)]
pub struct TreeFile {
    /// What is of the run as a whole.
    pub header: Header,
    pub(super) slots: [Slot; SLOTS],
}

impl TreeFile {
    /// Bytes of the file.
    pub const SIZE: usize = size_of::<TreeFile>();
    /// The byte whose lock is held by whoever divides.
    pub(super) const DIVISION: u64 = 0;

    /// The byte that the process which has slot `index` keeps locked as long as it lives.
    pub(super) fn byte_of(index: usize) -> u64 {
        (offset_of!(TreeFile, slots) + index * size_of::<Slot>()) as u64
    }

    /// Makes the file of a new run with a budget of `pages`, all of it written: later there would
    /// be nobody to tell that the disk is full. Its directory keeps others out; a process that has
    /// changed its user is to open it all the same.
    ///
    /// # Errors
    /// As creating and writing a file; it is there already.
    pub fn create(path: &Path, pages: u64) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        let mut bytes = vec![0; TreeFile::SIZE];
        let mut set =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        set(offset_of!(Header, magic), MAGIC);
        set(offset_of!(Header, budget), pages);
        file.write_all(&bytes)
    }

    /// Maps it for good.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` if it is not such a file.
    pub(super) fn map(file: BorrowedFd<'_>) -> Result<&'static TreeFile, Errno> {
        let size = rustix::fs::fstat(file)?.st_size;
        if size != TreeFile::SIZE as i64 {
            return Err(Errno::INVAL);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (at, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping, of the whole file.
        let address = unsafe { mmap(at, TreeFile::SIZE, protection, flags, file, 0) }?;
        // SAFETY: it is all atomics, of that size, and never unmapped.
        let file = unsafe { &*address.cast::<TreeFile>() };
        match file.header.magic.load(std::sync::atomic::Ordering::Acquire) {
            MAGIC => Ok(file),
            _ => Err(Errno::INVAL),
        }
    }
}

/// What one process has, for whoever looks from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The process ID, in its own PID namespace.
    pub pid: u32,
    /// Pages it may have resident.
    pub granted: u64,
    /// Pages it had when it looked last.
    pub used: u64,
    /// Its weight.
    pub weight: u64,
    /// Pages of the budget that stay free because the kernel fills its memory unasked; 0 once it is
    /// governed.
    pub margin: u64,
}

/// The budget of a run, and who has how much of it; read from its file, not mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// Pages that all together may have resident.
    pub budget: u64,
    /// The processes; not those that have ended, whose parts the others may not have taken yet.
    pub parts: Vec<Part>,
}

impl Shares {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// As reading a file; `InvalidData` if it is not such a file.
    pub fn read(path: &Path) -> std::io::Result<Shares> {
        let file = outside::open_file(path, OFlags::RDONLY)?;
        let bytes = outside::read(&file, TreeFile::SIZE as u64 + 1)?;
        let at = |at: usize| {
            let bytes = bytes
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        if bytes.len() != TreeFile::SIZE || at(offset_of!(Header, magic)) != MAGIC {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let lives = |slot: &usize| is_locked(file.as_fd(), *slot as u64) != Ok(false);
        let slots = (0..SLOTS).map(|index| TreeFile::byte_of(index) as usize);
        let used = slots.filter(|slot| at(slot + offset_of!(Slot, generation)) != 0);
        let parts = used.filter(lives).map(|slot| Part {
            pid: at(slot + offset_of!(Slot, pid)) as u32,
            granted: at(slot + offset_of!(Slot, granted)),
            used: at(slot + offset_of!(Slot, used)),
            weight: at(slot + offset_of!(Slot, weight)),
            margin: at(slot + offset_of!(Slot, margin)),
        });
        Ok(Shares {
            budget: at(offset_of!(Header, budget)),
            parts: parts.collect(),
        })
    }

    /// Changes the budget of the run with the file at `path`; its processes see it within a tenth
    /// of a second.
    ///
    /// # Errors
    /// As writing a file; `InvalidData` if it is not such a file.
    pub fn set_budget(path: &Path, pages: u64) -> std::io::Result<()> {
        let file = outside::open_file(path, OFlags::RDWR)?;
        // Root changes other users' runs, and nothing else that they may have put there.
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, offset_of!(Header, magic) as u64)?;
        let is_whole = file.metadata()?.len() == TreeFile::SIZE as u64;
        if !is_whole || u64::from_ne_bytes(magic) != MAGIC {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let at = offset_of!(Header, budget) as u64;
        file.write_all_at(&pages.max(1).to_ne_bytes(), at)
    }

    /// Pages granted to all together.
    pub fn granted(&self) -> u64 {
        self.parts.iter().map(|part| part.granted).sum()
    }

    /// Whether no more is granted than the budget, or, where that is less, than the floors; and
    /// what has to stay free is.
    pub fn is_kept(&self) -> bool {
        let margin = self.parts.iter().map(|part| part.margin).max();
        let floors = self.parts.len() as u64 * FLOOR_PAGES;
        self.granted() + margin.unwrap_or(0) <= self.budget.max(floors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_as_it_was_written_and_of_no_other_file() {
        let dir = std::env::temp_dir().join(format!("pagetide-tree-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, other) = (dir.join("tree"), dir.join("other"));
        TreeFile::create(&path, 77).unwrap();
        assert!(TreeFile::create(&path, 78).is_err(), "it is there already");
        let empty = |budget| Shares {
            budget,
            parts: vec![],
        };
        assert_eq!(Shares::read(&path).unwrap(), empty(77));
        Shares::set_budget(&path, 0).unwrap();
        assert_eq!(Shares::read(&path).unwrap(), empty(1));
        std::fs::write(&other, vec![0; TreeFile::SIZE]).unwrap();
        assert!(Shares::read(&other).is_err() && Shares::set_budget(&other, 5).is_err());
        let link = dir.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Shares::set_budget(&link, 5).is_err() && Shares::read(&link).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
