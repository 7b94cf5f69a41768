//! Pages to and from a file: short transfers are continued, interrupted ones repeated, and direct
//! I/O is given up for buffered where the filesystem refuses it.

use super::place::HEADER;
use crate::descriptor::Descriptor;
use crate::{ErrorKind, PAGE_SIZE, Page, StoreError};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, preadv, pwritev};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Pages per system call, where writing levels off (256 KiB).
pub(crate) const CALL_PAGES: usize = 64;
/// Transfers in a row that may end before a whole page.
const STALLS: u32 = 8;

/// The file of a store, as a row of pages after its header.
pub(crate) struct Transfer {
    file: Descriptor,
    direct: AtomicBool,
}

impl Transfer {
    /// Uses direct I/O if it can be had: page contents in the page cache would take the memory that
    /// paging frees.
    pub(crate) fn new(file: Descriptor) -> Transfer {
        let direct = set_direct(&file, true);
        Transfer {
            file,
            direct: AtomicBool::new(direct),
        }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.file.raw()
    }

    /// In a forked child: goes on with another descriptor of the same file.
    pub(crate) fn replace(&self, raw: i32) {
        self.file.replace(raw);
        let direct =
            fcntl_getfl(self.file.read_only()).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        self.direct.store(direct, Relaxed);
    }

    /// Writes `pages` to the file pages from `first` on.
    pub(crate) fn write(&self, first: u64, pages: &[&Page]) -> Result<(), StoreError> {
        let file = self.file.writable()?;
        let transferred = self.all(pages.len(), |done| {
            let mut slices = [IoSlice::new(&[]); CALL_PAGES];
            let left = &pages[done..];
            slices
                .iter_mut()
                .zip(left)
                .for_each(|(slice, page)| *slice = IoSlice::new(&page.0));
            pwritev(
                file,
                &slices[..left.len().min(CALL_PAGES)],
                offset(first + done as u64),
            )
        });
        transferred.map_err(|error| failed("write", first, pages.len(), error))
    }

    /// Reads the file pages from `first` on into `pages`.
    pub(crate) fn read(&self, first: u64, pages: &mut [Page]) -> Result<(), StoreError> {
        let count = pages.len();
        let transferred = self.all(count, |done| {
            let mut slices: [IoSliceMut<'_>; CALL_PAGES] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let left = &mut pages[done..];
            let now = left.len().min(CALL_PAGES);
            slices
                .iter_mut()
                .zip(left)
                .for_each(|(slice, page)| *slice = IoSliceMut::new(&mut page.0));
            preadv(
                self.file.read_only(),
                &mut slices[..now],
                offset(first + done as u64),
            )
        });
        transferred.map_err(|error| failed("read", first, count, error))
    }

    /// Asks for room on disk for `count` pages from `first` on. Where the filesystem cannot,
    /// writing finds out.
    pub(crate) fn reserve(&self, first: u64, count: u64) -> Result<(), StoreError> {
        match self.fallocate(FallocateFlags::empty(), first, count)? {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(failed("reserve", first, count as usize, error)),
        }
    }

    /// Gives the room of `count` pages from `first` on back; false if the filesystem does not do
    /// that.
    pub(crate) fn punch(&self, first: u64, count: u64) -> bool {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        matches!(self.fallocate(flags, first, count), Ok(Ok(())))
    }

    fn fallocate(
        &self,
        flags: FallocateFlags,
        first: u64,
        count: u64,
    ) -> Result<Result<(), Errno>, StoreError> {
        let file = self.file.writable()?;
        loop {
            match fallocate(file, flags, offset(first), count * PAGE_SIZE as u64) {
                Err(Errno::INTR) => {}
                done => return Ok(done),
            }
        }
    }

    /// Repeats `call`, which is told how many pages are done and says how many bytes it moved,
    /// until `count` pages are.
    fn all(
        &self,
        count: usize,
        mut call: impl FnMut(usize) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let (mut done, mut stalls) = (0, 0);
        while done < count {
            match call(done) {
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) if self.direct.swap(false, Relaxed) => {
                    set_direct(&self.file, false);
                }
                Err(error) => return Err(error),
                // Direct I/O has to go on at a page boundary: a page moved in part is moved again.
                Ok(bytes) if bytes >= PAGE_SIZE => {
                    done += bytes / PAGE_SIZE;
                    stalls = 0;
                }
                Ok(_) if stalls == STALLS => return Err(Errno::IO),
                Ok(_) => stalls += 1,
            }
        }
        Ok(())
    }
}

fn offset(page: u64) -> u64 {
    HEADER + page * PAGE_SIZE as u64
}

fn set_direct(file: &Descriptor, direct: bool) -> bool {
    let Ok(fd) = file.writable() else {
        return false;
    };
    fcntl_getfl(fd)
        .and_then(|flags| {
            let wanted = if direct {
                flags | OFlags::DIRECT
            } else {
                flags - OFlags::DIRECT
            };
            fcntl_setfl(fd, wanted)
        })
        .is_ok()
}

#[cold]
fn failed(doing: &str, first: u64, count: usize, error: Errno) -> StoreError {
    let kind = match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::Full,
        Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::BUSY | Errno::TIMEDOUT => {
            ErrorKind::Temporary
        }
        _ => ErrorKind::Io,
    };
    StoreError::new(
        kind,
        format!("{doing} {count} pages at page {first} of the store's file"),
    )
    .with_cause(error)
}
