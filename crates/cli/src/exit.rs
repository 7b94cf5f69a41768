//! Exit codes: declared here once, rendered in `--help` and the man page.
use std::fmt::Write as _;
use std::process::ExitCode;

/// Why the command ended, where it was not the governed program that said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Ok = 0,
    /// `ps`, `stat`, `limit`, `top`: it could not be done; `doctor`: `run` works, degraded.
    Failed = 1,
    /// A wrong argument.
    Usage = 2,
    /// This system or this program cannot be paged.
    CannotPage = 3,
    /// The store cannot be opened.
    Store = 4,
    /// Bytes the program wrote were lost, and it was ended for it.
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
            "ps, stat, limit, top, locks: could not be done; doctor: run works, degraded",
        ),
        (Exit::Usage, "wrong arguments"),
        (
            Exit::CannotPage,
            "this system or this program cannot be paged or locked; the message has the fix",
        ),
        (Exit::Store, "the store, or a file, cannot be opened"),
        (
            Exit::DataLost,
            "data were lost and the program was ended; the message says which",
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
