//! `run --lock`: no pager, but all memory locked, in this process, in its forked children, and in
//! programs they execute.
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::OnceLock;

use pagetide_kernel::limits::LockLimits;
use pagetide_kernel::mlock::{MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT, mlockall};
use pagetide_kernel::procfs;
use pagetide_lock::LimitReport;
use pagetide_pager::protocol::environment;
use pagetide_pager::protocol::refusal::Cause;

/// The launcher's wish.
#[derive(Debug)]
pub struct LockAll {
    flags: u32,
    /// Of the launcher: its own child is not to run unlocked.
    launcher: i32,
    /// The launcher is not the program's parent, but became the program.
    exec: bool,
    /// For programs started with another environment.
    pub variables: Vec<Vec<u8>>,
    /// Path of this library.
    pub agent: Vec<u8>,
}

impl LockAll {
    /// Whether this process is the one that the launcher started, or became.
    fn is_first(&self) -> bool {
        let process = match self.exec {
            true => Some(rustix::process::getpid()),
            false => rustix::process::getppid(),
        };
        process.map(|p| p.as_raw_nonzero().get()) == Some(self.launcher)
    }
}

static WISH: OnceLock<LockAll> = OnceLock::new();

/// The wish, if there is one.
pub fn wish() -> Option<&'static LockAll> {
    WISH.get()
}

/// Called by the loader before `main`. Returns whether this process is to be locked, and not paged.
pub fn at_load() -> bool {
    let Some(wish) = from_environment() else {
        return false;
    };
    let wish = WISH.get_or_init(|| wish);
    if let Err(errno) = mlockall(wish.flags) {
        say(wish.is_first(), errno);
        if wish.is_first() {
            // SAFETY: ends the process before the program started; nothing of it has run.
            unsafe { libc::_exit(Cause::System.exit_status().into()) };
        }
        return true;
    }
    warn_of_little_room(wish);
    // SAFETY: the handler lives as long as this library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    true
}

/// The kernel drops locks in a forked child.
extern "C" fn in_child() {
    if let Some(wish) = WISH.get()
        && let Err(errno) = mlockall(wish.flags)
    {
        say(false, errno);
    }
}

/// What a program maps at the least as it runs: its heap, a thread's stack (8 MiB), buffers.
const ROOM_BYTES: u64 = 16 << 20;

fn address_space_bytes() -> u64 {
    let statm = procfs::open_self(c"/proc/self/statm");
    let pages = statm.map_or(0, |file| procfs::sizes(&file).address_space);
    pages * pagetide_kernel::PAGE_SIZE as u64
}

/// The program is locked; what it maps from now on may not be.
fn warn_of_little_room(wish: &LockAll) {
    let Some(left) = LockLimits::read().left() else {
        return;
    };
    if wish.is_first() && left < ROOM_BYTES {
        eprintln!(
            "pagetide: --lock: the lock limit leaves {left} bytes for what the program maps as it \
             runs; beyond that, brk and mmap fail, and most programs with them\n{}",
            LimitReport::new(ROOM_BYTES)
        );
    }
}

fn say(first: bool, errno: rustix::io::Errno) {
    let mapped = address_space_bytes();
    let pid = std::process::id();
    let what = if first {
        "the program is not started"
    } else {
        "it runs on, not locked"
    };
    eprintln!(
        "pagetide: process {pid}: its memory cannot be locked ({errno}); {what}\nneeded are the \
         {mapped} bytes mapped so far, and room for what it maps as it runs: at least \
         {ROOM_BYTES}\n{}",
        LimitReport::new(mapped + ROOM_BYTES)
    );
}

fn from_environment() -> Option<LockAll> {
    let wish = environment::LockAll::from_environment()?;
    let mode = if wish.on_fault { MCL_ONFAULT } else { 0 };
    Some(LockAll {
        flags: MCL_CURRENT | MCL_FUTURE | mode,
        launcher: wish.launcher,
        exec: wish.exec,
        variables: environment::entries(wish.variables()),
        agent: OsString::from(wish.agent).into_vec(),
    })
}
