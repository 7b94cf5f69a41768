//! The contract of the lock calls, clause by clause, against what the kernel says of the same
//! memory.
#[path = "../lock/mod.rs"]
mod lock;

mod foreign;
mod forks;
mod limits;
mod lives;
mod modes;
mod process_wide;
mod random;
mod scarce;

use ::pagetide::lock::{self as calls, Errno, LockFlags};
use lock::PAGE;

const LOCKED: LockFlags = LockFlags::LOCKED;
const ONFAULT: LockFlags = LockFlags::ONFAULT;

fn errno(result: Result<(), calls::LockError>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn mlock2(start: *mut u8, from: usize, pages: usize, flags: LockFlags) {
    calls::mlock2(start.wrapping_add(from * PAGE), pages * PAGE, flags).unwrap();
}

fn munlock(start: *mut u8, from: usize, pages: usize) {
    calls::munlock(start.wrapping_add(from * PAGE), pages * PAGE).unwrap();
}

fn munlock2(start: *mut u8, from: usize, pages: usize, flags: LockFlags) {
    calls::munlock2(start.wrapping_add(from * PAGE), pages * PAGE, flags).unwrap();
}
