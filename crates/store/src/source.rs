//! A file as the store of pages that nobody has written: slot `n` is the file's page `n`, and
//! nothing is ever put.

use std::fs::{File, OpenOptions};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, pread, preadv};

use crate::{Capabilities, ErrorKind, Freeze, PAGE_SIZE, Page, Slot, Store, StoreError, Usage};

/// Pages of one system call.
const CALL_PAGES: usize = 512;
/// So many pages are read past the page cache: what it keeps of them takes memory a second time,
/// and more processor time than the reading.
const DIRECT_PAGES: usize = 32;

/// Whether most of a file's `length` bytes from `offset` on are in the page cache, or that cannot
/// be told.
pub type IsCached = fn(file: BorrowedFd<'_>, offset: u64, length: u64) -> bool;

/// See the module's text.
struct Source {
    file: File,
    /// The same, to be read past the page cache, where that can be done.
    direct: Option<File>,
    is_cached: IsCached,
    /// Of the first page.
    offset: u64,
    /// Bytes from there on; what its last page has beyond them are zeros.
    length: u64,
}

/// `length` bytes of `file` from `offset` on, as a store that only reads. Its slots are there from
/// the beginning, one for each page, numbered from 0; the last page ends in zeros. The bytes are
/// what the file has when they are read: they are not checked, and the file should not change.
///
/// # Errors
/// [`ErrorKind::Config`] if the file cannot be read, or does not have these bytes.
pub fn source(
    file: File,
    offset: u64,
    length: u64,
    is_cached: IsCached,
) -> Result<Box<dyn Store>, StoreError> {
    let config = |context: String| StoreError::new(ErrorKind::Config, context);
    let size = match file.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => return Err(config("the source is not a file".into())),
        Err(error) => return Err(config("the source's size".into()).with_cause(error)),
    };
    let end = offset.checked_add(length);
    if end.is_none_or(|end| end > size) {
        return Err(config(format!(
            "the source has {size} bytes, and {length} from byte {offset} on were asked for"
        )));
    }
    if length.div_ceil(PAGE_SIZE as u64) > u64::from(u32::MAX) {
        return Err(config(format!(
            "a source of {length} bytes is too large: the most is 16 TiB"
        )));
    }
    Ok(Box::new(Source {
        direct: open_direct(&file, offset),
        is_cached,
        file,
        offset,
        length,
    }))
}

/// `file` once more, for reads past the page cache of pages that begin at `offset`.
fn open_direct(file: &File, offset: u64) -> Option<File> {
    let is_aligned = offset.is_multiple_of(PAGE_SIZE as u64);
    let flags = OFlags::DIRECT.bits() as i32;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    is_aligned.then(|| options.open(path).ok()).flatten()
}

/// Reads into `pages` but for their first `skipped` bytes, with one call; how many bytes there
/// were.
fn read_some(file: &File, at: u64, pages: &mut [Page], skipped: usize) -> Result<usize, Errno> {
    if let [page] = pages {
        return pread(file, &mut page.0[skipped..], at);
    }
    let mut slices = [const { None }; CALL_PAGES];
    let (mut count, mut skip) = (0, skipped);
    for (slice, page) in slices.iter_mut().zip(pages) {
        *slice = Some(IoSliceMut::new(&mut page.0[skip..]));
        (skip, count) = (0, count + 1);
    }
    let mut slices = slices.map(|slice| slice.unwrap_or_else(|| IoSliceMut::new(&mut [])));
    preadv(file, &mut slices[..count], at)
}

impl Source {
    /// Reads many pages from byte `at` of the file on past the page cache, unless they are there.
    /// Returns how many bytes; what is missing is to be read otherwise.
    fn read_directly(&self, at: u64, pages: &mut [Page]) -> usize {
        let Some(direct) = self.direct.as_ref().filter(|_| pages.len() >= DIRECT_PAGES) else {
            return 0;
        };
        match (self.is_cached)(self.file.as_fd(), at, size_of_val(pages) as u64) {
            true => 0,
            false => read_some(direct, at, pages, 0).unwrap_or(0),
        }
    }

    /// Reads as many pages as `pages` has, from page `first` on.
    fn read(&self, first: u64, pages: &mut [Page]) -> Result<(), StoreError> {
        let start = first * PAGE_SIZE as u64;
        if start >= self.length {
            return Err(StoreError::new(
                ErrorKind::Corrupt,
                format!("the source has no page {first}"),
            ));
        }
        let whole = pages.len() * PAGE_SIZE;
        let wanted = whole.min((self.length - start) as usize);
        let mut done = self.read_directly(self.offset + start, pages).min(wanted);
        while done < wanted {
            let (from, skipped) = (done / PAGE_SIZE, done % PAGE_SIZE);
            let at = self.offset + start + done as u64;
            match read_some(&self.file, at, &mut pages[from..], skipped) {
                Ok(0) => {
                    return Err(StoreError::new(
                        ErrorKind::Io,
                        format!("the source file ends at byte {at}: it was made shorter"),
                    ));
                }
                Ok(bytes) => done = wanted.min(done + bytes),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let context = format!("read the source file at byte {at}");
                    return Err(StoreError::new(ErrorKind::Io, context).with_cause(errno));
                }
            }
        }
        if wanted < whole
            && let Some(last) = pages.get_mut(wanted / PAGE_SIZE)
        {
            last.0[wanted % PAGE_SIZE..].fill(0);
        }
        Ok(())
    }
}

