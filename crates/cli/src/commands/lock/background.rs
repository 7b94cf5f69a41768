//! Going on in the background: the same command again as a process of its own, which says when
//! everything is set up.
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::exit::{Exit, Failure};

/// Starts the background process, and returns when it has everything locked or has failed. Prints
/// what that says: its process ID.
pub fn start() -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("the background process cannot be started ({error})"),
        )
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(["lock", "--in-background"])
        .args(
            std::env::args_os()
                .skip_while(|word| word != "lock")
                .skip(1),
        )
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
        // A background process that nobody can be told of is ended.
        super::super::print(&line).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        return Ok(Exit::Ok.code());
    }
    // It ended instead, and has said why.
    let status = child.wait().map_err(failed)?;
    Ok(status.code().map_or(Exit::Failed.code(), |code| code as u8))
}

/// In the background process: tells the one that started it its process ID, and the person there
/// what it does, and lets go of their terminal.
pub fn ready(what: &str) -> Result<(), Failure> {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{what}");
    let told = writeln!(std::io::stdout(), "{}", std::process::id());
    told.and_then(|()| std::io::stdout().flush())
        .map_err(|error| Failure::new(Exit::Failed, format!("stdout: {error}")))?;
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
