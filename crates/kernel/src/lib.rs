//! The kernel contract: what Pagetide asks of Linux, in one place, with the preconditions the
//! kernel does not check.
//!
//! Everything here makes system calls directly (rustix's `linux_raw` back-end), so errors are
//! return values: no `errno`, no thread-local state, no allocation unless a function says so. The
//! pager relies on that, because its threads run inside arbitrary programs.
#![warn(missing_docs)]

pub mod byte_lock;
pub mod fork;
pub mod limits;
pub mod loaded;
pub mod maps;
pub mod mask;
pub mod memory;
pub mod mlock;
pub mod own;
pub mod page;
pub mod pagemap;
pub mod park;
pub mod peer;
pub mod probe;
pub mod procfs;
pub mod residency;
pub mod smaps;
pub mod sync;
pub mod syscall;
pub mod thread;
mod thread_id;
pub mod trap;
pub mod uffd;
pub mod wait;
pub mod wiped;

pub use page::{PAGE_SHIFT, PAGE_SIZE, PageNumber, PageRange, each_gap};
