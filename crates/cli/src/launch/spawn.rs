//! Starting the program: same terminal, process group, descriptors and signal state as the launcher
//! was given. And the other system calls of the launcher that have no safe interface.
// `pre_exec` and `sigaction` are unsafe interfaces; both are needed to hand on ignored signals,
// which a plain spawn resets. So is the making of a signal from any number, which real-time signals
// need.
#![allow(unsafe_code)]
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::Pid;

use super::inherited::Inherited;
use crate::exit::{Exit, Failure};

/// Starts `file` under the name and arguments of `command`, with `environment` added. The caller
/// has all signals blocked.
pub fn spawn(
    file: &Path,
    command: &[OsString],
    environment: &[(&str, OsString)],
    inherited: &Inherited,
) -> Result<Pid, Failure> {
    match prepared(file, command, environment, inherited).spawn() {
        Ok(started) => Ok(Pid::from_raw(started.id() as i32)),
        Err(error) => Err(not_executed(file, &error)),
    }
}

/// The same in the place of this process; returns only where that cannot be done.
pub fn exec(
    file: &Path,
    command: &[OsString],
    environment: &[(&str, OsString)],
    inherited: &Inherited,
) -> Failure {
    let error = prepared(file, command, environment, inherited).exec();
    not_executed(file, &error)
}

fn prepared(
    file: &Path,
    command: &[OsString],
    environment: &[(&str, OsString)],
    inherited: &Inherited,
) -> Command {
    let mut child = Command::new(file);
    child
        .arg0(&command[0])
        .args(&command[1..])
        .envs(environment.iter().map(|(name, value)| (name, value)));
    let mask = inherited.mask;
    let ignored: Vec<Signal> = [Signal::SIGPIPE, Signal::SIGCHLD]
        .into_iter()
        .filter(|s| inherited.ignores(*s))
        .collect();
    let restore = move || {
        for reset in &ignored {
            // SAFETY: SIG_IGN runs no code of ours.
            unsafe { signal(*reset, SigHandler::SigIgn) }?;
        }
        mask.thread_set_mask()?;
        Ok(())
    };
    // SAFETY: between fork and exec `restore` makes two kinds of system call and neither allocates
    // nor locks: the vector was made before, and an error converts from an errno without
    // allocation.
    unsafe { child.pre_exec(restore) };
    child
}

fn not_executed(file: &Path, error: &std::io::Error) -> Failure {
    let (exit, next) = match error.kind() {
        std::io::ErrorKind::NotFound => (Exit::NotFound, ""),
        std::io::ErrorKind::WouldBlock => (
            Exit::CannotPage,
            "; the user's processes are limited: raise `ulimit -u`",
        ),
        _ => (Exit::NotExecutable, ""),
    };
    let text = format!("{}: cannot be executed ({error}){next}", file.display());
    Failure::new(exit, text)
}

/// Makes children waitable although whoever started us had SIGCHLD ignored, and blocks every
/// signal: they are read one by one.
pub fn take_over_signals(inherited: &Inherited) -> nix::Result<SigSet> {
    if inherited.ignores(Signal::SIGCHLD) {
        // SAFETY: SIG_DFL runs no code of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    }
    let all = SigSet::all();
    all.thread_block()?;
    Ok(all)
}

/// Sends signal `number`, which a signal descriptor reported, to `child`. One that is gone is not
/// an error.
pub fn send(child: Pid, number: i32) {
    use rustix::process::{Signal, kill_process};
    // SAFETY: the kernel delivered this number to us, so it is a signal's; it is only passed back
    // to the kernel.
    let signal = unsafe { Signal::from_raw_unchecked(number) };
    if let Some(child) = rustix::process::Pid::from_raw(child.as_raw()) {
        let _ = kill_process(child, signal);
    }
}
