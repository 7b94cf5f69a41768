//! Where the file of a `file:` store is: found, claimed and made ours.
//!
//! Several processes may be given the same URI (a program and its children), so a file another
//! process uses is left to it. A file that is not a store's is never overwritten, and no link is
//! followed to one.

use std::time::Duration;

use crate::uri::config;
use crate::{ErrorKind, PAGE_SIZE, Page, StoreError};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::fs::{flock, fstat, ftruncate, lstat, open, readlink, stat, unlinkat};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::getpid;

/// The first bytes of a store's file, so that one that was kept can be told from a file of the
/// user's.
const MAGIC: &[u8; 16] = b"pagetide store\n\0";
/// Bytes before the first page of content.
pub(crate) const HEADER: u64 = PAGE_SIZE as u64;
/// Names tried before giving up.
const NAMES: u32 = 100;
/// How often an empty file is looked at again, 5 ms apart: who has just made it writes to it.
const EMPTY_TRIES: u32 = 20;

const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Opens the file for a store at `place`, emptied and locked. Without `keep` it has no name any
/// more, so that nothing is left of it however the process ends.
pub(crate) fn claim(place: &str, keep: bool) -> Result<OwnedFd, StoreError> {
    if place.is_empty() {
        return Err(config(
            "`file:` needs a path, as in `file:/var/tmp/` or `file:/var/tmp/pages`",
        ));
    }
    let pid = getpid();
    let directory =
        place.ends_with('/') || stat(place).is_ok_and(|stat| kind(&stat) == FileType::Directory);
    if directory && !keep {
        match open(place, FLAGS | OFlags::TMPFILE | OFlags::EXCL, PRIVATE) {
            Ok(file) => return ready(file, place),
            // The filesystem has no nameless files: make one with a name and take it away.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(error) => return Err(unopened("open a file in", place, error)),
        }
    }
    for number in 0..NAMES {
        let name = match (directory, number) {
            (true, 0) => format!("{}/pagetide-{pid}.store", place.trim_end_matches('/')),
            (true, _) => format!(
                "{}/pagetide-{pid}-{number}.store",
                place.trim_end_matches('/')
            ),
            (false, 0) => place.to_owned(),
            (false, 1) => format!("{place}.{pid}"),
            (false, _) => format!("{place}.{pid}-{number}"),
        };
        if let Some(file) = claim_name(&name, directory)? {
            let file = ready(file, &name).inspect_err(|_| {
                // Empty, it would be taken for a file of the user's the next time.
                let _ = unlinkat(CWD, &name, AtFlags::empty());
            })?;
            if !keep {
                unlinkat(CWD, &name, AtFlags::empty())
                    .map_err(|error| failed("unlink", &name, error))?;
            }
            return Ok(file);
        }
    }
    Err(config(format!(
        "`{place}` and {NAMES} names made from it are in use by other stores: name another path"
    )))
}

/// Makes, or opens, and locks `name`; `None` if another process has it.
fn claim_name(name: &str, new_only: bool) -> Result<Option<OwnedFd>, StoreError> {
    // A link is not followed: taking the file's name away would take the user's link, and leave the
    // file.
    let flags = FLAGS | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    match open(name, flags | OFlags::CREATE | OFlags::EXCL, PRIVATE) {
        Ok(file) => return lock_new(file, name).map(Some),
        Err(Errno::EXIST) if new_only => return Ok(None),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(unopened("open", name, error)),
    }
    for _ in 0..EMPTY_TRIES {
        let file = match open(name, flags, PRIVATE) {
            // Its last owner has taken the name away.
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) if is_link(name) => return Err(link(name)),
            opened => opened.map_err(|error| unopened("open", name, error))?,
        };
        match claim_found(file, name)? {
            Found::Ours(file) => return Ok(Some(file)),
            Found::Taken => return Ok(None),
            // Just made by another process, which is about to lock it; or the user's.
            Found::Empty => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Err(config(format!(
        "`{name}` exists and is empty, so it is not a store of pagetide: it is left as it is; \
         remove it or name another path"
    )))
}

/// Locks a file that was just made. Who found it meanwhile holds it for a moment only.
fn lock_new(file: OwnedFd, name: &str) -> Result<OwnedFd, StoreError> {
    match flock(&file, FlockOperation::LockExclusive) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(file),
        Err(error) => Err(failed("lock", name, error)),
    }
}

