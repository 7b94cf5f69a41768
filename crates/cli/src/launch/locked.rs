//! `pagetide run --lock`: the program's memory never goes to swap. There is no pager; the agent locks all memory when it is loaded.
use std::ffi::OsString;
use std::path::Path;

use pagetide::lock::LimitReport;
use pagetide_kernel::limits::LockLimits;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::inherited::Inherited;
use super::{cannot_wait, spawn, wait};
use crate::agent;
use crate::args::{LockMode, Run};
use crate::exit::{Exit, Failure};

/// What a process needs at the very least: the address space of a small program, its libraries and its first stack.
const LEAST_BYTES: u64 = 16 << 20;

/// Runs the program with its memory locked and returns the code to exit with.
pub fn run(
    mode: LockMode,
    file: &Path,
    options: &Run,
    inherited: &Inherited,
) -> Result<u8, Failure> {
    raise_limit();
    let limits = LockLimits::read();
    // Address space counts in full, touched or not: mlockall charges all of it.
    if limits.left().is_some_and(|left| left < LEAST_BYTES) {
        return Err(Failure::new(
            Exit::CannotPage,
            format!(
                "--lock: the program's memory cannot be locked\n{}",
                LimitReport::new(LEAST_BYTES)
            ),
        ));
    }
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
        // The agent ends the program if it cannot be locked; a descendant (another parent than this process) is only told of.
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
