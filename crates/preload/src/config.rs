//! What the launcher wishes of this process.
use std::ffi::{CString, OsString};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pagetide_pager::protocol::environment::{Wishes, passed_on};
use pagetide_pager::protocol::files::{is_ledger_of, launcher_of};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::pressure::Wish;

/// The launcher's wishes, and what they come to here.
#[derive(Debug, Clone)]
pub struct Config {
    /// As the launcher says them.
    pub wishes: Wishes,
    /// Whether this is the program the launcher itself started or became, and not one executed
    /// later, in its place or by a descendant.
    pub is_first: bool,
    /// The descriptor of the run's directory that the launcher left open to become this program.
    pub left_open: Option<RawFd>,
    /// The variables as found, `NAME=value`, for programs started with another environment.
    pub variables: Vec<Vec<u8>>,
    /// Path of this library.
    pub agent: CString,
    /// What tells that memory is short.
    pub pressure: Wish,
}

impl Config {
    /// From the environment; `None` when the program was not started by `pagetide run`.
    pub fn from_environment() -> Option<Config> {
        let wishes = Wishes::from_environment()?;
        let left_open = wishes.exec.filter(|fd| is_of(*fd, &wishes.run_dir));
        Some(Config {
            is_first: match wishes.exec {
                Some(_) => left_open.is_some(),
                None => is_first(&wishes.run_dir),
            },
            left_open,
            variables: passed_on(),
            pressure: match wishes.automatic {
                Some(_) => Wish::from_environment(),
                None => Wish::Nothing,
            },
            agent: CString::new(OsString::from(&wishes.agent).into_vec()).ok()?,
            wishes,
        })
    }

    /// Whether this process can leave nothing in the run's directory, so that the launcher does not
    /// see it, and that is to be said.
    pub fn is_unseen(&self) -> bool {
        let may_write = || {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            accessat(CWD, &self.wishes.run_dir, access, AtFlags::EACCESS)
        };
        self.wishes.exec.is_none() && !self.wishes.quiet && may_write() == Err(Errno::ACCESS)
    }

    /// The owner of the run's directory where that is neither root nor this process's user, who can
    /// write to it all the same: nothing is to be written where another user may have laid a link.
    pub fn foreign_owner(&self) -> Option<u32> {
        let owner = std::fs::metadata(&self.wishes.run_dir).ok()?.uid();
        let own = [
            0,
            rustix::process::getuid().as_raw(),
            rustix::process::geteuid().as_raw(),
        ];
        let may_write = || {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            accessat(CWD, &self.wishes.run_dir, access, AtFlags::EACCESS).is_ok()
        };
        (!own.contains(&owner) && may_write()).then_some(owner)
    }

    /// Whether the launcher is this process's parent.
    pub fn is_launchers_child(&self) -> bool {
        is_child_of_launcher(&self.wishes.run_dir)
    }
}

/// Whether descriptor `number` is of the directory `run_dir`.
fn is_of(number: RawFd, run_dir: &Path) -> bool {
    if number < 0 {
        return false;
    }
    // SAFETY: only asked what it is, before the program runs; that it is closed is an answer.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let found = rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    let wanted = std::fs::metadata(run_dir).map(|meta| (meta.dev(), meta.ino()));
    found
        .ok()
        .is_some_and(|found| wanted.is_ok_and(|wanted| wanted == found))
}

fn is_child_of_launcher(run_dir: &Path) -> bool {
    let parent = rustix::process::getppid().map(|p| p.as_raw_nonzero().get() as u32);
    parent == launcher_of(run_dir)
}

/// Before this process has made its ledger. A program executed in the place of the first finds the
/// first one's ledger; or it may not look into the directory, which the first, with the launcher's
/// rights, always may.
fn is_first(run_dir: &Path) -> bool {
    is_child_of_launcher(run_dir) && has_no_ledger(run_dir, std::process::id())
}

fn has_no_ledger(run_dir: &Path, pid: u32) -> bool {
    std::fs::read_dir(run_dir).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|e| !is_ledger_of(e.file_name().as_bytes(), pid)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_launcher_left_open_is_known_by_what_it_is() {
        let dir = std::fs::File::open("/proc").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&dir);
        assert!(is_of(number, Path::new("/proc")));
        assert!(!is_of(number, Path::new("/")));
        assert!(!is_of(1_000_000, Path::new("/proc")));
        assert!(!is_of(-1, Path::new("/proc")));
    }

    #[test]
    fn the_first_image_of_a_process_finds_no_ledger_of_its_own() {
        let dir = std::env::temp_dir().join(format!("pagetide-config-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        assert!(has_no_ledger(&dir, 12));
        std::fs::write(dir.join("123-9.stats"), "").unwrap();
        std::fs::write(dir.join("12.sock"), "").unwrap();
        assert!(has_no_ledger(&dir, 12));
        std::fs::write(dir.join("12-9.stats"), "").unwrap();
        assert!(!has_no_ledger(&dir, 12));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(
            !has_no_ledger(&dir, 12),
            "what cannot be read is a later program's"
        );
    }
}
