//! The base directories of runs: where a new run's directory goes, and where runs are looked for.
//!
//! A new run goes to the first of these: `--run-dir`, `$PAGETIDE_BASE_DIR`,
//! `$XDG_RUNTIME_DIR/pagetide`, `$RUNTIME_DIRECTORY/pagetide` (a systemd unit's own directory),
//! `/run/pagetide` (root), `/tmp/pagetide-UID`.
use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Args;
use pagetide_pager::protocol::environment::BASE_DIR;
use rustix::process::geteuid;

use crate::exit::{Exit, Failure};

/// A socket's path has at most 107 bytes, of which `/run-PID/PID.sock` may take 31.
const PATH_BYTES_MAX: usize = 76;
/// Of a base within somebody's directory: the name of it.
const NAME: &str = "pagetide";
/// Of a base in a directory that all users share: before the user's number.
const SHARED_PREFIX: &str = "pagetide-";

/// Which base directories are meant.
#[derive(Debug, Clone, Default, Args)]
pub struct Bases {
    /// Where runs are kept and looked for, instead of the usual places (see
    /// docs/statistics.md); PAGETIDE_BASE_DIR in the environment says the same
    #[arg(long = "run-dir", value_name = "DIR")]
    chosen: Option<PathBuf>,
}

impl Bases {
    /// This user's base directory for a new run: made if need be, and known to be nobody else's.
    ///
    /// # Errors
    ///
    /// [`Exit::Usage`] where the one that was asked for cannot be it, [`Exit::CannotPage`] where a
    /// usual one cannot, or where there is no room.
    pub fn own(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = self.asked_for() {
            let option = self.asker();
            check_length(&path)?;
            let exit = |unfit: &Unfit| match unfit {
                Unfit::NotMade(error) if error.kind() == ErrorKind::StorageFull => Exit::CannotPage,
                _ => Exit::Usage,
            };
            return make_private(&path).map(|()| path.clone()).map_err(|unfit| {
                let text = format!(
                    "{option} {}: {unfit}; expected a directory of yours with mode 0700, or one \
                     to be made in a directory that is there",
                    path.display()
                );
                Failure::new(exit(&unfit), text)
            });
        }
        let uid = geteuid();
        let given = [
            variable("XDG_RUNTIME_DIR"),
            variable("RUNTIME_DIRECTORY").and_then(first_of),
        ];
        let is_own = |path: &PathBuf| {
            path.is_absolute()
                && path.as_os_str().len() + NAME.len() < PATH_BYTES_MAX
                && fs::metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid.as_raw())
        };
        if let Some(directory) = given.into_iter().flatten().find(is_own) {
            return private(directory.join(NAME));
        }
        let of_system = Path::new("/run").join(NAME);
        if uid.is_root() && make_private(&of_system).is_ok() {
            return Ok(of_system);
        }
        private(Path::new("/tmp").join(format!("{SHARED_PREFIX}{}", uid.as_raw())))
    }

    /// Looks whether there can be runs where they are to be looked for, if that was asked for.
    ///
    /// # Errors
    ///
    /// [`Exit::Usage`] where it is no directory that this user may use; also where it is not there,
    /// unless it is `awaited`: by a command that goes on, and that a run may follow.
    pub fn check(&self, awaited: bool) -> Result<(), Failure> {
        let Some(path) = self.asked_for() else {
            return Ok(());
        };
        let uid = geteuid();
        let wrong = match fs::symlink_metadata(&path) {
            Err(error) if awaited && error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => format!("cannot be looked at ({error})"),
            Ok(meta) if !meta.is_dir() => "is not a directory".to_owned(),
            Ok(meta) if !uid.is_root() && meta.uid() != uid.as_raw() => {
                Unfit::Foreign(meta.uid()).to_string()
            }
            Ok(_) => return Ok(()),
        };
        let text = format!(
            "{} {}: {wrong}; expected the directory that `pagetide run` was given with it",
            self.asker(),
            path.display()
        );
        Err(Failure::new(Exit::Usage, text))
    }

    /// Where it is looked for runs, for a sentence: empty for the usual places. Root may look into
    /// a directory of somebody else's, and keeps no run there.
    pub fn place(&self) -> String {
        let Some(path) = self.asked_for() else {
            return String::new();
        };
        let owner = fs::symlink_metadata(&path).map(|meta| meta.uid());
        let of_another = match owner.ok().filter(|owner| *owner != geteuid().as_raw()) {
            Some(owner) => format!(" ({}, which belongs to user {owner})", self.asker()),
            None => String::new(),
        };
        format!(" in {}{of_another}", path.display())
    }

    /// The base directories to look for runs in: the one that was asked for, or else this user's,
    /// and for root everybody's. Those that are not what they should be (links, directories of a
    /// user other than their name or the directory around them says) are left out.
    pub fn visible(&self) -> Vec<PathBuf> {
        let mut found = Found::default();
        if let Some(path) = self.asked_for() {
            found.consider(path, None);
            return found.paths;
        }
        let given = [
            variable("XDG_RUNTIME_DIR"),
            variable("RUNTIME_DIRECTORY").and_then(first_of),
        ];
        for directory in given.into_iter().flatten() {
            found.consider(directory.join(NAME), None);
        }
        found.consider(Path::new("/run").join(NAME), Some(0));
        // Of users, and of systemd's units.
        for around in ["/run/user", "/run"] {
            found.consider_within(Path::new(around));
        }
        found.consider_shared(Path::new("/tmp"));
        for name in names(Path::new("/tmp")).filter(|name| name.starts_with("systemd-private-")) {
            found.consider_shared(&Path::new("/tmp").join(name).join("tmp"));
        }
        found.paths
    }

    /// What says which directory is asked for.
    fn asker(&self) -> &'static str {
        match self.chosen {
            Some(_) => "--run-dir",
            None => BASE_DIR,
        }
    }

    /// What the user wishes, in full.
    fn asked_for(&self) -> Option<PathBuf> {
        let given = self.chosen.clone().or_else(|| variable(BASE_DIR))?;
        // Without a current directory, as it is.
        Some(std::path::absolute(&given).unwrap_or(given))
    }
}

