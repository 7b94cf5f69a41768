//! Starts a worker, waits for it and reads what it found.
use std::io::{Error, Read, Result};
use std::process::{Command, Stdio};

use crate::undo;
use crate::worker::{Findings, Parameters};

/// The words after the program's name that make this executable a worker.
pub fn worker_words(parameters: &Parameters) -> Vec<String> {
    let mut words = vec!["worker".to_owned()];
    words.extend(parameters.to_words());
    words
}

/// Runs `command`, which must print [`Findings`] as JSON, to its end.
pub fn findings(command: &mut Command) -> Result<Findings> {
    findings_of(command)
}

/// Runs `command`, which must print a value as JSON, to its end.
pub fn findings_of<T: serde::de::DeserializeOwned>(command: &mut Command) -> Result<T> {
    let mut child = undo::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit()),
    )?;
    let mut printed = String::new();
    let mut stdout = child
        .stdout
        .take()
        .ok_or_else(|| Error::other("the worker has no output"))?;
    let read = stdout.read_to_string(&mut printed);
    let status = child.wait()?;
    undo::forget_process();
    read?;
    if !status.success() {
        return Err(Error::other(format!(
            "`{}` ended with {status}",
            command.get_program().display()
        )));
    }
    serde_json::from_str(&printed)
        .map_err(|error| Error::other(format!("the worker printed `{}`: {error}", printed.trim())))
}

/// A worker in a region of its own.
pub fn region(parameters: &Parameters) -> Result<Findings> {
    findings(Command::new(std::env::current_exe()?).args(worker_words(parameters)))
}
