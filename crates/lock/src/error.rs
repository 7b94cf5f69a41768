//! Why memory could not be locked, and the line that mends it.
//!
//! `Debug` of the errors prints what `Display` does: an error that `main` returns is shown by
//! `Debug`, and is to say there, too, what to do.
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pagetide_kernel::limits::LockLimits;
use rustix::io::Errno;

/// The lock limit and what was asked of it, in bytes, with the line that raises it for a shell, a
/// systemd unit and a container (its `Display`).
///
/// ```
/// use pagetide::lock::LimitReport;
///
/// let report = LimitReport::new(1 << 30);
/// if report.exceeds() {
///     eprintln!("{report}");
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReport {
    /// Bytes that the call would have locked beyond those that were.
    pub needed: u64,
    /// Locked by this process at the time (`VmLck`).
    pub in_use: u64,
    /// `RLIMIT_MEMLOCK`; `None` is unlimited.
    pub soft: Option<u64>,
    /// What the soft limit can be raised to without privilege.
    pub hard: Option<u64>,
    /// Whether the process has `CAP_IPC_LOCK`.
    pub capable: bool,
}

impl LimitReport {
    /// For a call that needs `needed` bytes more, as things are now.
    pub fn new(needed: u64) -> LimitReport {
        LimitReport::with(needed, LockLimits::read())
    }

    fn with(needed: u64, limits: LockLimits) -> LimitReport {
        LimitReport {
            needed,
            in_use: limits.in_use,
            soft: limits.soft,
            hard: limits.hard,
            capable: limits.capable,
        }
    }

    /// Whether the limit leaves no room for what is needed.
    pub fn exceeds(&self) -> bool {
        !self.capable
            && self
                .soft
                .is_some_and(|soft| self.in_use.saturating_add(self.needed) > (soft & !4095))
    }

    /// The least limit that would do, in KiB as `ulimit -l` and limits.conf take it.
    fn sufficient_kib(&self) -> u64 {
        self.in_use.saturating_add(self.needed).div_ceil(1024)
    }
}

impl fmt::Display for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |limit: Option<u64>| match limit {
            Some(bytes) => format!("{bytes} bytes"),
            None => "unlimited".to_owned(),
        };
        writeln!(
            f,
            "lock limit: {} bytes needed, {} in use (VmLck); RLIMIT_MEMLOCK soft {}, hard {}; \
             CAP_IPC_LOCK: {}",
            self.needed,
            self.in_use,
            limit(self.soft),
            limit(self.hard),
            if self.capable { "yes" } else { "no" }
        )?;
        let kib = self.sufficient_kib();
        if self
            .hard
            .is_none_or(|hard| hard >= self.in_use.saturating_add(self.needed))
        {
            writeln!(f, "  shell:     ulimit -l {kib}")?;
        } else {
            writeln!(
                f,
                "  shell:     sudo prlimit --pid $$ --memlock={0}:{0}   (for good: '* - memlock \
                 {kib}' in /etc/security/limits.d/memlock.conf, then log in again)",
                kib * 1024
            )?;
        }
        writeln!(
            f,
            "  systemd:   LimitMEMLOCK={}   (in [Service]; or AmbientCapabilities=CAP_IPC_LOCK)",
            kib * 1024
        )?;
        write!(
            f,
            "  container: --ulimit memlock={0}:{0}   (or --cap-add IPC_LOCK)",
            kib * 1024
        )
    }
}

/// A lock call that failed. Where the limit was the reason, its message ends with the lines that
/// raise it.
///
/// ```
/// use pagetide::lock::{Errno, LockFlags, mlock2};
///
/// let error = mlock2(std::ptr::null(), 4096, LockFlags::default()).unwrap_err();
/// assert_eq!(error.errno(), Errno::INVAL);
/// assert!(error.to_string().contains("expected LOCKED (1) or ONFAULT (2)"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LockError {
    call: &'static str,
    errno: Errno,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    Limit(LimitReport),
    /// A part of the range is not mapped.
    Hole,
    /// The flags, and what was expected.
    Flags(u32, &'static str),
    Other,
}

impl LockError {
    pub(super) fn flags(call: &'static str, flags: u32, expected: &'static str) -> LockError {
        LockError {
            call,
            errno: Errno::INVAL,
            cause: Cause::Flags(flags, expected),
        }
    }

    pub(super) fn plain(call: &'static str, errno: Errno) -> LockError {
        LockError {
            call,
            errno,
            cause: Cause::Other,
        }
    }

    /// Part of the range is not mapped.
    pub(super) fn hole(call: &'static str) -> LockError {
        LockError {
            call,
            errno: Errno::NOMEM,
            cause: Cause::Hole,
        }
    }

