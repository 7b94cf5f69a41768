//! Locks on bytes of a file. Apart from tests that fork: a child has a copy of each description, and
//! with it the lock, until it ends.
use std::os::fd::AsFd as _;

use pagetide_kernel::byte_lock::{is_locked, try_lock, unlock};

#[test]
fn a_byte_is_locked_by_one_description_until_it_is_closed() {
    let path = std::env::temp_dir().join(format!("pagetide-bytes-{}", std::process::id()));
    let open = || {
        let mut options = std::fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(&path).unwrap()
    };
    let (one, other) = (open(), open());
    assert!(try_lock(one.as_fd(), 7).unwrap());
    assert!(try_lock(one.as_fd(), 7).unwrap(), "its own already");
    assert!(!try_lock(other.as_fd(), 7).unwrap());
    assert!(try_lock(other.as_fd(), 8).unwrap(), "another byte");
    assert!(is_locked(other.as_fd(), 7).unwrap());
    assert!(!is_locked(one.as_fd(), 7).unwrap(), "its own is no other's");
    let copy = one.try_clone().unwrap();
    drop(one);
    assert!(is_locked(other.as_fd(), 7).unwrap(), "a copy is open still");
    drop(copy);
    assert!(!is_locked(other.as_fd(), 7).unwrap());
    assert!(try_lock(other.as_fd(), 7).unwrap());
    unlock(other.as_fd(), 7).unwrap();
    assert!(try_lock(open().as_fd(), 7).unwrap());
    std::fs::remove_file(&path).unwrap();
}
