//! Starts the processes that are measured and reads what they found: one JSON value in as an
//! argument, one out on stdout.
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::undo;

/// The words that make this executable a worker of some kind with `task`.
fn words(kind: &str, task: &impl Serialize) -> Result<[OsString; 3]> {
    let this = std::env::current_exe()?.into();
    Ok([this, kind.into(), serde_json::to_string(task)?.into()])
}

/// A worker by itself.
pub fn worker(kind: &str, task: &impl Serialize) -> Result<Command> {
    let [this, words @ ..] = words(kind, task)?;
    let mut command = Command::new(this);
    command.args(words);
    Ok(command)
}

/// A worker as an unmodified program under `pagetide run` with `options`.
pub fn under_run(
    pagetide: &Path,
    options: &[&str],
    kind: &str,
    task: &impl Serialize,
) -> Result<Command> {
    let mut command = Command::new(pagetide);
    command.arg("run").args(options).arg("--");
    command.args(words(kind, task)?);
    Ok(command)
}

/// A worker's side: reads its task.
pub fn task<T: DeserializeOwned>(text: &str) -> std::result::Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Runs `command` to its end, with what it printed.
pub fn output(command: &mut Command) -> Result<(ExitStatus, Vec<u8>)> {
    let child = undo::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit()),
    )?;
    let output = child.wait_with_output();
    undo::forget_process();
    output.map(|output| (output.status, output.stdout))
}

/// Runs `command`, which must print a value as JSON, to its end.
pub fn findings<T: DeserializeOwned>(command: &mut Command) -> Result<T> {
    let (status, printed) = output(command)?;
    if !status.success() {
        let program = command.get_program().display();
        return Err(Error::other(format!("`{program}` ended with {status}")));
    }
    serde_json::from_slice(&printed).map_err(|error| {
        let printed = String::from_utf8_lossy(&printed);
        Error::other(format!("the worker printed `{}`: {error}", printed.trim()))
    })
}

/// The `pagetide` command given, or the one beside this executable.
pub fn find_command(given: Option<&Path>) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("pagetide");
    let path = given.map_or(beside, Path::to_owned);
    if path.is_file() {
        return Ok(path);
    }
    let advice =
        "build it with `cargo build --release --workspace`, or name it with --pagetide PATH";
    Err(Error::new(
        ErrorKind::NotFound,
        format!("there is no {}: {advice}", path.display()),
    ))
}