/// Base directories that are what they should be.
#[derive(Debug, Default)]
struct Found {
    paths: Vec<PathBuf>,
}

impl Found {
    /// Takes `path` where it is a directory, of `owner`, that this user may use.
    fn consider(&mut self, path: PathBuf, owner: Option<u32>) {
        let uid = geteuid();
        let good = fs::symlink_metadata(&path).is_ok_and(|meta| {
            meta.is_dir()
                && owner.is_none_or(|owner| meta.uid() == owner)
                && (uid.is_root() || meta.uid() == uid.as_raw())
        });
        if good && !self.paths.contains(&path) {
            self.paths.push(path);
        }
    }

    /// Of the directories in `around`, those that hold a base of their own owner.
    fn consider_within(&mut self, around: &Path) {
        for name in names(around) {
            let directory = around.join(name);
            if let Ok(meta) = fs::symlink_metadata(&directory) {
                self.consider(directory.join(NAME), Some(meta.uid()));
            }
        }
    }

    /// The bases in a directory that users share.
    fn consider_shared(&mut self, around: &Path) {
        for name in names(around) {
            let owner = name.strip_prefix(SHARED_PREFIX);
            if let Some(owner) = owner.and_then(|number| number.parse().ok()) {
                self.consider(around.join(&name), Some(owner));
            }
        }
    }
}

/// The names in a directory, as far as they can be read.
fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// A variable that is not empty.
fn variable(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty())?;
    Some(PathBuf::from(value))
}

/// The first of the directories in `$RUNTIME_DIRECTORY`.
fn first_of(list: PathBuf) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let first = list
        .as_os_str()
        .as_bytes()
        .split(|byte| *byte == b':')
        .next();
    first.map(|first| PathBuf::from(OsStr::from_bytes(first)))
}

fn check_length(path: &Path) -> Result<(), Failure> {
    let (bytes, shown) = (path.as_os_str().len(), path.display());
    if bytes <= PATH_BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "{shown}: has {bytes} bytes, too many for the directory of runs; expected at most \
         {PATH_BYTES_MAX}, as paths of sockets are short"
    );
    Err(Failure::new(Exit::Usage, text))
}

fn private(path: PathBuf) -> Result<PathBuf, Failure> {
    match make_private(&path) {
        Ok(()) => Ok(path),
        Err(unfit) => {
            let next = match unfit {
                Unfit::Link | Unfit::NoDirectory => "remove it",
                Unfit::Foreign(_) => "have it removed",
                Unfit::Open(_) => "run chmod 700 on it",
                Unfit::NotMade(_) => "free some space there",
            };
            Err(Failure::new(
                Exit::CannotPage,
                format!(
                    "{}: {unfit}; {next}: it holds Pagetide's sockets and must be a directory of \
                     yours with mode 0700. Or name another: --run-dir DIR",
                    path.display()
                ),
            ))
        }
    }
}

