//! A process that cannot be governed: the launcher is told why, and what would mend it.
use pagetide_pager::protocol::environment::QUIET;
use pagetide_pager::protocol::files::Note;
use pagetide_pager::protocol::refusal::{DESCRIPTORS, Refusal, too_few_descriptors};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::config::Config;
use crate::lines;

/// Tells why this process is not governed: the launcher, or who reads its stderr where there is no
/// launcher any more, or its directory is out of reach (privileges given up, another root
/// directory). The program
/// the launcher started is ended, before any of it runs; any other goes on without the agent.
///
/// Called on the program's own thread: the agent's threads have no stderr.
pub fn decline(config: &Config, refusal: &Refusal) {
    let reason = &refusal.text;
    let note = match config.is_first {
        true => Note::Refused,
        false => Note::Ungoverned,
    };
    let pid = std::process::id();
    // Writing beyond the limit on file sizes would end the process.
    let has_room = getrlimit(Resource::Fsize)
        .current
        .is_none_or(|most| most >= reason.len() as u64);
    let has_reader = config.wishes.exec.is_none();
    let is_left = has_reader && has_room && lines::leave(&config.wishes.run_dir, note, reason);
    if config.is_first {
        if !is_left {
            eprintln!("pagetide: this program cannot be paged: {reason}");
        }
        // SAFETY: ends the process before the program started; nothing of it has run.
        unsafe { libc::_exit(refusal.cause.exit_status().into()) };
    }
    if !is_left && !config.wishes.quiet {
        eprintln!(
            "pagetide: process {pid} is not governed: {reason}; it and what it starts run with \
             all the memory they ask for"
        );
        // What this program starts cannot be governed either, as a rule.
        be_quiet_from_here_on();
    }
}

/// Tells that this process is not governed because the run's directory belongs to user `owner`, in
/// which nothing is written.
///
/// Called on the program's own thread.
pub fn decline_directory(config: &Config, owner: u32) {
    if config.wishes.quiet {
        return;
    }
    eprintln!(
        "pagetide: process {} is not governed: the run's directory {} belongs to user {owner}, \
         expected this user or root; it and what it starts run with all the memory they ask for. \
         Start it with `pagetide run`",
        std::process::id(),
        config.wishes.run_dir.display()
    );
    be_quiet_from_here_on();
}

/// What this program starts says nothing any more: it has been said.
///
/// Called before `main`, on the program's own thread, while no thread of the agent's lives.
pub fn be_quiet_from_here_on() {
    let name = std::ffi::CString::new(QUIET).unwrap_or_default();
    // SAFETY: before `main`, on the only thread of a process without an agent; `setenv` copies both
    // strings.
    unsafe { libc::setenv(name.as_ptr(), c"1".as_ptr(), 1) };
}

/// `reason`, with those of this process's limits that may be behind it, and the lines that lift
/// them. Where there are too few descriptors, that alone: which call was refused says nothing more.
pub fn with_limits(reason: &str) -> String {
    let most = getrlimit(Resource::Nofile).current;
    match most.filter(|most| *most < DESCRIPTORS) {
        Some(most) => too_few_descriptors(most),
        None => format!("{reason}{}", tight_limits()),
    }
}

/// There is no thread for the pager, as `errno` says, and which limit may be the cause.
pub fn no_thread(errno: Errno) -> String {
    let text = format!("no thread for the pager, which needs four ({errno})");
    let group = "pids.max of the control group";
    match (errno, getrlimit(Resource::Nproc).current) {
        (Errno::AGAIN, Some(most)) => format!(
            "{text}; this user may have {most} processes and threads at a time: raise `ulimit -u`, \
             or else {group}"
        ),
        (Errno::AGAIN, None) => format!("{text}; too many processes and threads: raise {group}"),
        _ => text,
    }
}

/// Which of the other limits may be the cause, with the line that lifts them; empty if none is
/// tight.
fn tight_limits() -> String {
    let mut text = String::new();
    if let Some(most) = getrlimit(Resource::As).current {
        let mib = most >> 20;
        text += &format!("; address space is limited to {mib} MiB: raise `ulimit -v`");
    }
    if let Some(most) = getrlimit(Resource::Fsize).current {
        text += &format!("; files are limited to {most} bytes: raise `ulimit -f`");
    }
    text
}
