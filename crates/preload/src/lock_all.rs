//! `run --lock`: no pager, but all memory locked, in this process, in its forked children, and in
//! programs they execute.
use std::ffi::c_int;
use std::sync::OnceLock;

use pagetide_kernel::limits::LockLimits;
use pagetide_kernel::mlock::{MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT, mlockall};
use pagetide_lock::LimitReport;

use crate::config::{AGENT, LOCK};

/// The launcher's wish.
#[derive(Debug)]
pub struct LockAll {
    flags: u32,
    /// Of the launcher: its own child is not to run unlocked.
    launcher: i32,
    /// For programs started with another environment.
    pub variables: Vec<Vec<u8>>,
    /// Path of this library.
    pub agent: Vec<u8>,
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
        let first =
            rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) == Some(wish.launcher);
        say(first, errno);
        if first {
            // SAFETY: ends the process before the program started; nothing of it has run.
            unsafe { libc::_exit(3) };
        }
        return true;
    }
    warn_of_little_room(wish);
    crate::exec::prepare();
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
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').next()?.parse::<u64>().ok())
        .map_or(0, |pages| pages * pagetide_kernel::PAGE_SIZE as u64)
}

/// The program is locked; what it maps from now on may not be.
fn warn_of_little_room(wish: &LockAll) {
    let Some(left) = LockLimits::read().left() else {
        return;
    };
    let is_first =
        rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) == Some(wish.launcher);
    if is_first && left < ROOM_BYTES {
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
    use std::os::unix::ffi::OsStringExt;
    let value = std::env::var(LOCK).ok()?;
    let (mode, launcher) = value.split_once(':')?;
    let mode: u32 = match mode {
        "on-fault" => MCL_ONFAULT,
        "now" => 0,
        _ => return None,
    };
    let agent = std::env::var_os(AGENT)?.into_vec();
    let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value].concat();
    Some(LockAll {
        flags: MCL_CURRENT | MCL_FUTURE | mode,
        launcher: launcher.parse::<c_int>().ok()?,
        variables: vec![variable(LOCK, value.as_bytes()), variable(AGENT, &agent)],
        agent,
    })
}
