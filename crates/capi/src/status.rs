//! What a call ends with: a code, and a message for the thread that called.
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagetide::RegionError;
use pagetide::lock::{Errno, LockError, SecretError};
use pagetide::track::{FileError, RestoreError, SnapshotError, TrackError};

/// As `pagetide_status` in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Invalid = 1,
    System = 2,
    Denied = 3,
    Unsupported = 4,
    Store = 5,
    Busy = 6,
    Limit = 7,
    Timeout = 8,
    File = 9,
    Damaged = 10,
    Cancelled = 11,
    NotFound = 12,
    Forked = 13,
    Internal = 14,
}

/// Why a call failed.
pub struct Failure {
    code: Code,
    errno: c_int,
    message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure {
            code,
            errno: 0,
            message: message.into(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::Invalid, message)
    }

    fn of(code: Code, errno: Option<Errno>, error: &dyn std::fmt::Display) -> Failure {
        Failure {
            code,
            errno: errno.map_or(0, Errno::raw_os_error),
            message: error.to_string(),
        }
    }
}

struct Last {
    errno: c_int,
    /// With a zero byte at its end; empty before the first failure.
    message: Vec<u8>,
}

const NONE: Last = Last {
    errno: 0,
    message: Vec::new(),
};

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(NONE) };
}

/// Runs `call`; what went wrong is kept for this thread.
pub fn guard(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Code::Internal, panic_text(panic.as_ref())),
    };
    let code = failure.code as c_int;
    // A thread that is ending has none any more.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Last {
            errno: failure.errno,
            message: (failure.message.replace('\0', " ") + "\0").into_bytes(),
        };
    });
    code
}

/// Runs `free`, of which there is nothing to say.
pub fn quietly(free: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(free));
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!(
        "a defect of Pagetide: {}; please report it",
        text.unwrap_or("a panic without a message")
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_last_error() -> *const c_char {
    let found = LAST.try_with(|last| {
        let last = last.borrow();
        let has_one = !last.message.is_empty();
        has_one.then(|| last.message.as_ptr().cast())
    });
    found.ok().flatten().unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_last_errno() -> c_int {
    LAST.try_with(|last| last.borrow().errno).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn pagetide_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Failure {
        let code = match &error {
            RegionError::Length(_) | RegionError::Range(..) | RegionError::Delivery(_) => {
                Code::Invalid
            }
            RegionError::Start(_) => Code::Denied,
            RegionError::Store(_) => Code::Store,
            RegionError::Pinned(..) | RegionError::PinCount(_) | RegionError::Signal(_) => {
                Code::Limit
            }
            RegionError::Budget(..) => Code::Timeout,
            RegionError::Observed => Code::Busy,
            RegionError::Load(_) => Code::Damaged,
        };
        Failure::of(code, None, &error)
    }
}

impl From<TrackError> for Failure {
    fn from(error: TrackError) -> Failure {
        let (code, errno) = match &error {
            TrackError::Open(_) => (Code::Denied, None),
            TrackError::Feature(_) | TrackError::HugePages(..) => (Code::Unsupported, None),
            TrackError::Method(_, errno) => (Code::Unsupported, Some(*errno)),
            TrackError::Taken(..) => (Code::Busy, None),
            TrackError::System(_, errno) => (Code::System, Some(*errno)),
            _ => (Code::Invalid, None),
        };
        Failure::of(code, errno, &error)
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Failure {
        let code = match error {
            SnapshotError::Track(error) => return error.into(),
            SnapshotError::Park(_) => Code::Timeout,
            SnapshotError::Busy => Code::Busy,
            SnapshotError::Base(_) => Code::NotFound,
            SnapshotError::Cancelled => Code::Cancelled,
            SnapshotError::Sink(ref error) => return from_io(error, &error),
            SnapshotError::Spoiled | SnapshotError::Lost(_) => Code::Damaged,
            SnapshotError::Epochs => Code::Limit,
            _ => Code::Invalid,
        };
        Failure::of(code, None, &error)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        file_failure(&error)
    }
}

fn file_failure(error: &FileError) -> Failure {
    match error {
        FileError::Io(_, cause) => from_io(cause, error),
        FileError::Wrong(..) | FileError::Block { .. } => Failure::of(Code::Damaged, None, error),
        FileError::Parent { .. } | FileError::Region { .. } => {
            Failure::of(Code::NotFound, None, error)
        }
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Failure {
        match &error {
            RestoreError::File(file) => Failure {
                message: error.to_string(),
                ..file_failure(file)
            },
            RestoreError::System(_) => Failure::of(Code::Denied, None, &error),
            RestoreError::Address { .. } => Failure::invalid(error.to_string()),
            RestoreError::Map(..) | RestoreError::Install(_) => {
                Failure::of(Code::System, Some(Errno::NOMEM), &error)
            }
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Failure {
        let code = match error.report() {
            Some(_) => Code::Limit,
            None if error.errno() == Errno::INVAL => Code::Invalid,
            None => Code::System,
        };
        Failure::of(code, Some(error.errno()), &error)
    }
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Failure {
        match &error {
            SecretError::Lock(cause) => Failure {
                message: error.to_string(),
                ..cause.clone().into()
            },
            SecretError::System { errno, .. } => Failure::of(Code::System, Some(*errno), &error),
            SecretError::NotInherited => Failure::of(Code::Forked, None, &error),
            _ => Failure::of(Code::Limit, None, &error),
        }
    }
}

impl From<pagetide::lock::FileError> for Failure {
    fn from(error: pagetide::lock::FileError) -> Failure {
        let refused = error
            .cause
            .get_ref()
            .and_then(|e| e.downcast_ref::<LockError>());
        match refused {
            Some(lock) => Failure {
                message: error.to_string(),
                ..lock.clone().into()
            },
            None => from_io(&error.cause, &error),
        }
    }
}

/// An error of a file, worded by `shown`.
pub fn from_io(error: &std::io::Error, shown: &dyn std::fmt::Display) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Code::NotFound,
        std::io::ErrorKind::InvalidData => Code::Damaged,
        _ => Code::File,
    };
    Failure {
        code,
        errno: error.raw_os_error().unwrap_or(0),
        message: shown.to_string(),
    }
}
