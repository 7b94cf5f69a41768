//! Why memory could not be locked, and the line that mends it.
use std::fmt;

use pagetide_kernel::limits::LockLimits;
use rustix::io::Errno;

/// The lock limit and what was asked of it, in bytes, with the line that raises it for a shell, a
/// systemd unit and a container (its `Display`).
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

/// A lock call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl From<LockError> for std::io::Error {
    /// Keeps the error number; the report is lost.
    fn from(error: LockError) -> std::io::Error {
        error.errno.into()
    }
}

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
