//! Why a program could not be put under a pager.
use std::fmt;

/// What is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// This system, or a limit of this process.
    System,
    /// The store, which cannot be opened.
    Store,
}

impl Cause {
    /// What the program that the launcher started exits with, before any of it runs.
    pub const fn exit_status(self) -> u8 {
        match self {
            Cause::System => 3,
            Cause::Store => 4,
        }
    }

    /// Of a program that was refused and exited with `status`.
    pub fn from_exit_status(status: u8) -> Cause {
        match status {
            4 => Cause::Store,
            _ => Cause::System,
        }
    }
}

/// Descriptors that launcher and agent are sure to have enough of, a remote store's connections
/// included.
pub const DESCRIPTORS: u64 = 64;

/// A limit of `most` descriptors is too low.
pub fn too_few_descriptors(most: u64) -> String {
    format!("descriptors are limited to {most}: `ulimit -n {DESCRIPTORS}` or more")
}

/// The cause, and what to say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is in the way.
    pub cause: Cause,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// The store cannot be opened.
    pub fn of_store(text: String) -> Refusal {
        let cause = Cause::Store;
        Refusal { cause, text }
    }
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        let cause = Cause::System;
        Refusal { cause, text }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_by_the_exit_status() {
        for cause in [Cause::System, Cause::Store] {
            assert_eq!(Cause::from_exit_status(cause.exit_status()), cause);
        }
        assert_eq!(Cause::from_exit_status(42), Cause::System);
    }
}
