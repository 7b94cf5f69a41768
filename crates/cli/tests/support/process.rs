//! Runs a program in a process group of its own, with a time limit, and keeps what it said.
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::patience::scaled;
use super::stuck::{Progress, describe_group};

/// How many times its limit a program may take whose counters move.
const PATIENCE: u32 = 2;

/// How a program ended and what it said.
pub struct Outcome {
    pub what: String,
    pub status: Option<ExitStatus>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub elapsed: Duration,
    /// If the time limit ended it: what its processes were doing.
    stuck: String,
}

impl Outcome {
    /// Exit code; 128 + signal when a signal ended it; `None` when the time limit did.
    pub fn code(&self) -> Option<i32> {
        self.status.map(|status| {
            status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
        })
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Everything a reader of a failed test needs.
    pub fn describe(&self) -> String {
        let end = match (self.status, self.code()) {
            (None, _) => format!("was killed, because {}", self.stuck),
            (Some(status), _) if status.signal().is_some() => {
                format!("died of signal {}", status.signal().unwrap_or(0))
            }
            (_, code) => format!("exited with {}", code.unwrap_or(-1)),
        };
        format!(
            "`{}` {end} after {:.1} s\n--- stdout ---\n{}--- stderr ---\n{}---",
            self.what,
            self.elapsed.as_secs_f64(),
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }

    /// Panics with everything that was said unless the program exited with `code`.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert!(
            self.code() == Some(code),
            "expected exit code {code}: {}",
            self.describe()
        );
        self
    }

    /// Panics with everything that was said unless `part` was, on stderr.
    #[track_caller]
    pub fn expect_told(&self, part: &str) -> &Self {
        assert!(
            self.stderr_text().contains(part),
            "expected '{part}' on stderr: {}",
            self.describe()
        );
        self
    }
}

fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(6000)..]);
    if text.is_empty() || text.ends_with('\n') {
        text.into_owned()
    } else {
        format!("{text}\n")
    }
}

/// A program that is running, in a process group of its own.
pub struct Running {
    what: String,
    child: Child,
    output: [Receiver<Vec<u8>>; 2],
    started: Instant,
    done: bool,
}

fn drain(mut source: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut block = [0; 65536];
        while let Ok(count @ 1..) = source.read(&mut block) {
            if send.send(block[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}

/// Starts `command` with `input` as its standard input.
pub fn start(command: &mut Command, input: &[u8]) -> Running {
    let mut words: Vec<String> = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    let what = words.join(" ");
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start `{what}`: {error}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_vec();
    // A program that ends before it has read everything closes the pipe: that is its right.
    thread::spawn(move || stdin.write_all(&input).unwrap_or(()));
    let output = [
        drain(child.stdout.take().expect("piped")),
        drain(child.stderr.take().expect("piped")),
    ];
    Running {
        what,
        child,
        output,
        started: Instant::now(),
        done: false,
    }
}

impl Running {
    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends `signal` (as `kill` names it) to the process group that was started and to no other.
    pub fn signal_group(&self, signal: &str) {
        // Not `-TERM --`: dash takes the dashes for a number.
        let group = format!("kill -s {signal} -- -{}", self.child.id());
        // A group that has already gone is what was wanted.
        Command::new("sh")
            .args(["-c", &group])
            .stderr(Stdio::null())
            .status()
            .ok();
    }

    /// How it ended, if it does so before `deadline`.
    fn ended_by(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            let status = self.child.try_wait();
            let status = status.expect("waiting for a child of our own");
            if status.is_some() || Instant::now() >= deadline {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has ended and every descendant has closed its output; kills the group when
    /// `limit` (which a slow system stretches) is over. A group that is slow and not stuck is given
    /// `PATIENCE` times as long.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let limit = scaled(limit);
        let mut deadline = self.started + limit;
        let mut status = self.ended_by(deadline);
        let mut stuck = String::new();
        while status.is_none() {
            let progress = Progress::of_group(self.pid());
            if progress.is_moving() && deadline < self.started + limit * PATIENCE {
                deadline += limit / 2;
                status = self.ended_by(deadline);
                continue;
            }
            let group = describe_group(self.pid());
            stuck = format!("it did not end in time; {progress}\n{group}");
            self.signal_group("KILL");
            self.child.wait().ok();
            break;
        }
        let deadline = deadline.max(Instant::now() + Duration::from_secs(2));
        let mut complete = true;
        let [stdout, stderr] = [0, 1].map(|index| {
            let mut bytes = Vec::new();
            loop {
                match self.output[index]
                    .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                {
                    Ok(block) => bytes.extend(block),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        complete = false;
                        break;
                    }
                }
            }
            bytes
        });
        if !complete {
            if let Some(status) = status {
                let group = describe_group(self.pid());
                stuck = format!("it ended ({status}), but its output was kept open\n{group}");
            }
            self.signal_group("KILL");
        }
        self.done = true;
        let status = status.filter(|_| complete);
        Outcome {
            what: self.what.clone(),
            status,
            stdout,
            stderr,
            elapsed: self.started.elapsed(),
            stuck,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.done {
            self.signal_group("KILL");
            self.child.wait().ok();
        }
    }
}

/// Runs `command` with an empty standard input for at most `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    start(command, b"").finish(limit)
}
