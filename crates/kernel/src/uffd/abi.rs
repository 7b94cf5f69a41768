//! The kernel's structs and numbers, and what an operation over a range comes to.
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::page::{PAGE_SHIFT, PageRange};

/// Why an operation over a range stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A page is there already.
    Present,
    /// No page (to move), or no mapping (to install into).
    Absent,
    /// An event message (unmap, remap, remove) is unread or its thread has not gone on yet, or the
    /// work was cut short: try again.
    EventPending,
    /// The page is pinned by a device, or shared with a forked process.
    Pinned,
    /// The address space is gone.
    Gone,
    /// The mapping does not allow this (not registered, locked or protected otherwise than the
    /// other end).
    Refused,
    /// Anything else.
    Other(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        match errno {
            Errno::EXIST => Stop::Present,
            Errno::NOENT => Stop::Absent,
            Errno::AGAIN => Stop::EventPending,
            Errno::BUSY => Stop::Pinned,
            Errno::SRCH => Stop::Gone,
            Errno::INVAL => Stop::Refused,
            other => Stop::Other(other),
        }
    }
}

/// How far an operation over a range came: whole pages done from its start, and why it stopped if
/// that is not all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Pages done.
    pub pages: u64,
    /// None when all were done.
    pub stop: Option<Stop>,
}

pub(super) const UFFD_API: u64 = 0xAA;
pub(super) const GROUP: u8 = 0xAA;

#[repr(C)]
pub(super) struct ApiArg {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}
#[repr(C)]
pub(super) struct RangeArg {
    pub start: u64,
    pub len: u64,
}
#[repr(C)]
pub(super) struct RegisterArg {
    pub range: RangeArg,
    pub mode: u64,
    pub ioctls: u64,
}
/// `uffdio_copy` and `uffdio_move` have the same layout.
#[repr(C)]
pub(super) struct TransferArg {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    pub done: i64,
}
#[repr(C)]
pub(super) struct ZeropageArg {
    pub range: RangeArg,
    pub mode: u64,
    pub done: i64,
}
#[repr(C)]
pub(super) struct WriteprotectArg {
    pub range: RangeArg,
    pub mode: u64,
}
/// `uffdio_poison` and `uffdio_continue` have the same layout.
#[repr(C)]
pub(super) struct PoisonArg {
    pub range: RangeArg,
    pub mode: u64,
    pub done: i64,
}

pub(super) const API: Opcode = opcode::read_write::<ApiArg>(GROUP, 0x3F);
pub(super) const REGISTER: Opcode = opcode::read_write::<RegisterArg>(GROUP, 0);
pub(super) const UNREGISTER: Opcode = opcode::read::<RangeArg>(GROUP, 1);
pub(super) const WAKE: Opcode = opcode::read::<RangeArg>(GROUP, 2);
pub(super) const COPY: Opcode = opcode::read_write::<TransferArg>(GROUP, 3);
pub(super) const ZEROPAGE: Opcode = opcode::read_write::<ZeropageArg>(GROUP, 4);
pub(super) const MOVE: Opcode = opcode::read_write::<TransferArg>(GROUP, 5);
pub(super) const WRITEPROTECT: Opcode = opcode::read_write::<WriteprotectArg>(GROUP, 6);
pub(super) const CONTINUE: Opcode = opcode::read_write::<PoisonArg>(GROUP, 7);
pub(super) const POISON: Opcode = opcode::read_write::<PoisonArg>(GROUP, 8);
pub(super) const IOC_NEW: Opcode = opcode::none(GROUP, 0);

pub(super) const COPY_MODE_WP: u64 = 1 << 1;
pub(super) const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;
pub(super) const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
pub(super) const REGISTER_MODE_MISSING: u64 = 1 << 0;
pub(super) const REGISTER_MODE_WP: u64 = 1 << 1;
pub(super) const REGISTER_MODE_RWP: u64 = 1 << 3; // 7.3

/// Where the address space of a process ends that asks for no more than 47 bits.
pub(super) const USER_END_PAGE: u64 = (1 << (47 - PAGE_SHIFT)) - 1;

// The numbers in the kernel's ABI, so that a change of a struct above cannot pass unseen.
const _: () = {
    assert!(
        API == 0xC018_AA3F
            && REGISTER == 0xC020_AA00
            && UNREGISTER == 0x8010_AA01
            && WAKE == 0x8010_AA02
    );
    assert!(COPY == 0xC028_AA03 && ZEROPAGE == 0xC020_AA04 && MOVE == 0xC028_AA05);
    assert!(WRITEPROTECT == 0xC018_AA06 && POISON == 0xC020_AA08 && IOC_NEW == 0xAA00);
};

pub(super) fn range_arg(range: PageRange) -> RangeArg {
    RangeArg {
        start: range.address() as u64,
        len: range.bytes() as u64,
    }
}

pub(super) fn transfer(range: PageRange, source: usize, mode: u64) -> TransferArg {
    TransferArg {
        dst: range.address() as u64,
        src: source as u64,
        len: range.bytes() as u64,
        mode,
        done: 0,
    }
}

/// The kernel writes bytes done, or a negative errno; a partial result comes with EAGAIN.
pub(super) fn progress(result: Result<(), Errno>, done: i64) -> Progress {
    Progress {
        pages: done.max(0) as u64 >> PAGE_SHIFT,
        stop: result.err().map(Stop::from),
    }
}
