//! Lock: memory that stays once it is touched, and costs nothing until then.
//!
//! The kernel locks memory in two modes. *Full* (`mlock`) faults the whole range in at once. *On
//! fault* (`MLOCK_ONFAULT`) locks what is present and each other page when it is first touched. The
//! kernel does not tell which range has which mode, nor who wanted it. This module keeps a registry
//! of that, so that one mode can be unlocked alone, future locking ended alone, memory mapped and
//! locked on fault in one step, and a page kept while a second owner still needs it.
//!
//! - [`hold`], [`hold_mut`]: a lock with an owner. Any number of owners may hold a page; it is
//!   unlocked when the last one lets go.
//! - [`LockedFile`]: a file of which only parts are used. [`SecretBuf`]: bytes that never leave
//!   memory.
//! - [`mlock2`], [`munlock`], [`munlock2`], [`mlockall`], [`munlockall`], [`munlockall2`],
//!   [`mmap`], [`munmap`], [`mremap`]: the system calls and what they lack, errno for errno.
//! - [`ranges`]: what is locked, how, and how much of it is resident. [`LimitReport`]: why
//!   something could not be locked, and the line that mends it.
//!
//! ```
//! use pagetide::lock::{Mode, hold_mut};
//!
//! let mut table = vec![0u8; 1 << 20];
//! match hold_mut(&mut table, Mode::OnFault) {
//!     Ok(mut held) => held[5000] = 1, // stays in memory from here until `held` is dropped
//!     Err(error) => eprintln!("{error}"), // names the limit, and the line that raises it
//! }
//! ```
//!
//! # Whose lock it is
//! The calls act for the process, as the system calls do: locking again replaces the mode, one
//! unlock undoes any number of locks. An owner ([`hold`], [`LockedFile`], [`SecretBuf`]) is counted
//! beside that, page by page, and none of the calls takes a page from it. A page's mode is full if
//! anyone wants it full.
//!
//! Locks that other code made with bare system calls (*foreign* ones) are left alone, except by the
//! two calls whose meaning is to unlock whatever is there: [`munlock`] on its range and
//! [`munlockall`] everywhere.
//!
//! # Unmapping
//! Memory that was locked here is to be unmapped or moved with [`munmap`] and [`mremap`] of this
//! module, or its range given to [`forget`]; owners see to that themselves. Ranges that were
//! unmapped otherwise are forgotten when the registry is compared with the kernel's list, which
//! every call that unlocks by what the registry knows of the whole address space does
//! ([`munlockall2`], [`ranges`]), and [`munlock2`] once future locking has been used.
mod adaptive;
mod calls;
mod error;
mod exact;
mod file;
mod flags;
mod fork;
mod hold;
mod journal;
mod keeper;
mod mapping;
mod registry;
mod report;
mod residency;
mod secret;
mod secret_pages;
mod state;
mod watch;

pub use calls::{forget, mlock2, mlockall, munlock, munlock2, munlockall, munlockall2};
pub use error::{FileError, LimitReport, LockError, SecretError};
pub use file::{LockedFile, LockedFileBuilder};
pub use flags::{Access, AllFlags, ForkPolicy, LockFlags, Mode, Sharing};
pub use fork::{fork_error, fork_policy, set_fork_policy};
pub use hold::{Held, hold, hold_mut};
pub use keeper::Keeper;
pub use mapping::{mmap, mremap, munmap};
#[doc(hidden)] // for tests of it
pub use registry::{Holders, Registry, Segment};
pub use report::{LockedRange, ranges};
pub use residency::{PageState, Residency};
pub use secret::{SecretBuf, SecretBufBuilder};
pub use secret_pages::InChild;
pub use watch::WatchStatistics;

/// The kernel's error numbers, as the calls return them. See the example of [`LockError::errno`].
pub use rustix::io::Errno;
/// Protection and flags for [`mmap`] and [`mremap`]. See the example of [`mmap`].
pub use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
