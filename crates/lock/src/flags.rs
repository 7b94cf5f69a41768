//! How memory and files are locked: modes, flags (with the numbers of the proposal of 2015), what
//! forked children do, what is read around a fault.
use std::ops::BitOr;

use pagetide_kernel::{PageRange, mlock};
use rustix::io::Errno;

/// How a range is locked.
///
/// ```
/// use pagetide::lock::{LockFlags, Mode};
///
/// assert!(Mode::Full > Mode::OnFault, "full is the stronger lock");
/// assert_eq!(Mode::OnFault.flag(), LockFlags::ONFAULT);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Present pages at once, others when they are touched.
    OnFault,
    /// Every page, faulted in at once.
    Full,
}

impl Mode {
    /// The flags of the kernel's `mlock2`.
    pub(super) fn kernel(self) -> u32 {
        match self {
            Mode::OnFault => mlock::MLOCK_ONFAULT,
            Mode::Full => 0,
        }
    }

    /// Has the kernel lock `range` so.
    pub(super) fn lock(self, range: PageRange) -> Result<(), Errno> {
        mlock::mlock2(range.address(), range.bytes(), self.kernel())
    }

    /// Has the kernel lock `range` so, whether all of it can be faulted in (no access, beyond the
    /// end of a file) or not: marked first, and only then faulted in.
    pub(super) fn lock_anyway(self, range: PageRange) -> Result<(), Errno> {
        Mode::OnFault.lock(range)?;
        if self == Mode::Full {
            let _ = self.lock(range);
        }
        Ok(())
    }

    /// As a flag.
    pub fn flag(self) -> LockFlags {
        match self {
            Mode::OnFault => LockFlags::ONFAULT,
            Mode::Full => LockFlags::LOCKED,
        }
    }
}

/// What a forked child does about the locks that the kernel drops in it.
///
/// ```
/// use pagetide::lock::{ForkPolicy, fork_policy, set_fork_policy};
///
/// set_fork_policy(ForkPolicy::Drop); // children of this process start with nothing locked
/// assert_eq!(fork_policy(), ForkPolicy::Drop);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPolicy {
    /// Locks every range again before `fork` returns in the child, and future locking is on again
    /// if it was. A full lock of private memory that was written copies it there. The child has a
    /// lock limit of its own, of the same size.
    Relock,
    /// Starts with nothing locked. Owners keep their memory and lose their locks.
    Drop,
}

/// How the file will be read, which decides what a fault reads beside the page touched.
///
/// ```
/// use pagetide::lock::{Access, LockedFile};
///
/// let index = LockedFile::builder().access(Access::Exact); // the pages touched, and no others
/// assert_eq!(Access::default(), Access::Adaptive);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Nothing at first; then as the program is seen to need. A thread watches, which costs nothing
    /// while there are no major faults.
    #[default]
    Adaptive,
    /// Read the page alone (`MADV_RANDOM`). What is in the page cache around it is mapped, and so
    /// locked, too.
    Random,
    /// The page alone is read, mapped and locked, whatever the page cache holds around it. Each
    /// page costs a fault of its own, also of a file that is cached. In a forked child as `Random`.
    /// Needs userfaultfd with `WP_ASYNC` (Linux 6.7); with [`Mode::Full`] it means nothing.
    Exact,
    /// What follows it, far ahead (`MADV_SEQUENTIAL`).
    Sequential,
    /// The device's read-around (`MADV_NORMAL`).
    Normal,
}

/// Whether the mapping can be written.
///
/// ```
/// use pagetide::lock::{LockedFile, Sharing};
///
/// let scratch = LockedFile::builder().sharing(Sharing::Private); // a writable copy
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Read only, the page cache's own pages.
    #[default]
    ReadOnly,
    /// Writable; what is written is this process's own and never goes to the file.
    Private,
}

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$meta:meta])* $flag:ident = $bits:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            $($(#[$meta])* pub const $flag: $name = $name($bits);)*

            /// From a number, which may hold bits that no flag has; the calls answer those with
            /// `EINVAL`.
            pub const fn from_bits(bits: u32) -> $name {
                $name(bits)
            }

            /// As a number.
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether it is one or more of the flags and nothing else.
            pub(super) const fn is_subset(self) -> bool {
                self.0 != 0 && self.0 & !(0 $(| $bits)*) == 0
            }
        }

        impl BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }
    };
}

flags! {
    /// Modes, for [`mlock2`](crate::mlock2) (exactly one) and [`munlock2`](crate::munlock2) (one
    /// or both).
    ///
    /// ```
    /// use pagetide::lock::LockFlags;
    ///
    /// let either = LockFlags::LOCKED | LockFlags::ONFAULT;
    /// assert!(either.contains(LockFlags::ONFAULT));
    /// ```
    LockFlags {
        /// Every page at once.
        LOCKED = 1;
        /// As pages are touched.
        ONFAULT = 2;
    }
}

flags! {
    /// For [`mlockall`](crate::mlockall) and [`munlockall2`](crate::munlockall2).
    ///
    /// ```
    /// use pagetide::lock::AllFlags;
    ///
    /// let later = AllFlags::FUTURE | AllFlags::ONFAULT;
    /// assert_eq!(later.bits(), 6);
    /// ```
    AllFlags {
        /// What is mapped now.
        CURRENT = 1;
        /// What will be mapped.
        FUTURE = 2;
        /// As pages are touched.
        ONFAULT = 4;
    }
}

impl LockFlags {
    /// The mode, if it is exactly one.
    pub(super) fn mode(self) -> Option<Mode> {
        match self {
            LockFlags::LOCKED => Some(Mode::Full),
            LockFlags::ONFAULT => Some(Mode::OnFault),
            _ => None,
        }
    }

    /// Whether `mode` is one of them.
    pub(super) fn names(self, mode: Mode) -> bool {
        self.contains(mode.flag())
    }
}
