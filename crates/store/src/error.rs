//! The one error type of all stores. Kinds say what the caller can do; the text says what happened
//! to what.

use thiserror::Error;

/// What went wrong, by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No room (disk full, `max` reached, out of memory). Later may do: something can be deleted.
    Full,
    /// A passing failure: trying again may do.
    Temporary,
    /// A passing failure that has not passed for as long as the store goes on trying: it was tried
    /// often enough.
    Away,
    /// The device or server failed in a way that trying again will not mend by itself.
    Io,
    /// The bytes read are not the bytes written. Never handed out.
    Corrupt,
    /// The store's URI or its place on this system is wrong.
    Config,
}

/// An error of a store: kind, what was being done, and the cause.
#[derive(Debug, Clone, Error)]
#[error("{context}{}", cause.as_ref().map(|c| format!(": {c}")).unwrap_or_default())]
pub struct StoreError {
    /// What the caller can do about it.
    pub kind: ErrorKind,
    /// What was being done, with the values involved.
    pub context: String,
    /// The operating system's or library's own words.
    pub cause: Option<String>,
}

impl StoreError {
    /// An error of `kind` while doing what `context` says.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> StoreError {
        StoreError {
            kind,
            context: context.into(),
            cause: None,
        }
    }

    /// The same with a cause.
    pub fn with_cause(mut self, cause: impl ToString) -> StoreError {
        self.cause = Some(cause.to_string());
        self
    }
}
