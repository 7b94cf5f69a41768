//! The private directories in which launcher, agents and observers meet.
//!
//! In a [base directory](crate::bases) is one `run-PID` per launcher, and in that the [files] of
//! the governed processes.
//!
//! [files]: pagetide_pager::protocol::files
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use pagetide_pager::protocol::files::RUN_PREFIX;
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
        Ok(RunDir {
            path,
            held: directory,
        })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
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