impl Store for Source {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scheme: "source file",
            put_batch_pages: 1,
            get_sleeps: true,
            get_allocates: false,
            spills: true,
        }
    }

    fn put(&self, _: &[&Page], _: &mut [Slot]) -> Result<(), StoreError> {
        let context = "put pages: the source is only read";
        Err(StoreError::new(ErrorKind::Config, context))
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        self.read(slot.0.into(), std::slice::from_mut(page))
    }

    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        assert_eq!(slots.len(), pages.len(), "get_many: one page for each slot");
        let mut rest = pages;
        for run in slots.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (now, after) = rest.split_at_mut(run.len());
            self.read(run[0].0.into(), now)?;
            rest = after;
        }
        Ok(())
    }

    fn will_need(&self, slot: Slot) {
        let at = self.offset + u64::from(slot.0) * PAGE_SIZE as u64;
        let length = NonZeroU64::new(PAGE_SIZE as u64);
        let _ = fadvise(&self.file, at, length, Advice::WillNeed);
    }

    fn holds(&self, _: Slot, _: &Page) -> bool {
        false
    }

    fn delete(&self, _: &[Slot]) {}

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn hold_at_most(&self, _: u64) {}

    fn freeze(&self) -> Freeze {
        Freeze(0)
    }

    fn thaw(&self, _: Freeze) {}

    fn descriptors(&self) -> Vec<i32> {
        Vec::new()
    }

    fn inherit(&self, _: &[i32]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn page_of(bytes: &[u8], index: usize) -> Page {
        let mut page = Page::ZERO;
        let start = (index * PAGE_SIZE).min(bytes.len());
        let part = &bytes[start..(start + PAGE_SIZE).min(bytes.len())];
        page.0[..part.len()].copy_from_slice(part);
        page
    }

    #[test]
    fn pages_are_the_files_from_any_offset_on_and_end_in_zeros() {
        let bytes: Vec<u8> = (0..130 * PAGE_SIZE + 77)
            .map(|byte| (byte / 5 % 251) as u8)
            .collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for (offset, cached) in [
            (0, true),
            (0, false),
            (4096, false),
            (128, false),
            (5000, true),
        ] {
            let part = &bytes[offset..];
            let is_cached: IsCached = match cached {
                true => |_, _, _| true,
                false => |_, _, _| false,
            };
            let file = file.try_clone().unwrap();
            let store = source(file, offset as u64, part.len() as u64, is_cached).unwrap();
            let pages = part.len().div_ceil(PAGE_SIZE);
            let slots: Vec<Slot> = (0..pages as u32).map(Slot).collect();
            let dirt = || Page([0xee; PAGE_SIZE]);
            let mut read: Vec<Page> = slots.iter().map(|_| dirt()).collect();
            store.get_many(&slots, &mut read).unwrap();
            for (index, page) in read.iter().enumerate() {
                assert!(page.0 == page_of(part, index).0, "page {index}");
            }
            // In another order, and alone.
            let mut two = [dirt(), dirt()];
            let last = Slot(pages as u32 - 1);
            store.get_many(&[last, Slot(3)], &mut two).unwrap();
            assert!(two[0].0 == page_of(part, pages - 1).0 && two[1].0 == page_of(part, 3).0);
            let mut one = dirt();
            store.get(Slot(9), &mut one).unwrap();
            assert!(one.0 == page_of(part, 9).0);
            let beyond = store.get(Slot(pages as u32), &mut one).unwrap_err();
            assert_eq!(beyond.kind, ErrorKind::Corrupt);
        }
    }

    #[test]
    fn what_the_file_has_not_is_an_error_and_never_zeros() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let beyond = source(file.try_clone().unwrap(), 4096, 4097, |_, _, _| true)
            .err()
            .unwrap();
        assert_eq!(beyond.kind, ErrorKind::Config);
        assert!(beyond.to_string().contains("has 8192 bytes"), "{beyond}");

        let store = source(file.try_clone().unwrap(), 0, 8192, |_, _, _| true).unwrap();
        file.set_len(5000).unwrap();
        let shorter = store.get(Slot(1), &mut Page::ZERO.clone()).unwrap_err();
        assert_eq!(shorter.kind, ErrorKind::Io);
        assert!(store.put(&[&Page::ZERO], &mut [Slot(0)]).is_err());
    }
}
