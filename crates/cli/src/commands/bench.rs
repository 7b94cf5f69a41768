//! `pagetide bench`: the measuring program beside this one takes over.
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::exit::{Exit, Failure};

const PROGRAM: &str = "pagetide-bench";

/// Becomes `pagetide-bench` with `arguments`: the one beside this executable, else the one in PATH.
/// Returns only if there is none.
pub fn bench(arguments: &[OsString]) -> Result<u8, Failure> {
    let beside = std::env::current_exe()
        .map(|own| own.with_file_name(PROGRAM))
        .ok()
        .filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(arguments).exec();
    Err(Failure::new(
        Exit::NotFound,
        format!(
            "{} cannot be started: {error}; `make build` makes it, `make install` puts it beside \
             pagetide",
            program.display()
        ),
    ))
}
