//! Exit codes: declared here once, rendered in `--help` and the man page.
use std::fmt::Write as _;
use std::process::ExitCode;

use pagetide_pager::protocol::refusal::Cause;

/// The codes of commands that ask governed processes.
pub const OF_PROCESSES: &str =
    "Exit codes: 0 done; 1 it could not be done, the message says why; 2 wrong arguments.";
/// Those of `doctor`.
pub const OF_DOCTOR: &str = "Exit codes: 0 run works fully; 1 it works, degraded; \
    2 wrong arguments; 3 it does not work; 4 stdout cannot be written.";
/// Those of `snapshot` and what is below it.
pub const OF_SNAPSHOTS: &str = "Exit codes: 0 done; 1 diff: pages differ, or the two cannot be \
    compared; 2 wrong arguments; \
     4 a file cannot be opened, is no snapshot or is not whole, or stdout or the result of merge \
     cannot be written; 5 a block of a file is damaged. Of several failures the highest code \
     counts.";
/// Those of `store` and what is below it.
pub const OF_STORES: &str = "Exit codes: 0 done; 1 stdout cannot be written; 2 wrong arguments; \
    4 the store or its server cannot be reached or used.";
/// Those of `serve` and what is below it.
pub const OF_SERVE: &str = "Exit codes: 0 ended by a signal; 1 it cannot listen on a socket; 2 \
    wrong arguments; \
     4 the image or the working set cannot be opened, or the recorded one cannot be saved; 5 the \
     source of the pages did not answer at the end, and clients that miss pages were given up.";
/// Those of `serve criu`.
pub const OF_SERVE_CRIU: &str = "Exit codes: 0 every task has all its pages, or is gone; 1 the \
    restore failed, or it cannot listen; 2 wrong arguments; \
     4 an image or the page server cannot be used; 5 pages were lost.";
/// Those of `pack`.
pub const OF_PACK: &str = "Exit codes: 0 done; 1 the store is full; 2 wrong arguments; \
    4 the store, an image or stdout cannot be used; 5 pages that were packed before are lost.";
/// Those of `lock`.
pub const OF_LOCK: &str = "Exit codes: 0 done, or ended by a signal; 1 it could not be done; 2 \
    wrong arguments; \
     3 memory cannot be locked, the message has the fix; 4 a file cannot be opened or read.";
/// Those of `residency`.
pub const OF_RESIDENCY: &str = "Exit codes: 0 done; 1 stdout cannot be written; 2 wrong arguments; \
    4 a file cannot be opened or looked at.";
/// Those of `locks`.
pub const OF_LOCKS: &str = "Exit codes: 0 done; 1 there is no such process, \
    or stdout cannot be written; 2 wrong arguments; 3 its memory may not be looked at.";

/// Why the command ended, where it was not the governed program that said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Ok = 0,
    /// It could not be done, by the commands that ask a process; `doctor`: `run` works, degraded;
    /// `snapshot diff`: pages differ.
    Failed = 1,
    /// A wrong argument.
    Usage = 2,
    /// This system or this program cannot be paged, or the memory cannot be locked or looked at.
    CannotPage = 3,
    /// The store, its server or a file cannot be opened.
    Store = 4,
    /// Bytes the program wrote were lost, or the budget could not be held, and it was ended for it;
    /// a block of a snapshot is damaged.
    DataLost = 5,
    /// The program was found and may not be executed.
    NotExecutable = 126,
    /// The program was not found.
    NotFound = 127,
}

impl Exit {
    const MEANINGS: [(Exit, &str); 8] = [
        (Exit::Ok, "done (run: the program exited with 0)"),
        (
            Exit::Failed,
            "ps, stat, limit, top, metrics, locks, serve: could not be done; pack: the store is \
             full; doctor: run works, degraded; snapshot diff: pages differ; others but run: \
             stdout cannot be written",
        ),
        (Exit::Usage, "wrong arguments"),
        (
            Exit::CannotPage,
            "this system or this program cannot be paged, locked or looked at; the message has \
             the fix",
        ),
        (
            Exit::Store,
            "the store, its server, or a file cannot be opened or is not what it should be; \
             doctor, pack, snapshot: stdout cannot be written",
        ),
        (
            Exit::DataLost,
            "data were lost, or the budget could not be held; snapshot: a block is damaged",
        ),
        (Exit::NotExecutable, "the program may not be executed"),
        (Exit::NotFound, "the program was not found"),
    ];

    /// The code the operating system sees.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The table of codes for help and man page.
    pub fn table() -> String {
        let mut text = String::from("Exit codes:\n");
        for (exit, meaning) in Exit::MEANINGS {
            let _ = writeln!(text, "  {:>3}  {meaning}", exit.code());
        }
        text.push_str(
            "  Otherwise run exits with the program's own code, or 128+N when signal N killed it.",
        );
        text
    }
}

impl From<Cause> for Exit {
    fn from(cause: Cause) -> Exit {
        match cause {
            Cause::System => Exit::CannotPage,
            Cause::Store => Exit::Store,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// A message for the person at the terminal and the code to exit with.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The code to exit with.
    pub exit: Exit,
    /// What failed, with the value, what was expected and the next step.
    pub message: String,
}

impl Failure {
    /// A failure with its code and message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure {
            exit,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_exits_as_the_launcher_will() {
        for cause in [Cause::System, Cause::Store] {
            assert_eq!(Exit::from(cause).code(), cause.exit_status());
        }
    }

    #[test]
    fn every_code_is_in_the_table_once() {
        let table = Exit::table();
        for (exit, meaning) in Exit::MEANINGS {
            assert_eq!(
                table
                    .matches(&format!("{:>3}  {meaning}\n", exit.code()))
                    .count(),
                1,
                "{exit:?}"
            );
        }
    }
}