/// Why a directory cannot hold runs.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("cannot be made ({0})")]
    NotMade(std::io::Error),
    #[error("is a symbolic link")]
    Link,
    #[error("is not a directory")]
    NoDirectory,
    #[error("belongs to user {0}, not to you ({uid})", uid = geteuid().as_raw())]
    Foreign(u32),
    #[error("has mode {0:04o}, open to others")]
    Open(u32),
}

/// Makes a directory of mode 0700, or finds that it is one and that it is ours.
fn make_private(path: &Path) -> Result<(), Unfit> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(Unfit::NotMade(error));
        }
        _ => {}
    }
    let meta = fs::symlink_metadata(path).map_err(Unfit::NotMade)?;
    let mode = meta.permissions().mode() & 0o7777;
    if meta.is_symlink() {
        Err(Unfit::Link)
    } else if !meta.is_dir() {
        Err(Unfit::NoDirectory)
    } else if meta.uid() != geteuid().as_raw() {
        Err(Unfit::Foreign(meta.uid()))
    } else if mode & 0o077 != 0 {
        Err(Unfit::Open(mode))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(path: &Path) -> Bases {
        Bases {
            chosen: Some(path.to_owned()),
        }
    }

    #[test]
    fn a_base_that_is_not_private_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        assert!(make_private(&path).is_ok());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert!(make_private(&path).is_ok());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(
            make_private(&path)
                .unwrap_err()
                .to_string()
                .contains("0755")
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(
            make_private(&link)
                .unwrap_err()
                .to_string()
                .contains("symbolic link")
        );
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            make_private(&file)
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
    }

    #[test]
    fn the_one_asked_for_is_made_and_is_the_only_one_looked_in() {
        let dir = tempfile::tempdir().unwrap();
        let bases = chosen(&dir.path().join("base"));
        assert_eq!(bases.visible(), Vec::<PathBuf>::new());
        let own = bases.own().unwrap();
        assert_eq!(bases.visible(), vec![own]);
        let long = chosen(&dir.path().join("x".repeat(PATH_BYTES_MAX)));
        let failure = long.own().unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("at most 76"), "{failure}");
    }

    #[test]
    fn one_asked_for_that_cannot_be_it_is_bad_usage_and_is_not_to_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (open, file) = (dir.path().join("open"), dir.path().join("file"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&file, "").unwrap();
        let (below, absent) = (file.join("below"), dir.path().join("absent"));
        for (path, said) in [
            (&open, "mode 0755"),
            (&file, "is not a directory"),
            (&below, "cannot be made"),
            (&absent.join("deep"), "cannot be made"),
        ] {
            let failure = chosen(path).own().unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{failure}");
            assert!(failure.message.contains(said), "{failure}");
            for advice in ["remove", "chmod", "free some space"] {
                assert!(!failure.message.contains(advice), "{failure}");
            }
        }
        assert!(chosen(&open).check(false).is_ok());
        for path in [&file, &below, &absent] {
            let failure = chosen(path).check(false).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{failure}");
        }
        assert!(chosen(&absent).check(true).is_ok());
        assert!(chosen(&file).check(true).is_err() && Bases::default().check(false).is_ok());
    }

    #[test]
    fn what_lies_beside_others_is_taken_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let uid = geteuid().as_raw();
        let (unit, other) = (dir.path().join("unit"), dir.path().join("other"));
        for directory in [&unit, &other] {
            fs::create_dir(directory).unwrap();
        }
        fs::create_dir(unit.join(NAME)).unwrap();
        std::os::unix::fs::symlink(unit.join(NAME), other.join(NAME)).unwrap();
        let shared = dir.path().join(format!("{SHARED_PREFIX}{uid}"));
        fs::create_dir(&shared).unwrap();
        fs::create_dir(dir.path().join(format!("{SHARED_PREFIX}{}", uid + 1))).unwrap();
        let mut found = Found::default();
        found.consider_within(dir.path());
        assert_eq!(found.paths, vec![unit.join(NAME)]);
        found.consider_shared(dir.path());
        assert_eq!(found.paths, vec![unit.join(NAME), shared]);
    }

    #[test]
    fn of_several_directories_of_a_unit_the_first_is_taken() {
        assert_eq!(first_of("/run/a:/run/b".into()), Some("/run/a".into()));
    }
}
