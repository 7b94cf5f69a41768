//! A file as the store of pages that nobody has written: slot `n` is the file's page `n`, and
//! nothing is ever put.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsFd;

use rustix::io::{Errno, preadv};

use crate::{Capabilities, ErrorKind, Freeze, PAGE_SIZE, Page, Slot, Store, StoreError, Usage};

/// Pages of one system call.
const CALL_PAGES: usize = 64;

/// See the module's text.
struct Source {
    file: File,
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
pub fn source(file: File, offset: u64, length: u64) -> Result<Box<dyn Store>, StoreError> {
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
        file,
        offset,
        length,
    }))
}

impl Source {
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
        let mut done = 0;
        while done < wanted {
            let mut slices = [const { None }; CALL_PAGES];
            let mut rest = wanted - done;
            let from = done / PAGE_SIZE;
            let mut count = 0;
            for (slice, page) in slices.iter_mut().zip(&mut pages[from..]) {
                let skipped = if count == 0 { done % PAGE_SIZE } else { 0 };
                let bytes = (PAGE_SIZE - skipped).min(rest);
                if bytes == 0 {
                    break;
                }
                *slice = Some(IoSliceMut::new(&mut page.0[skipped..skipped + bytes]));
                rest -= bytes;
                count += 1;
            }
            let mut slices = slices.map(|slice| slice.unwrap_or_else(|| IoSliceMut::new(&mut [])));
            let at = self.offset + start + done as u64;
            match preadv(self.file.as_fd(), &mut slices[..count], at) {
                Ok(0) => {
                    return Err(StoreError::new(
                        ErrorKind::Io,
                        format!("the source file ends at byte {at}: it was made shorter"),
                    ));
                }
                Ok(bytes) => done += bytes,
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
        for offset in [0, 128, 5000] {
            let part = &bytes[offset..];
            let file = file.try_clone().unwrap();
            let store = source(file, offset as u64, part.len() as u64).unwrap();
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
        let beyond = source(file.try_clone().unwrap(), 4096, 4097).err().unwrap();
        assert_eq!(beyond.kind, ErrorKind::Config);
        assert!(beyond.to_string().contains("has 8192 bytes"), "{beyond}");

        let store = source(file.try_clone().unwrap(), 0, 8192).unwrap();
        file.set_len(5000).unwrap();
        let shorter = store.get(Slot(1), &mut Page::ZERO.clone()).unwrap_err();
        assert_eq!(shorter.kind, ErrorKind::Io);
        assert!(store.put(&[&Page::ZERO], &mut [Slot(0)]).is_err());
    }
}
