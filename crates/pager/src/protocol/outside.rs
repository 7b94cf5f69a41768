//! Opening what lies in a run's directory from outside.
//!
//! Whoever owns the directory may have put anything there, and root looks into everybody's: a pipe
//! that nobody writes to, a link to another file, a file without an end.
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};

/// Opens the file at `path`, the directory of which is a run's: a regular file of the directory's
/// owner, never through a link, and without waiting. In a directory of root's the file may be
/// anybody's: only who has root's rights has made one there.
///
/// # Errors
/// As opening a file; `InvalidInput` for anything else than such a file.
pub fn open_file(path: &Path, access: OFlags) -> io::Result<File> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(
        directory,
        flags | OFlags::DIRECTORY | OFlags::PATH,
        Mode::empty(),
    )?;
    let owner = fstat(&directory)?.st_uid;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file: OwnedFd = openat(&directory, name, flags | access, Mode::empty())?;
    let stat = fstat(&file)?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    match is_regular && (owner == 0 || stat.st_uid == owner) {
        true => Ok(File::from(file)),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// The first `most` bytes of such a file.
///
/// # Errors
/// As [`open_file`] and reading.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(&open_file(path, OFlags::RDONLY)?, most)
}

/// The first `most` bytes of an open file.
///
/// # Errors
/// As reading.
pub fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn only_a_regular_file_of_the_directory_s_owner_is_read_and_no_more_than_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "four").unwrap();
        assert_eq!(read_file(&at("file"), 9).unwrap(), b"four");
        assert_eq!(read_file(&at("file"), 2).unwrap(), b"fo");
        symlink(at("file"), at("link")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let (kind, mode) = (FileType::Fifo, Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, mode, 0).unwrap();
        for name in ["link", "directory", "pipe", "none"] {
            for access in [OFlags::RDONLY, OFlags::RDWR] {
                assert!(open_file(&at(name), access).is_err(), "{name}");
            }
        }
        if rustix::process::geteuid().is_root() {
            chown(at("file"), Some(1), None).unwrap();
            assert!(read_file(&at("file"), 9).is_ok(), "the directory is root's");
            chown(dir.path(), Some(2), None).unwrap();
            assert!(read_file(&at("file"), 9).is_err());
            chown(at("file"), Some(2), None).unwrap();
            assert!(read_file(&at("file"), 9).is_ok());
        }
    }
}
