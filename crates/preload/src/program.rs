//! What the program's first thread is about, as the kernel tells it: whether any of the program's
//! threads is left, and with which privileges they run.
use std::os::fd::OwnedFd;

use pagetide_kernel::procfs::status::Status;
use pagetide_kernel::procfs::{self, stat};

use crate::agent::{Agent, Threads};
use crate::credentials::{self, Credentials};

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
        let threads = Threads::get().running();
        let Some(status) = self.read_status() else {
            return;
        };
        // The pager's threads would keep a process alive whose own threads have all ended, each by
        // itself.
        let is_over = status
            .field("State")
            .is_some_and(|state| state.starts_with('Z'))
            && status.field("Threads").and_then(|count| count.parse().ok()) == Some(threads + 1);
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

    fn read_status(&mut self) -> Option<Status<'_>> {
        let file = self.status.as_ref()?;
        procfs::read_all(file, &mut self.text).ok()?;
        std::str::from_utf8(&self.text).ok().map(Status)
    }

    /// What the first thread ended with: the process's code, if each of its threads ends by itself.
    fn first_threads_code(&mut self) -> i32 {
        let file = self.stat.as_ref();
        let read = file.and_then(|file| procfs::read_all(file, &mut self.text).ok());
        let status = read.and_then(|()| stat::exit_status(&self.text));
        status.unwrap_or(0) >> 8 & 0xFF
    }
}