    /// For an errno that may be the limit's: looks.
    pub(super) fn of_limit(call: &'static str, errno: Errno, needed: u64) -> LockError {
        let report = LimitReport::new(needed);
        let about_limit = matches!(errno, Errno::PERM | Errno::NOMEM | Errno::AGAIN);
        LockError {
            call,
            errno,
            cause: if about_limit && report.exceeds() {
                Cause::Limit(report)
            } else if errno == Errno::NOMEM {
                Cause::Hole
            } else {
                Cause::Other
            },
        }
    }

    /// The same failure under another errno, where the contract has one of its own.
    pub(super) fn with_errno(mut self, errno: Errno) -> LockError {
        self.errno = errno;
        self
    }

    pub(super) fn in_call(mut self, call: &'static str) -> LockError {
        self.call = call;
        self
    }

    /// The kernel's error number.
    ///
    /// ```
    /// use pagetide::lock::{Errno, LockFlags, mlock2, munlock};
    ///
    /// # fn main() -> Result<(), pagetide::lock::LockError> {
    /// let table = vec![0u8; 1 << 20];
    /// match mlock2(table.as_ptr(), table.len(), LockFlags::ONFAULT) {
    ///     Ok(()) => munlock(table.as_ptr(), table.len())?,
    ///     Err(error) if error.errno() == Errno::NOMEM => eprintln!("over the limit: {error}"),
    ///     Err(error) if error.errno() == Errno::PERM => eprintln!("the limit is 0: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// The limit's state, where the limit was the reason.
    pub fn report(&self) -> Option<&LimitReport> {
        match &self.cause {
            Cause::Limit(report) => Some(report),
            _ => None,
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.errno)?;
        match &self.cause {
            Cause::Limit(report) => write!(f, "\n{report}"),
            Cause::Hole => write!(
                f,
                ": a part of the range is not mapped or cannot be faulted in; expected mapped, \
                 accessible pages throughout"
            ),
            Cause::Flags(flags, expected) => write!(f, ": flags {flags:#x}, expected {expected}"),
            Cause::Other => Ok(()),
        }
    }
}

impl std::error::Error for LockError {}

impl From<LockError> for io::Error {
    /// Keeps the error number; the report is lost.
    fn from(error: LockError) -> io::Error {
        error.errno.into()
    }
}

/// Why a secret cannot be kept. Nothing of it is in memory then that was not before.
///
/// ```
/// use pagetide::lock::{SecretBuf, SecretError};
///
/// let error = SecretBuf::new(usize::MAX).unwrap_err();
/// assert!(matches!(error, SecretError::TooLarge { .. }));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It cannot be locked; the limit's report is in the message.
    #[error("the secret's memory cannot be locked: {0}")]
    Lock(#[source] LockError),
    /// The kernel refused something else.
    #[error("the secret's memory cannot be set up: {call}: {errno}{advice}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        errno: Errno,
        /// What to do, if anything is known.
        advice: &'static str,
    },
    /// More than the stated maximum.
    #[error(
        "{asked} bytes do not fit: the buffer was made for at most {max}; make it with a larger \
         maximum"
    )]
    TooLarge {
        /// Bytes it would have.
        asked: usize,
        /// Bytes it may have.
        max: usize,
    },
    /// This is a forked child, and the buffer is absent in it.
    #[error("the buffer was not inherited by this forked process; make a new one here")]
    NotInherited,
}

/// A file that cannot be opened, mapped, locked or looked at, by name.
///
/// ```
/// let error = pagetide::lock::LockedFile::open("/no/such/file").unwrap_err();
/// assert!(error.to_string().starts_with("'/no/such/file': "));
/// assert_eq!(error.cause.kind(), std::io::ErrorKind::NotFound);
/// ```
#[derive(thiserror::Error)]
#[error("'{}': {cause}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Why. A lock that was refused is a [`LockError`] inside.
    #[source]
    pub cause: io::Error,
}

impl FileError {
    pub(super) fn of(path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |cause| FileError { path, cause }
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        io::Error::new(error.cause.kind(), error)
    }
}

macro_rules! debug_is_display {
    ($($error:ty),*) => {
        $(impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        })*
    };
}

debug_is_display!(LockError, SecretError, FileError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_line_for_each_situation() {
        let report = LimitReport {
            needed: 1 << 20,
            in_use: 8192,
            soft: Some(65536),
            hard: Some(65536),
            capable: false,
        };
        assert!(report.exceeds());
        let text = report.to_string();
        for part in [
            "1048576 bytes needed",
            "8192 in use",
            "soft 65536 bytes",
            "CAP_IPC_LOCK: no",
            "sudo prlimit",
            "LimitMEMLOCK=1056768",
            "--ulimit memlock=1056768:1056768",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let raisable = LimitReport {
            hard: None,
            ..report
        };
        assert!(raisable.to_string().contains("shell:     ulimit -l 1032"));
        assert!(
            !LimitReport {
                capable: true,
                ..report
            }
            .exceeds()
        );
    }
}