/// What was found under a name.
enum Found {
    /// A store that nobody uses any more.
    Ours(OwnedFd),
    /// In use, or another file by now.
    Taken,
    /// A file without contents.
    Empty,
}

fn claim_found(file: OwnedFd, name: &str) -> Result<Found, StoreError> {
    // Asked with and without the lock: a file of the user's is refused whoever holds it, also a
    // child between its fork and its exec, and what is emptied was looked at under the lock.
    ours_or_empty(&file, name)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(Found::Taken),
        // A filesystem without locks: every process then has to be given its own path.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) | Ok(()) => {}
        Err(error) => return Err(failed("lock", name, error)),
    }
    let found = ours_or_empty(&file, name)?;
    // Its last owner may have unlinked it between our opening and our locking; the name is then
    // another file's, or free.
    let named =
        stat(name).is_ok_and(|named| (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino));
    Ok(match (named, found.st_size) {
        (false, _) => Found::Taken,
        (true, 0) => Found::Empty,
        (true, _) => Found::Ours(file),
    })
}

/// What `file` is, if it is a regular file that is empty or begins as a store's does.
fn ours_or_empty(file: &OwnedFd, name: &str) -> Result<Stat, StoreError> {
    let found = fstat(file).map_err(|error| failed("look at", name, error))?;
    if kind(&found) != FileType::RegularFile {
        return Err(config(format!(
            "`{name}` is neither a regular file nor a directory"
        )));
    }
    if found.st_size > 0 {
        let mut start = [0; MAGIC.len()];
        let read = pread(file, &mut start, 0).map_err(|error| failed("read", name, error))?;
        // Its owner may be emptying it.
        if read > 0 && start != *MAGIC {
            return Err(config(format!(
                "`{name}` exists and is not a store of pagetide: it is left as it is; move it \
                 away or name another path"
            )));
        }
    }
    Ok(found)
}

/// Empties the file and marks it as a store's.
fn ready(file: OwnedFd, name: &str) -> Result<OwnedFd, StoreError> {
    ftruncate(&file, 0).map_err(|error| failed("empty", name, error))?;
    let mut header = Page::ZERO;
    header.0[..MAGIC.len()].copy_from_slice(MAGIC);
    match pwrite(&file, &header.0, 0) {
        Ok(PAGE_SIZE) => Ok(file),
        Ok(_) => Err(failed("write the first page of", name, Errno::NOSPC)),
        Err(error) => Err(failed("write the first page of", name, error)),
    }
}

fn is_link(name: &str) -> bool {
    lstat(name).is_ok_and(|stat| kind(&stat) == FileType::Symlink)
}

fn link(name: &str) -> StoreError {
    let target = readlink(name, Vec::new()).map_or_else(
        |_| "another file".to_owned(),
        |path| format!("`{}`", path.to_string_lossy()),
    );
    config(format!(
        "`{name}` is a symbolic link to {target}: expected a file, a directory or a free name; \
         name the file it leads to"
    ))
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A place that no file can be made at.
fn unopened(doing: &str, name: &str, error: Errno) -> StoreError {
    failed(
        doing,
        name,
        format!(
            "{error}; expected a directory that exists, or a file in one, on a disk where you may \
             write: file:/var/tmp/"
        ),
    )
}

fn failed(doing: &str, name: &str, error: impl ToString) -> StoreError {
    StoreError::new(
        ErrorKind::Config,
        format!("{doing} `{name}` for the file store"),
    )
    .with_cause(error)
}
