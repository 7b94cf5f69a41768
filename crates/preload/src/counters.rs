//! The process's counters: a ledger in a file of the run's directory, which outlives it. The file
//! is locked as long as the process lives, or the program it executes has not begun: that tells
//! observers, of whatever PID namespace, whether it does.
use std::ffi::CString;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_kernel::own::{Mapping, exclude};
use pagetide_kernel::procfs;
use pagetide_kernel::sync::now_ns;
use pagetide_pager::ledger::{LEDGER_MAGIC, Ledger};
use pagetide_pager::protocol::files::{self, Note};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, open, unlink};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::config::Config;
use crate::refuse::with_limits;
use crate::{lines, standard_error};

/// Whether the ledger is in a file, where the launcher finds it.
static IN_FILE: AtomicBool = AtomicBool::new(false);

/// Maps a new ledger file of this process: at `place`, over the one before, in a forked child.
pub fn map_ledger(
    config: &Config,
    place: Option<&'static Ledger>,
) -> Result<&'static Ledger, String> {
    let path = files::ledger(&config.wishes.run_dir, std::process::id(), now_ns());
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    let file = open(
        name.as_c_str(),
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .and_then(|file| {
        // Before it can be read as a ledger. Without a lock, observers go by the process's number.
        let _ = flock(&file, FlockOperation::LockExclusive);
        let reserved = reserve(&file, Ledger::SIZE);
        // An empty one would never be read, and would stay.
        let _ = reserved.is_err().then(|| unlink(name.as_c_str()));
        reserved.map(|()| file)
    });
    if let (Err(errno), true) = (&file, place.is_none() && config.is_first) {
        let dir = config.wishes.run_dir.display();
        return Err(format!(
            "the run's directory {dir} has no room for the counters ({errno}); free some space \
             there"
        ));
    }
    IN_FILE.store(file.is_ok(), Ordering::Release);
    if let Err(errno) = &file {
        leave_note(config, *errno);
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let address = match (&file, place) {
        // Without a place for it (the run's directory is gone) the counters are kept for ourselves.
        (Err(_), None) => Mapping::new(Ledger::SIZE)
            .map_err(|e| e.to_string())?
            .leak()
            .cast(),
        (Err(_), Some(ledger)) => {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: replaces the parent's ledger, which is ours to replace and is not in use yet.
            let address = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::from_ref(ledger).cast_mut().cast(),
                    Ledger::SIZE,
                    protection,
                    flags,
                )
            };
            let address = address.map_err(|e| e.to_string())?;
            let _ = exclude(address as usize, Ledger::SIZE);
            address
        }
        (Ok(file), place) => {
            let (at, flags) = match place {
                None => (std::ptr::null_mut(), MapFlags::SHARED),
                Some(ledger) => (
                    std::ptr::from_ref(ledger).cast_mut().cast(),
                    MapFlags::SHARED | MapFlags::FIXED,
                ),
            };
            // SAFETY: a new mapping, or one that replaces the parent's ledger, which is ours to
            // replace and not in use yet.
            unsafe { mmap(at, Ledger::SIZE, protection, flags, file, 0) }
                .map_err(|e| e.to_string())?
        }
    };
    // Kept open, and so locked, for good: in the agent's own table.
    let _ = file.map(OwnedFd::into_raw_fd);
    // SAFETY: a zeroed mapping of the right size is a ledger (all atomics); it is never unmapped.
    Ok(unsafe { &*address.cast::<Ledger>() })
}

/// Tells the launcher, where that can be, that this process is governed and will not be in its
/// statistics. On the scanner, where a limit on file sizes is an error and no signal.
fn leave_note(config: &Config, errno: rustix::io::Errno) {
    let reason = format!(
        "the run's directory takes no file of {} bytes of it ({errno})",
        Ledger::SIZE
    );
    let reason = with_limits(&reason);
    if config.wishes.exec.is_some() {
        if !config.wishes.quiet {
            standard_error::tell(&format!(
                "process {} is governed, and is in no statistics: {reason}",
                std::process::id()
            ));
        }
        return;
    }
    lines::leave(&config.wishes.run_dir, Note::Uncounted, &reason);
}

/// Tells of a loss that no ledger in a file tells of: where the launcher looks, or else the reader
/// of the program's standard error stream. May be called in a signal handler.
pub fn tell_of_loss(message: &str) {
    if !IN_FILE.load(Ordering::Acquire) && !lines::append(Note::Lost, message) {
        standard_error::tell(message);
    }
}

/// Gives `file` its length and its space on the disk: later there would be nobody to tell that
/// there is none.
fn reserve(file: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    const ZEROS: [u8; 4096] = [0; 4096];
    match fallocate(file, FallocateFlags::empty(), 0, bytes as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        result => return result,
    }
    let mut at = 0;
    while at < bytes {
        let len = ZEROS.len().min(bytes - at);
        at += rustix::io::pwrite(file, &ZEROS[..len], at as u64)?;
    }
    Ok(())
}

/// Says whose counters they are, which makes them readable.
pub fn identify(ledger: &Ledger) {
    let mut command = [0u8; 256];
    let len = procfs::open_self(c"/proc/self/cmdline")
        .and_then(|file| rustix::io::read(file, &mut command))
        .unwrap_or(0);
    let command = &mut command[..len];
    command
        .iter_mut()
        .filter(|b| **b == 0)
        .for_each(|b| *b = b' ');
    ledger.set_command(command.trim_ascii_end());
    ledger.pid.store(std::process::id(), Ordering::Relaxed);
    let namespace = procfs::inode_of_self(c"/proc/self/ns/pid").unwrap_or(0);
    ledger.pid_namespace.store(namespace, Ordering::Relaxed);
    ledger.started_ns.store(now_ns(), Ordering::Relaxed);
    ledger.updated_ns.store(now_ns(), Ordering::Relaxed);
    ledger.magic.store(LEDGER_MAGIC, Ordering::Release);
}
