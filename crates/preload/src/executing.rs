//! What the ledger says of a program about to be executed: nothing, if it loads the agent, which
//! makes a ledger of its own.
//!
//! A child made by `vfork` has its parent's ledger before it, and that serves as well: it is a
//! file, read when all are over.
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;

use pagetide_pager::ledger::Ledger;
use pagetide_pager::ungoverned::Noted;

use crate::agent::{Agent, agent};
use crate::obstacle::{Verdict, judge_process};

/// Unless what is executed is another launcher's to govern.
fn governing(theirs: bool) -> Option<&'static Agent> {
    agent().filter(|_| !theirs)
}

fn note(ledger: &Ledger, pid: u32, verdict: &Verdict) -> Option<Noted> {
    match verdict {
        Verdict::Refuses(obstacle, name) => {
            Some(ledger.ungoverned.note(pid, *obstacle, name.bytes()))
        }
        Verdict::Takes | Verdict::Unknown => None,
    }
}

/// While this lives, the ledger says that this process executes a program that cannot be governed;
/// it is dropped where that failed.
pub struct Executing {
    noted: Option<(&'static Ledger, Noted)>,
    unknown: Option<&'static Ledger>,
}

impl Executing {
    /// For what `judge` looks at, given the agent's file.
    pub fn begin(theirs: bool, judge: impl FnOnce(&CStr) -> Verdict) -> Executing {
        let mut executing = Executing {
            noted: None,
            unknown: None,
        };
        let Some(agent) = governing(theirs) else {
            return executing;
        };
        let (ledger, pid) = (agent.pager.ledger, std::process::id());
        let verdict = judge(&agent.config.agent);
        executing.noted = note(ledger, pid, &verdict).map(|noted| (ledger, noted));
        // Of a file that cannot be judged, a ledger that is not made will tell; but not in a
        // child's memory, which is its parent's.
        if matches!(verdict, Verdict::Unknown) && ledger.pid.load(Relaxed) == pid {
            ledger.executing.store(1, Relaxed);
            executing.unknown = Some(ledger);
        }
        executing
    }
}

impl Drop for Executing {
    fn drop(&mut self) {
        if let Some((ledger, noted)) = self.noted {
            ledger.ungoverned.withdraw(noted);
        }
        if let Some(ledger) = self.unknown {
            ledger.executing.store(0, Relaxed);
        }
    }
}

/// A program that `posix_spawn` executes, of which it is known afterwards that it could and in
/// which process.
pub struct Spawned {
    judged: Option<(&'static Agent, Verdict)>,
    pid: libc::pid_t,
}

impl Spawned {
    /// For what `judge` looks at, given the agent's file. Before: the program may remove its own
    /// file.
    pub fn begin(theirs: bool, judge: impl FnOnce(&CStr) -> Verdict) -> Spawned {
        Spawned {
            judged: governing(theirs).map(|agent| (agent, judge(&agent.config.agent))),
            pid: 0,
        }
    }

    /// Where the process ID is to be put: where the caller wants it, if it does.
    pub fn place(&mut self, wanted: *mut libc::pid_t) -> *mut libc::pid_t {
        if wanted.is_null() {
            &raw mut self.pid
        } else {
            wanted
        }
    }

    /// Process `pid` executes it.
    pub fn started_as(self, pid: libc::pid_t) {
        let Some((agent, verdict)) = self.judged else {
            return;
        };
        let verdict = match verdict {
            // Named from a directory that the new process only has changed to.
            Verdict::Unknown => judge_process(pid as u32, &agent.config.agent),
            known => known,
        };
        note(agent.pager.ledger, pid as u32, &verdict);
    }
}
