//! A raw image: a file, or a device, whose bytes are those of memory, in order.
//!
//! It is mapped, and the kernel copies from its page cache into a client's memory: one copy, no
//! buffer, and one cache for all clients of an image. Where a block cannot be read, or the file has
//! become shorter by pages, the kernel's copy fails and nothing is killed by a signal. Where the
//! file ends within a page now, the kernel has zeros for the rest: so its length is asked before.
#![allow(unsafe_code)] // mmap and munmap of the file; no reference to its bytes is ever made
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::marker::PhantomData;
use std::os::unix::fs::FileExt as _;
use std::ptr::null_mut;

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::SnapshotId;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use xxhash_rust::xxh3::Xxh3;

use crate::counters::Origin;

use super::{Buffer, Bytes, Piece, Source, SourceError};

/// Most pages in one piece: the kernel's copy of more would keep events waiting.
const PIECE_PAGES: u64 = 512;
/// So many pages are mapped together before they are copied: else the kernel's copy, which holds a
/// lock, stops for every sixteen.
const MAPPED_MIN: u64 = 32;
/// Pages looked at for the image's id.
const SAMPLES: u64 = 64;

/// See the module's text.
#[derive(Debug)]
pub struct RawFile {
    file: File,
    base: *mut c_void,
    len: u64,
    /// It can become shorter: it is no device.
    may_shrink: bool,
    id: SnapshotId,
}

// SAFETY: the pointer is to a read-only mapping that this struct owns and never reads itself; any
// thread may hand its address to the kernel.
unsafe impl Send for RawFile {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for RawFile {}

impl RawFile {
    /// Maps all of `file`, as long as it is now.
    ///
    /// # Errors
    /// It is empty, or cannot be mapped or read.
    pub fn of(mut file: File) -> io::Result<RawFile> {
        let len = file.seek(SeekFrom::End(0))?;
        if len == 0 {
            let text = "it is empty, and no image of memory";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let may_shrink = file.metadata()?.is_file();
        let mapped = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                null_mut(),
                mapped,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let id = SnapshotId::NONE;
        let mut raw = RawFile {
            file,
            base,
            len,
            may_shrink,
            id,
        };
        raw.id = raw.sampled()?;
        Ok(raw)
    }

    /// How many pages it has all bytes of.
    pub(crate) fn whole_pages(&self) -> u64 {
        self.len / PAGE_SIZE as u64
    }

    /// An id by length and some pages of it: reading all of an image would cost more than what a
    /// working set saves.
    fn sampled(&self) -> io::Result<SnapshotId> {
        let mut hash = Xxh3::new();
        hash.update(&self.len.to_le_bytes());
        let mut page = [0; PAGE_SIZE];
        let step = (self.pages() / SAMPLES).max(1);
        for number in (0..self.pages()).step_by(step as usize) {
            self.read_zero_extended(number, &mut page)?;
            hash.update(&page);
        }
        Ok(SnapshotId(hash.digest128().to_le_bytes()))
    }

    /// Has the kernel read and map what the copy would have it read and map page by page. Where it
    /// cannot (before Linux 5.14, or a page that cannot be read), the copy finds out.
    fn map(&self, address: *const u8, pages: u64) {
        let bytes = pages as usize * PAGE_SIZE;
        // SAFETY: within this struct's own mapping, whose contents it does not change.
        let _ = unsafe { madvise(address as *mut c_void, bytes, Advice::LinuxPopulateRead) };
    }

    /// How many of `pages` from `first` on the file has still, at least one.
    fn still_there(&self, first: u64, pages: u64) -> Result<u64, SourceError> {
        if !self.may_shrink {
            return Ok(pages);
        }
        let now = rustix::fs::fstat(&self.file)
            .map_err(|errno| SourceError(format!("the image cannot be asked: {errno}")))?;
        let len = now.st_size as u64;
        if len >= self.len {
            return Ok(pages);
        }
        match (len / PAGE_SIZE as u64).saturating_sub(first).min(pages) {
            0 => Err(SourceError(self.shorter())),
            pages => Ok(pages),
        }
    }

    fn shorter(&self) -> String {
        format!("the image has become shorter than its {} bytes", self.len)
    }

    /// Reads from page `first` on; what is beyond the end it had when it was opened is zeros.
    fn read_zero_extended(&self, first: u64, into: &mut [u8]) -> io::Result<()> {
        let offset = first * PAGE_SIZE as u64;
        let there = self.len.saturating_sub(offset).min(into.len() as u64) as usize;
        self.file.read_exact_at(&mut into[..there], offset)?;
        into[there..].fill(0);
        Ok(())
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this struct's, and pieces of it borrow it.
        let _ = unsafe { munmap(self.base, self.len as usize) };
    }
}

impl Source for RawFile {
    fn pages(&self) -> u64 {
        self.len.div_ceil(PAGE_SIZE as u64)
    }

