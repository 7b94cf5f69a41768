//! `pagetide run --lock`: the program's memory never goes to swap. There is no pager; the agent
//! locks all memory when it is loaded.
use std::ffi::OsString;
use std::path::Path;

use rustix::process::{Resource, getrlimit, setrlimit};

use super::inherited::Inherited;
use super::{cannot_wait, spawn, wait};
use crate::agent;
use crate::args::{LockMode, Run};
use crate::exit::Failure;

/// Runs the program with its memory locked and returns the code to exit with.
///
/// Whether the lock limit suffices is known only where the program's libraries are mapped: address
/// space counts in full, touched or not. So it is the agent that says, before `main`, with the
/// report of what was needed.
pub fn run(
    mode: LockMode,
    file: &Path,
    options: &Run,
    inherited: &Inherited,
) -> Result<u8, Failure> {
    raise_limit();
    let agent = agent::find()?;
    let mode = match mode {
        LockMode::OnFault => "on-fault",
        LockMode::Now => "now",
    };
    let environment: [(&'static str, OsString); 3] = [
        (
            "LD_PRELOAD",
            agent::preload_list(&agent, std::env::var_os("LD_PRELOAD")),
        ),
        ("PAGETIDE_PRELOAD", agent.into()),
        // The agent ends the program if it cannot be locked; a descendant (another parent than this
        // process) is only told of.
        (
            "PAGETIDE_LOCK",
            format!("{mode}:{}", std::process::id()).into(),
        ),
    ];
    let signals = spawn::take_over_signals(inherited).map_err(|error| cannot_wait(&error))?;
    let child = spawn::spawn(file, &options.command, &environment, inherited)?;
    let ended = wait::wait(child, &signals, None, || {}).map_err(|error| cannot_wait(&error))?;
    Ok(ended.code())
}

/// Raises the soft lock limit to the hard one, which needs no privilege. The program inherits it.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Memlock);
    limit.current = limit.maximum;
    // Refused only where it was as high already.
    let _ = setrlimit(Resource::Memlock, limit);
}
