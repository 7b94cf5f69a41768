//! Memory shared with forked children, reserved once and filled piece by piece.
//!
//! The mapping is shared and anonymous: it does not count as the process's anonymous memory, a
//! forked child sees the same bytes, and there is no descriptor that the program could close, reuse
//! or pass on. It is reserved without access and opened up in steps, so that an `mlockall` of the
//! program does not fill the whole reservation. Memory is asked for (`MADV_POPULATE_WRITE`, before
//! Linux 5.14 a system call that returns something there) before it is written, so that a lack of
//! it is an error here and not a SIGBUS.
//!
//! # Safety
//!
//! The one invariant is that `base..base + accessible` is mapped readable and writable for as long
//! as the `Mapping` lives, in this process and, through fork, in any child that holds a copy of it.
//! The mapping is private to this struct; its address is not handed out. All access is through
//! `&[AtomicU64]`: another thread or process may read or write the same words at any time without
//! undefined behaviour, and a race can at worst yield wrong bytes, which the checksum catches.
#![allow(unsafe_code)] // mmap, and making references to what it mapped

use crate::sync::lock;
use crate::{ErrorKind, StoreError};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Release},
};

/// The mapping is opened up in steps of this many bytes.
const STEP: usize = 64 << 20;
/// A reservation smaller than this is not worth having.
const RESERVE_MIN: usize = 1 << 20;

/// A reservation of shared memory.
pub(crate) struct Mapping {
    base: *mut c_void,
    len: usize,
    /// Bytes from `base` that may be touched. Grows only.
    accessible: AtomicUsize,
    growing: Mutex<()>,
}

// SAFETY: the pointer is to a mapping this struct owns and that any thread may use; all access to
// it is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above; `accessible` is atomic and its growth is serialised by `growing`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes, or as many as the process may have (address-space limits, strict
    /// overcommit).
    pub(crate) fn reserve(len: usize) -> Result<Mapping, StoreError> {
        let mut len = len.max(RESERVE_MIN).next_multiple_of(1 << 16);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let base = loop {
            // SAFETY: a new mapping at an address of the kernel's choosing touches no memory in
            // use.
            match unsafe { mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) } {
                Ok(base) => break base,
                Err(Errno::NOMEM | Errno::AGAIN) if len / 2 >= RESERVE_MIN => {
                    len = (len / 2).next_multiple_of(1 << 16);
                }
                Err(error) => {
                    return Err(StoreError::new(
                        ErrorKind::Full,
                        format!("reserve {len} bytes of address space for the ram store"),
                    )
                    .with_cause(error));
                }
            }
        };
        for advice in [Advice::LinuxDontDump, Advice::LinuxNoHugepage] {
            // SAFETY: the range is the mapping just made; neither advice changes its contents. Both
            // are refinements (smaller core files, exact accounting), so a kernel that lacks one is
            // no error.
            let _ = unsafe { madvise(base, len, advice) };
        }
        Ok(Mapping {
            base,
            len,
            accessible: AtomicUsize::new(0),
            growing: Mutex::new(()),
        })
    }

    /// Bytes reserved.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has the kernel find memory for a range that nobody uses; what it holds then is unspecified.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        self.open_up_to(offset.checked_add(len).ok_or(Errno::INVAL)?)?;
        match self.advise(offset, len, Advice::LinuxPopulateWrite) {
            // The kernel does not know it.
            Err(Errno::INVAL) => self.populate_by_system_calls(offset, len),
            done => done,
        }
    }

    /// The same before Linux 5.14. A system call that finds no memory for what it returns fails,
    /// where an instruction would raise SIGBUS.
    fn populate_by_system_calls(&self, offset: usize, len: usize) -> Result<(), Errno> {
        for page in (offset..offset + len).step_by(crate::PAGE_SIZE) {
            // SAFETY: the byte lies inside the accessible part, and nobody else uses it before this
            // is done.
            let byte = unsafe {
                std::slice::from_raw_parts_mut(
                    self.base.byte_add(page).cast::<MaybeUninit<u8>>(),
                    1,
                )
            };
            getrandom(byte, GetRandomFlags::INSECURE).map_err(|errno| match errno {
                Errno::FAULT => Errno::NOMEM,
                other => other,
            })?;
        }
        Ok(())
    }

    /// Gives the memory of a range back to the system. Whatever it held is lost, in every process.
    pub(crate) fn punch(&self, offset: usize, len: usize) -> Result<(), Errno> {
        self.advise(offset, len, Advice::LinuxRemove)
    }

    /// The 8-byte words of a range; `None` where nothing was ever populated. `offset` and `len` are
    /// multiples of 8.
    #[inline]
    pub(crate) fn words(&self, offset: usize, len: usize) -> Option<&[AtomicU64]> {
        if !(offset | len).is_multiple_of(8)
            || offset.checked_add(len)? > self.accessible.load(Acquire)
        {
            return None;
        }
        // SAFETY: the range lies inside the accessible part, which stays mapped read-write while
        // `self` lives (module invariant), and starts at a multiple of 8. `AtomicU64` has the
        // layout of the bytes there, and any bytes are valid.
        Some(unsafe { std::slice::from_raw_parts(self.base.byte_add(offset).cast(), len / 8) })
    }

    fn open_up_to(&self, end: usize) -> Result<(), Errno> {
        if end <= self.accessible.load(Acquire) {
            return Ok(());
        }
        let _guard = lock(&self.growing);
        let from = self.accessible.load(Acquire);
        if end <= from {
            return Ok(());
        }
        if end > self.len {
            return Err(Errno::NOMEM);
        }
        let to = end.next_multiple_of(STEP).min(self.len);
        // SAFETY: `from..to` lies inside the mapping, beyond everything references were made to.
        unsafe {
            mprotect(
                self.base.byte_add(from),
                to - from,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        self.accessible.store(to, Release);
        Ok(())
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Errno::INVAL);
        }
        loop {
            // SAFETY: the range lies inside the mapping. Populating keeps contents; removing zeroes
            // words that are only ever read as atomics, which the callers do only for ranges nobody
            // uses.
            match unsafe { madvise(self.base.byte_add(offset), len, advice) } {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this struct's own and no reference into it outlives `self`. In a
        // forked child this undoes the child's mapping only. A failure leaves the range mapped,
        // which harms nobody.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::PAGE_SIZE;

    fn is_present(mapping: &Mapping, offset: usize) -> bool {
        let mut entry = [0u8; 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let at = (mapping.base as usize + offset) / PAGE_SIZE * entry.len();
        pagemap.read_exact_at(&mut entry, at as u64).unwrap();
        entry[7] & 0x80 != 0
    }

    #[test]
    fn memory_is_there_once_it_was_asked_for_in_either_way() {
        let mapping = Mapping::reserve(RESERVE_MIN).unwrap();
        let len = 16 * PAGE_SIZE;
        mapping.populate(0, len).unwrap();
        mapping.populate_by_system_calls(2 * len, len).unwrap();
        for page in 0..16 {
            assert!(is_present(&mapping, page * PAGE_SIZE));
            assert!(is_present(&mapping, 2 * len + page * PAGE_SIZE));
        }
        assert!(!is_present(&mapping, len) && !is_present(&mapping, 3 * len));
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_and_no_signal() {
        let mapping = Mapping::reserve(RESERVE_MIN).unwrap();
        // Not opened up.
        let result = mapping.populate_by_system_calls(0, PAGE_SIZE);
        assert_eq!(result, Err(Errno::NOMEM));
    }
}
