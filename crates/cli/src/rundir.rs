//! The private directories in which launcher, agents and observers meet.
//!
//! A user's base directory is `$XDG_RUNTIME_DIR/pagetide`, else `/tmp/pagetide-UID`. In it is one
//! `run-PID` per launcher, and in that the [files] of the governed processes.
//!
//! [files]: pagetide_pager::protocol::files
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pagetide_kernel::PAGE_SIZE;
use pagetide_pager::protocol::files::{self, RUN_PREFIX};
use pagetide_pager::tree::file::TreeFile;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::geteuid;

use crate::exit::{Exit, Failure};
use crate::runs::clean_stale;
use crate::{governed, held};

/// A socket's path has at most 107 bytes, of which `/pagetide/run-PID/PID.sock` may take 40.
const RUNTIME_PATH_BYTES_MAX: usize = 64;

/// This user's base directory: made if need be, and known to be nobody else's.
pub fn base() -> Result<PathBuf, Failure> {
    let uid = geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own_runtime = runtime.filter(|path| {
        path.is_absolute()
            && path.as_os_str().len() <= RUNTIME_PATH_BYTES_MAX
            && fs::metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
    });
    let path = match own_runtime {
        Some(runtime) => runtime.join("pagetide"),
        None => PathBuf::from(format!("/tmp/pagetide-{uid}")),
    };
    make_private(&path).map_err(|why| {
        Failure::new(
            Exit::CannotPage,
            format!(
                "{}: {why}; it holds Pagetide's sockets and must be a directory of yours with \
                mode 0700",
                path.display()
            ),
        )
    })?;
    Ok(path)
}

/// Makes a directory of mode 0700, or finds that it is one and that it is ours.
fn make_private(path: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(format!("cannot be made ({error})"));
        }
        _ => {}
    }
    let meta = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    let (mode, uid) = (meta.permissions().mode() & 0o7777, geteuid().as_raw());
    if meta.is_symlink() {
        Err("is a symbolic link; remove it".into())
    } else if !meta.is_dir() {
        Err("is not a directory; remove it".into())
    } else if meta.uid() != uid {
        Err(format!(
            "belongs to user {}, not to you ({uid}); have it removed",
            meta.uid()
        ))
    } else if mode & 0o077 != 0 {
        Err(format!(
            "has mode {mode:04o}, open to others; run chmod 700 on it"
        ))
    } else {
        Ok(())
    }
}

/// The directory of one run, removed with it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Locked while the launcher lives, or the program that it becomes has no agent yet.
    held: Option<File>,
}

impl RunDir {
    /// Makes this launcher's run directory, after clearing those of launchers that are gone.
    pub fn create() -> Result<RunDir, Failure> {
        let base = base()?;
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

    /// Has the processes of the run share a budget of `bytes`.
    pub fn share_budget(&self, bytes: u64) -> Result<(), Failure> {
        let pages = bytes.div_ceil(PAGE_SIZE as u64).max(1);
        let path = files::tree(&self.path);
        TreeFile::create(&path, pages).map_err(|error| {
            let shown = path.display();
            let text = format!("{shown}: cannot be made ({error}); free some space there");
            Failure::new(Exit::CannotPage, text)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_is_not_private_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        assert_eq!(make_private(&path), Ok(()));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert_eq!(make_private(&path), Ok(()));
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(make_private(&path).unwrap_err().contains("0755"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(make_private(&link).unwrap_err().contains("symbolic link"));
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make_private(&file).unwrap_err().contains("not a directory"));
    }
}
