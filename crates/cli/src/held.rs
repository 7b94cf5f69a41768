//! Whether the process that made a file lives, by the lock it holds on it: that tells of processes
//! in other PID namespaces, too, whose numbers say nothing here, and a process that got the number
//! of one that is gone is not taken for it.
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Locks `file` for as long as it is open. Not every filesystem can.
pub fn hold(file: &File) {
    let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
}

/// Whether somebody holds `file`; `None` where that cannot be told. Asking does not make others
/// believe that it is held.
pub fn is_held(file: impl AsFd) -> Option<bool> {
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Some(true),
        Err(_) => None,
        Ok(()) => {
            let _ = flock(&file, FlockOperation::Unlock);
            Some(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_while_its_holder_has_it_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let holder = File::create(&path).unwrap();
        let (one, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        assert_eq!(is_held(&one), Some(false));
        hold(&holder);
        assert_eq!((is_held(&one), is_held(&other)), (Some(true), Some(true)));
        drop(holder);
        assert_eq!((is_held(&one), is_held(&other)), (Some(false), Some(false)));
        let directory = File::open(dir.path()).unwrap();
        hold(&directory);
        assert_eq!(is_held(File::open(dir.path()).unwrap()), Some(true));
    }
}