    fn id(&self) -> SnapshotId {
        self.id
    }

    fn origin(&self, _: u64) -> Origin {
        Origin::Image
    }

    fn read<'b>(
        &'b self,
        first: u64,
        most: u64,
        _: &'b mut Buffer,
    ) -> Result<Piece<'b>, SourceError> {
        let pages = self
            .pages()
            .saturating_sub(first)
            .min(most)
            .min(PIECE_PAGES);
        if pages == 0 {
            return Ok(Piece::Zeros(most));
        }
        // Within the mapping; the kernel fills the rest of the last page with zeros.
        let address = self
            .base
            .cast::<u8>()
            .wrapping_add(first as usize * PAGE_SIZE);
        let pages = self.still_there(first, pages)?;
        if pages >= MAPPED_MIN {
            self.map(address, pages);
        }
        Ok(Piece::Bytes(Bytes {
            address,
            pages,
            lives: PhantomData,
        }))
    }

    fn read_into(&self, first: u64, into: &mut [u8], _: &mut Buffer) -> Result<(), SourceError> {
        let told = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.shorter(),
            _ => format!("the image cannot be read: {error}"),
        };
        let result = self.read_zero_extended(first, into);
        result.map_err(|error| SourceError(told(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn image(bytes: &[u8]) -> RawFile {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        RawFile::of(file).unwrap()
    }

    fn bytes_of(piece: Piece<'_>) -> Vec<u8> {
        match piece {
            Piece::Zeros(pages) => vec![0; pages as usize * PAGE_SIZE],
            Piece::Bytes(bytes) => {
                let len = bytes.pages() as usize * PAGE_SIZE;
                // SAFETY: the test's file is as long as its mapping, and nobody changes it.
                unsafe { std::slice::from_raw_parts(bytes.address(), len) }.to_vec()
            }
        }
    }

    #[test]
    fn the_last_part_of_a_page_is_extended_with_zeros() {
        let source = image(&[7; PAGE_SIZE + 10]);
        assert_eq!(source.pages(), 2);
        let mut expected = vec![7; 10];
        expected.resize(PAGE_SIZE, 0);
        let mut buffer = Buffer::default();
        assert_eq!(bytes_of(source.read(1, 9, &mut buffer).unwrap()), expected);
        let mut again = vec![1; 2 * PAGE_SIZE];
        source.read_into(1, &mut again, &mut buffer).unwrap();
        let (last, beyond) = again.split_at(PAGE_SIZE);
        assert_eq!((last, beyond), (&expected[..], &[0; PAGE_SIZE][..]));
        assert!(matches!(
            source.read(2, 3, &mut buffer),
            Ok(Piece::Zeros(3))
        ));
    }

    #[test]
    fn an_image_that_shrinks_is_an_error_and_says_so() {
        let source = image(&[7; 4 * PAGE_SIZE]);
        source.file.set_len(PAGE_SIZE as u64).unwrap();
        let (mut buffer, mut page) = (Buffer::default(), [0; PAGE_SIZE]);
        let error = source.read_into(2, &mut page, &mut buffer).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
        assert!(source.read_into(0, &mut page, &mut buffer).is_ok());
    }

    #[test]
    fn an_image_cut_within_a_page_gives_no_zeros() {
        let source = image(&[7; 4 * PAGE_SIZE]);
        let mut buffer = Buffer::default();
        assert!(source.read(1, 1, &mut buffer).is_ok());
        source.file.set_len(2 * PAGE_SIZE as u64 + 10).unwrap();
        let error = source.read(2, 1, &mut buffer).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
        let whole = bytes_of(source.read(1, 2, &mut buffer).unwrap());
        assert_eq!(whole, [7; PAGE_SIZE]);
    }

    #[test]
    fn images_are_told_apart_by_their_ids() {
        let mut other = vec![7; 3 * PAGE_SIZE];
        let one = image(&other).id();
        assert_eq!(image(&other).id(), one);
        other[PAGE_SIZE + 5] = 8;
        assert_ne!(image(&other).id(), one);
        let empty = RawFile::of(tempfile::tempfile().unwrap()).unwrap_err();
        assert!(empty.to_string().contains("empty"));
    }
}
