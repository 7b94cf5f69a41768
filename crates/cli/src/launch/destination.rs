//! Where the statistics and the picture of a run go.
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::exit::{Exit, Failure};

/// Where an option's output goes; opened before the program starts, so that a wrong path is told
/// then.
pub struct Destination {
    option: &'static str,
    path: PathBuf,
    /// None for stdout.
    file: Option<File>,
}

impl Destination {
    /// Opens it. What is in the file stays there until [`Destination::empty`]: the command may yet
    /// be refused.
    pub fn open(option: &'static str, path: &Path) -> Result<Destination, Failure> {
        let mut destination = Destination {
            option,
            path: path.to_owned(),
            file: None,
        };
        if path != Path::new("-") {
            let file = open_at_once(path).map_err(|error| destination.failure(&error))?;
            destination.file = Some(file);
        }
        Ok(destination)
    }

    /// Discards what was in the file. Before the program starts, which may write to it as well.
    pub fn empty(&self) {
        // Fails for what has no length, such as a pipe.
        let _ = self.file.as_ref().map(|file| file.set_len(0));
    }

    /// Fills it.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let result = match &self.file {
            None => {
                let mut out = io::stdout().lock();
                fill(&mut out).and_then(|()| out.flush())
            }
            Some(file) => {
                let mut out = BufWriter::new(file);
                fill(&mut out).and_then(|()| out.flush())
            }
        };
        result.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let (option, path) = (self.option, self.path.display());
        let unread = "it is a pipe that nobody reads";
        let error: &dyn Display = match Errno::from_io_error(error) {
            Some(Errno::NXIO) => &unread,
            _ => error,
        };
        let message = format!(
            "{option} {path}: cannot be written ({error}); expected a file you may write, or - \
             for stdout"
        );
        Failure::new(Exit::Usage, message)
    }
}

/// Opens a file to be written to, made if need be. For a pipe it does not wait until somebody reads
/// it: the program would not start before.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let at_once = OFlags::NONBLOCK.bits() as i32;
    let file = options.custom_flags(at_once).open(path)?;
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Refuses two options with one file, or both with stdout: what is written last would destroy the
/// other, or be mixed with it.
pub fn check_apart(options: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
    let mut seen: Vec<(&str, Place)> = Vec::new();
    for &(option, path) in options {
        let Some((path, place)) = path.and_then(|path| Some((path, Place::of(path)?))) else {
            continue;
        };
        if let Some((other, _)) = seen.iter().find(|(_, earlier)| *earlier == place) {
            let message = format!(
                "{option} {}: {other} names the same file; expected a file of its own for each",
                path.display()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        seen.push((option, place));
    }
    Ok(())
}

/// What tells one output from another.
#[derive(PartialEq, Eq)]
enum Place {
    Stdout,
    File(u64, u64),
}

impl Place {
    /// `None` for what may be written by several, such as `/dev/null`.
    fn of(path: &Path) -> Option<Place> {
        if path == Path::new("-") {
            return Some(Place::Stdout);
        }
        let meta = std::fs::metadata(path).ok()?;
        meta.is_file().then(|| Place::File(meta.dev(), meta.ino()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (one, link, other) = (
            dir.path().join("1"),
            dir.path().join("2"),
            dir.path().join("3"),
        );
        std::fs::write(&one, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let (null, stdout) = (Path::new("/dev/null"), Path::new("-"));
        let check = |stats, plot| check_apart(&[("--stats", stats), ("--plot", plot)]);
        for (stats, plot) in [(&*one, &*one), (&*one, &*link), (stdout, stdout)] {
            let failure = check(Some(stats), Some(plot)).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains("--stats") && failure.message.contains("--plot"));
        }
        for (stats, plot) in [(&*one, &*other), (null, null), (stdout, &*one)] {
            assert!(check(Some(stats), Some(plot)).is_ok());
        }
        assert!(check(Some(&*one), None).is_ok());
    }
}
