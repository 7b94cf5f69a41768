//! What the program's first thread is about, as the kernel tells it: whether any of the program's
//! threads is left, and with which privileges they run.
use std::os::fd::OwnedFd;

use pagetide_kernel::procfs;
use rustix::io::Errno;

use crate::credentials::{self, Credentials};
use crate::start::{self, Agent};

/// The files of `/proc` that tell it, opened while they can be.
pub struct Program {
    status: Option<OwnedFd>,
    stat: Option<OwnedFd>,
    text: Vec<u8>,
    credentials: Option<Credentials>,
}

impl Program {
    /// Before the program runs, with its privileges as they are then.
    pub fn open() -> Program {
        let mut program = Program {
            status: procfs::open_self(c"/proc/self/status").ok(),
            stat: procfs::open_self(c"/proc/self/stat").ok(),
            text: Vec::new(),
            credentials: None,
        };
        program.credentials = program.read_status().and_then(Credentials::from_status);
        program
    }

    /// Ends the process if no thread of the program is left, and has the agent's threads follow it
    /// when it has given up privileges.
    pub fn look(&mut self, agent: &Agent) {
        let threads = start::threads_running();
        let Some(status) = self.read_status() else {
            return;
        };
        // The pager's threads would keep a process alive whose own threads have all ended, each by
        // itself.
        let is_over = field(status, "State").is_some_and(|state| state.starts_with('Z'))
            && field(status, "Threads").and_then(|count| count.parse().ok()) == Some(threads + 1);
        let now = Credentials::from_status(status);
        if is_over {
            // SAFETY: ends the process, as the end of its last thread does where there is no agent.
            unsafe { libc::_exit(self.first_threads_code()) };
        }
        if now.is_some() && now != self.credentials {
            self.credentials.clone_from(&now);
            credentials::follow(agent, now);
        }
    }

    fn read_status(&mut self) -> Option<&str> {
        let file = self.status.as_ref()?;
        read_all(file, &mut self.text).ok()?;
        std::str::from_utf8(&self.text).ok()
    }

    /// What the first thread ended with: the process's code, if each of its threads ends by itself.
    fn first_threads_code(&mut self) -> i32 {
        let file = self.stat.as_ref();
        let read = file.and_then(|file| read_all(file, &mut self.text).ok());
        let text = read.and_then(|()| std::str::from_utf8(&self.text).ok());
        let last = text.and_then(|text| text.trim_end().rsplit(' ').next());
        let status: i32 = last.and_then(|word| word.parse().ok()).unwrap_or(0);
        status >> 8 & 0xFF
    }
}

/// The value of a line `NAME:<tab>VALUE`.
pub fn field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    status.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.trim())
    })
}

/// Reads a file of `/proc` from its start.
fn read_all(file: &OwnedFd, text: &mut Vec<u8>) -> Result<(), Errno> {
    const STEP: usize = 4096;
    let mut len = 0;
    loop {
        text.resize(len + STEP, 0);
        let count = rustix::io::pread(file, &mut text[len..], len as u64)?;
        len += count;
        if count == 0 {
            text.truncate(len);
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Name:\tUid: 5\nState:\tZ (zombie)\nThreads:\t5\nUid:\t1\t2\t3\t4\n";
        assert_eq!(field(status, "State"), Some("Z (zombie)"));
        assert_eq!(field(status, "Threads"), Some("5"));
        assert_eq!(field(status, "Uid"), Some("1\t2\t3\t4"));
        assert_eq!(field(status, "Ui"), None);
    }
}
