//! Going on in the background: the same command again as a process of its own, which says when
//! everything is set up.
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use crate::exit::{Exit, Failure};

/// Starts the background process: this command, named by the words `command`, with
/// `--in-background`. Returns when it has set up everything, with the line it says then (its
/// process ID), or with the code it failed with.
pub fn start(command: &[&str]) -> Result<Result<Started, u8>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("the background process cannot be started ({error})"),
        )
    };
    let program = std::env::current_exe().map_err(failed)?;
    let last = command.last().copied().unwrap_or_default();
    let mut child = Command::new(program)
        .args(command)
        .arg("--in-background")
        .args(std::env::args_os().skip_while(|word| word != last).skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(failed)?;
    }
    if !line.is_empty() {
        return Ok(Ok(Started { line, child }));
    }
    // It ended instead, and has said why.
    let status = child.wait().map_err(failed)?;
    Ok(Err(status
        .code()
        .map_or(Exit::Failed.code(), |code| code as u8)))
}

/// A background process that is ready.
pub struct Started {
    /// What it said: its process ID, and the end of the line.
    pub line: String,
    child: Child,
}

impl Started {
    /// Ends a process that nobody can be told of.
    pub fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the background process: tells the one that started it its process ID, and the person there
/// what it does, and lets go of their terminal.
pub fn ready(what: &str) -> Result<(), Failure> {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{what}");
    super::print(&format!("{}\n", std::process::id()))?;
    if let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    // The directory it was started in can be unmounted.
    let _ = std::env::set_current_dir("/");
    Ok(())
}
