//! What is read from a userfaultfd: faults, and events of the address space.
use std::os::fd::RawFd;

use crate::page::{PAGE_SHIFT, PageNumber, PageRange};

/// A message read from a userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// The page.
        page: PageNumber,
        /// The access is a write.
        write: bool,
        /// The page is there and write-protected; otherwise it is missing.
        write_protect: bool,
        /// The page is there and protected against every access ([`super::feature::RWP`]).
        read_write_protect: bool,
        /// The faulting thread, when the feature was asked for; 0 otherwise.
        thread: u32,
    },
    /// `mremap` moved `from` to begin at `to`.
    Remap {
        /// The pages' place before.
        from: PageRange,
        /// Their first page now.
        to: PageNumber,
    },
    /// `madvise` is about to empty the range (`MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`).
    Remove(PageRange),
    /// The range was unmapped.
    Unmap(PageRange),
    /// The process forked; the descriptor serves the child's copy.
    Fork(RawFd),
    /// A kind this code does not know.
    Unknown(u8),
}

const FAULT: u8 = 0x12;

/// One raw `struct uffd_msg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Message {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}

impl Message {
    /// Whether it is of a fault.
    pub fn is_fault(&self) -> bool {
        self.event == FAULT
    }

    /// The message decoded.
    pub fn decode(&self) -> Event {
        const PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
        const PAGEFAULT_FLAG_WP: u64 = 1 << 1;
        const PAGEFAULT_FLAG_RWP: u64 = 1 << 3;
        let page = |address: u64| PageNumber(address >> PAGE_SHIFT);
        let [a, b, c] = self.arg;
        match self.event {
            FAULT => Event::Fault {
                page: page(b),
                write: a & PAGEFAULT_FLAG_WRITE != 0,
                write_protect: a & PAGEFAULT_FLAG_WP != 0,
                read_write_protect: a & PAGEFAULT_FLAG_RWP != 0,
                thread: c as u32,
            },
            0x13 => Event::Fork(a as u32 as RawFd),
            0x14 => Event::Remap {
                from: PageRange {
                    start: page(a),
                    end: page(a + c),
                },
                to: page(b),
            },
            0x15 => Event::Remove(PageRange {
                start: page(a),
                end: page(b),
            }),
            0x16 => Event::Unmap(PageRange {
                start: page(a),
                end: page(b),
            }),
            other => Event::Unknown(other),
        }
    }
}
