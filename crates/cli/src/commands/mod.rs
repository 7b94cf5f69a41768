//! The small commands, one a file.
pub mod bench;
pub mod limit;
pub mod lock;
pub mod locks;
pub mod pages;
pub mod ps;
pub mod residency;
pub mod snapshot;
pub mod stat;
pub mod store;

use std::io::Write as _;

use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::governed::{self, Governed};

/// The living governed process `pid`, or an error that says how to list them.
pub fn find(pid: u32) -> Result<Governed, Failure> {
    governed::all().into_iter().find(|process| process.pid == pid).ok_or_else(|| {
        Failure::new(
            Exit::Failed,
            format!("process {pid} is not one of Pagetide's that you may see; list them with `pagetide ps`"),
        )
    })
}

/// Prints a value as JSON on a line of its own.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Prints to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(Exit::Failed, format!("stdout cannot be written ({error})")))
}
