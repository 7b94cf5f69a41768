//! Modes and flags of the contract, with the numbers of the proposal of 2015.
use std::ops::BitOr;

use pagetide_kernel::mlock;

/// How a range is locked.
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

    /// As a flag.
    pub fn flag(self) -> LockFlags {
        match self {
            Mode::OnFault => LockFlags::ONFAULT,
            Mode::Full => LockFlags::LOCKED,
        }
    }
}

macro_rules! flags {
    ($name:ident, $doc:literal, { $($(#[$meta:meta])* $flag:ident = $bits:literal;)* }) => {
        #[doc = $doc]
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

flags!(
    LockFlags,
    "Modes, for [`mlock2`](super::mlock2) (exactly one) and [`munlock2`](super::munlock2) (one or \
     both).",
    {
        /// Every page at once.
        LOCKED = 1;
        /// As pages are touched.
        ONFAULT = 2;
    }
);

flags!(
    AllFlags,
    "For [`mlockall`](super::mlockall) and [`munlockall2`](super::munlockall2).",
    {
        /// What is mapped now.
        CURRENT = 1;
        /// What will be mapped.
        FUTURE = 2;
        /// As pages are touched.
        ONFAULT = 4;
    }
);

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
