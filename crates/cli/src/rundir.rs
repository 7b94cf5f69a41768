//! The private directories in which launcher, agents and observers meet.
//!
//! A user's base directory is `$XDG_RUNTIME_DIR/pagetide`, else `/tmp/pagetide-UID`. In it is one
//! `run-PID` per launcher, and in that, per governed process, `PID.sock` and `PID-START.stats`, or
//! `PID.refused` when the agent could not start, and `PID.ungoverned` when that was in a
//! descendant, which then runs on without it.
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::exit::{Exit, Failure};
use crate::{governed, held};

/// The prefix of a run's directory; the launcher's PID follows.
pub const RUN_PREFIX: &str = "run-";

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
    /// Locked while the launcher lives.
    _held: Option<File>,
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
            _held: directory,
        })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    /// Governed processes that outlive the launcher (daemons) keep the directory: their forks need
    /// it, and `ps` finds them there. Whoever cleans up after them removes it.
    fn drop(&mut self) {
        if !governed::any_alive(&self.path) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Run directories in `base`.
pub fn runs(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(RUN_PREFIX))
        })
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes this user's run directories in which neither the launcher nor any governed process
/// lives.
pub fn clean_stale(base: &Path) {
    for run in runs(base) {
        let name = run
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let pid = name
            .strip_prefix(RUN_PREFIX)
            .and_then(|rest| rest.parse().ok());
        let ours = fs::symlink_metadata(&run).is_ok_and(|meta| meta.uid() == geteuid().as_raw());
        // By its number as well: it may not have come to holding the directory yet.
        let launcher_alive = || {
            File::open(&run).is_ok_and(|directory| held::is_held(directory) == Some(true))
                || pid.is_some_and(governed::is_launcher)
        };
        if ours && !launcher_alive() && !governed::any_alive(&run) {
            let _ = fs::remove_dir_all(&run);
        }
    }
}

/// Base directories to look for runs in: this user's, and for root everybody's. Those that are not
/// what they should be (links, directories of a user other than their name says) are left out.
pub fn bases() -> Vec<PathBuf> {
    let uid = geteuid();
    let mut found = Vec::new();
    let mut consider = |path: PathBuf, owner: Option<u32>| {
        let good = fs::symlink_metadata(&path).is_ok_and(|meta| {
            meta.is_dir()
                && owner.is_none_or(|owner| meta.uid() == owner)
                && (uid.is_root() || meta.uid() == uid.as_raw())
        });
        if good && !found.contains(&path) {
            found.push(path);
        }
    };
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        consider(Path::new(&runtime).join("pagetide"), None);
    }
    let number = |name: &str| name.parse::<u32>().ok();
    for name in names("/run/user").filter(|name| number(name).is_some()) {
        consider(
            Path::new("/run/user").join(&name).join("pagetide"),
            number(&name),
        );
    }
    for name in names("/tmp") {
        if let Some(owner) = name.strip_prefix("pagetide-").and_then(number) {
            consider(Path::new("/tmp").join(&name), Some(owner));
        }
    }
    found
}

fn names(directory: &str) -> impl Iterator<Item = String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
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
