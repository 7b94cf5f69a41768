//! `pagetide run --lock`: the program's memory never goes to swap. There is no pager; the agent
//! locks all memory when it is loaded.
use std::path::Path;

use pagetide_pager::protocol::environment::LockAll;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::inherited::Inherited;
use super::{spawn, wait};
use crate::agent;
use crate::args::{LockMode, Run};
use crate::exit::Failure;

/// Runs the program with its memory locked and returns the code to exit with; does not return if it
/// becomes the program.
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
    // The agent ends the program if it cannot be locked; a descendant is only told of.
    let wish = LockAll {
        on_fault: matches!(mode, LockMode::OnFault),
        launcher: std::process::id() as i32,
        exec: options.exec,
        agent: agent::find()?,
    };
    let environment = agent::preloaded(&wish.agent, wish.variables());
    if options.exec {
        return Err(spawn::exec(file, &options.command, &environment, inherited));
    }
    let signals = spawn::take_over_signals(inherited).map_err(wait::failure)?;
    let child = spawn::spawn(file, &options.command, &environment, inherited)?;
    let ended = wait::wait(child, &signals, None, || {}).map_err(wait::failure)?;
    Ok(ended.code())
}

/// Raises the soft lock limit to the hard one, which needs no privilege. The program inherits it.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Memlock);
    limit.current = limit.maximum;
    // Refused only where it was as high already.
    let _ = setrlimit(Resource::Memlock, limit);
}
