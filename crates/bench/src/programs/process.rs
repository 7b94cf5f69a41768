//! One run of a program from its start to its end: time, processor time, output, and how it ended.
#![allow(unsafe_code)] // asks what one child used, which the standard library does not tell
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use xxhash_rust::xxh3::Xxh3;

use super::watch::{Seen, watch};
use crate::undo;

/// How a run went.
#[derive(Debug)]
pub struct Ended {
    /// The program's, or its client's where only that went wrong.
    pub status: ExitStatus,
    /// From its start to its end.
    pub wall_seconds: f64,
    /// Of all its threads, and of all processes it waited for.
    pub cpu_seconds: f64,
    /// Digest and length of what it, or its client, printed.
    pub output: String,
    /// What was seen from outside.
    pub seen: Seen,
}

/// How a run is to be done.
#[derive(Debug)]
pub struct Order<'a> {
    /// The program.
    pub command: Command,
    /// What talks to it, if it is a server.
    pub client: Option<Command>,
    /// Where it writes what goes wrong.
    pub errors: &'a Path,
    /// When it is ended.
    pub limit: Duration,
    /// How often to look at its memory, if at all.
    pub looks: Option<Duration>,
}

/// Does the run.
pub fn run(mut order: Order<'_>) -> Result<Ended> {
    let errors = File::create(order.errors)?;
    let serves = order.client.is_some();
    let printed = || {
        if serves {
            Stdio::null()
        } else {
            Stdio::piped()
        }
    };
    for command in [Some(&mut order.command), order.client.as_mut()] {
        let Some(command) = command else { continue };
        // The same order of hash tables and of words in every run.
        command.env("LC_ALL", "C").env("PYTHONHASHSEED", "0");
        command.stdin(Stdio::null()).stderr(errors.try_clone()?);
    }
    let begun = Instant::now();
    let mut child = undo::spawn(order.command.stdout(printed()))?;
    let group = Pid::from_child(&child);
    let (tell, told) = channel();
    let (limit, looks) = (order.limit, order.looks);
    let watcher = std::thread::spawn(move || watch(group, limit, looks, &told));
    let output = match &mut order.client {
        None => Ok((child.stdout.take().map_or_else(String::new, digest), None)),
        Some(client) => talk(client, group),
    };
    if output.is_err() {
        kill_process_group(group, Signal::KILL).ok();
    }
    let waited = wait(&child);
    let wall_seconds = begun.elapsed().as_secs_f64();
    undo::forget_process();
    drop(tell);
    let seen = watcher.join().unwrap_or_default();
    let ((status, cpu_seconds), (output, client)) = (waited?, output?);
    Ok(Ended {
        status: client.filter(|_| status.success()).unwrap_or(status),
        wall_seconds,
        cpu_seconds,
        output,
        seen,
    })
}

/// Runs a server's client to its end; the server is ended if it fails.
fn talk(client: &mut Command, group: Pid) -> Result<(String, Option<ExitStatus>)> {
    let named = |error: Error| Error::new(error.kind(), format!("the client: {error}"));
    client.process_group(group.as_raw_nonzero().get());
    let mut client = client.stdout(Stdio::piped()).spawn().map_err(named)?;
    let output = client.stdout.take().map_or_else(String::new, digest);
    let status = client.wait().map_err(named)?;
    if !status.success() {
        // The server may be what failed, and be gone.
        kill_process_group(group, Signal::TERM).ok();
    }
    Ok((output, Some(status)))
}

/// Reads all there is.
fn digest(mut from: impl Read) -> String {
    let mut hash = Xxh3::new();
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return format!("{:016x}, {bytes} bytes", hash.digest()),
            Ok(read) => {
                hash.update(&buffer[..read]);
                bytes += read;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return format!("unreadable after {bytes} bytes: {error}"),
        }
    }
}

/// Waits for `child` and says what it and those it waited for used of the processors.
fn wait(child: &Child) -> Result<(ExitStatus, f64)> {
    let mut status = 0;
    // SAFETY: plain numbers, for which zeros are values.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both places are ours and as large as they must be; the child is ours, and nobody
        // else waits for it.
        let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
        match (waited, Error::last_os_error()) {
            (-1, error) if error.kind() == ErrorKind::Interrupted => {}
            (-1, error) => return Err(error),
            _ => break,
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let used = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok((ExitStatus::from_raw(status), used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_told_apart() {
        let [a, same, b] = ["out", "out", "oua"].map(|text| digest(text.as_bytes()));
        assert_eq!(a, same);
        assert_ne!(a, b);
        assert!(a.ends_with(", 3 bytes"), "{a}");
    }
}
