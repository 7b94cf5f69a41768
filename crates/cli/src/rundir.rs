//! The private directories in which launcher, agents and observers meet.
//!
//! In a [base directory](crate::bases) is one `run-PID` per launcher, and in that the [files] of
//! the governed processes.
//!
//! [files]: pagetide_pager::protocol::files
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pagetide_kernel::PAGE_SIZE;
use pagetide_pager::protocol::files::{self, RUN_PREFIX};
use pagetide_pager::tree::file::TreeFile;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use crate::bases::Bases;
use crate::exit::{Exit, Failure};
use crate::runs::clean_stale;
use crate::{governed, held};

/// The directory of one run, removed with it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Locked while the launcher lives, or the program that it becomes has no agent yet.
    held: Option<File>,
}

impl RunDir {
    /// Makes this launcher's run directory, after clearing those of launchers that are gone.
    pub fn create(bases: &Bases) -> Result<RunDir, Failure> {
        let base = bases.own()?;
        clean_stale(&base);
        let path = base.join(format!("{RUN_PREFIX}{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| {
                let next = match error.kind() {
                    // A launcher with this process ID is gone, its processes are not.
                    ErrorKind::AlreadyExists => "processes of an earlier run use it; try again",
                    _ => "free some space there",
                };
                let shown = path.display();
                Failure::new(
                    Exit::CannotPage,
                    format!("{shown}: cannot be made ({error}); {next}"),
                )
            })?;
        let directory = File::open(&path).ok();
        directory.iter().for_each(held::hold);
        let made = RunDir {
            path,
            held: directory,
        };
        made.reserve_lines()?;
        Ok(made)
    }

    /// Reserves the space of what agents have to tell at the end: they could not then.
    fn reserve_lines(&self) -> Result<(), Failure> {
        let path = files::lines(&self.path);
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let reserved = options.open(&path).and_then(|file| {
            let keep = FallocateFlags::KEEP_SIZE;
            match fallocate(&file, keep, 0, files::LINES_BYTES) {
                // Other errors are of file systems that reserve nothing, and of limits.
                Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno.into()),
                _ => Ok(()),
            }
        });
        reserved.map_err(|error| cannot_be_made(&path, &error))
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has the processes of the run share a budget of `bytes`.
    pub fn share_budget(&self, bytes: u64) -> Result<(), Failure> {
        let pages = bytes.div_ceil(PAGE_SIZE as u64).max(1);
        let path = files::tree(&self.path);
        TreeFile::create(&path, pages).map_err(|error| cannot_be_made(&path, &error))
    }

    /// Has its descriptor stay open in the program that this process executes in its own place, so
    /// that nobody takes the directory for one of a run that is over. Returns its number.
    pub fn leave_open(&self) -> Result<RawFd, Failure> {
        let left = match &self.held {
            Some(held) => fcntl_setfd(held, FdFlags::empty()).map(|()| held.as_raw_fd()),
            None => Err(Errno::NOENT),
        };
        left.map_err(|error| {
            let shown = self.path.display();
            Failure::new(
                Exit::CannotPage,
                format!("{shown}: cannot be kept open ({error}); run without --exec"),
            )
        })
    }
}

fn cannot_be_made(path: &Path, error: &std::io::Error) -> Failure {
    let shown = path.display();
    let text = format!("{shown}: cannot be made ({error}); free some space there");
    Failure::new(Exit::CannotPage, text)
}

impl Drop for RunDir {
    /// Of a launcher that could not become the program, too. Governed processes that outlive the
    /// launcher (daemons) keep the directory: their forks need
    /// it, and `ps` finds them there. Whoever cleans up after them removes it.
    fn drop(&mut self) {
        if !governed::any_alive(&self.path) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
