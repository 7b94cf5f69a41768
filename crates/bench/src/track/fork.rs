//! The peer of live snapshots: a forked process that writes the memory out.
#![allow(unsafe_code)] // forks
use std::fs::File;
use std::io::{Error, Read as _, Result};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::memory::Plain;
use crate::{sysfs, undo};

/// The child that was forked last and is not waited for yet; 0 for none.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Ends the forked child, if there is one, and returns when it is gone.
pub fn end_child() {
    let pid = CHILD.swap(0, SeqCst);
    if let Some(pid) = Pid::from_raw(pid) {
        // Whoever else waits for it may be first.
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
}

/// A child process that was forked to write the memory out.
pub struct Child {
    pid: Pid,
    report: File,
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
}

impl Child {
    /// Forks; the child writes `memory` to `path`, and tells how much memory it had for itself at
    /// the end. Nothing is allocated before the fork.
    pub fn start(memory: &Plain, path: &Path) -> Result<Child> {
        // All other threads hold still, so undoing cannot begin between here and where the child is
        // known to it.
        if undo::has_begun() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let (reader, writer) = rustix::pipe::pipe()?;
        let (reader, writer) = (reader.into_raw_fd(), writer.into_raw_fd());
        // SAFETY: fork(2) by the C library, whose allocator stays usable in the child; the child
        // uses this thread's state only and ends by _exit.
        let pid = unsafe { fork() };
        let failure = (pid < 0).then(Error::last_os_error);
        if pid == 0 {
            // SAFETY: the child's own copy of the descriptor.
            let pipe = unsafe { OwnedFd::from_raw_fd(writer) };
            let (written, why) = match memory.write_file(path) {
                Ok(written) => (written, String::new()),
                Err(error) => (0, error.to_string()),
            };
            let mut text = [written.to_le_bytes(), private_bytes().to_le_bytes()].concat();
            text.extend_from_slice(why.as_bytes());
            let told = rustix::io::write(&pipe, &text).is_ok();
            // SAFETY: ends the child without running anything else of the program.
            unsafe { _exit(if told && written > 0 { 0 } else { 1 }) };
        }
        // SAFETY: both ends are fresh and ours; the writer's is closed here, so that the child's
        // end is the last.
        let (reader, _writer) =
            unsafe { (File::from_raw_fd(reader), OwnedFd::from_raw_fd(writer)) };
        if let Some(failure) = failure {
            return Err(failure);
        }
        CHILD.store(pid, SeqCst);
        let pid = Pid::from_raw(pid).expect("neither the child nor a failure");
        Ok(Child {
            pid,
            report: reader,
        })
    }

    /// Waits until the file is complete: its bytes, and the bytes of memory that the child did not
    /// share any more.
    pub fn wait(mut self) -> Result<(u64, u64)> {
        let mut text = Vec::new();
        let read = self.report.read_to_end(&mut text);
        let status = waitpid(Some(self.pid), WaitOptions::empty());
        CHILD.store(0, SeqCst);
        read?;
        let status = status?.map(|(_, status)| (status.exit_status(), status.terminating_signal()));
        let why = match (status, text.as_chunks::<8>()) {
            (Some((Some(0), _)), ([written, extra], [])) => {
                return Ok((u64::from_le_bytes(*written), u64::from_le_bytes(*extra)));
            }
            (Some((_, Some(signal))), _) => format!("signal {signal} ended it"),
            _ => String::from_utf8_lossy(text.get(16..).unwrap_or_default()).into_owned(),
        };
        Err(Error::other(format!(
            "the forked child could not write its file: {why}"
        )))
    }
}

/// Memory of this process that no other shares.
fn private_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let kib = field("Private_Clean:").unwrap_or(0) + field("Private_Dirty:").unwrap_or(0);
    let tables = sysfs::status_bytes(std::process::id(), "VmPTE").unwrap_or(0);
    kib * 1024 + tables
}
