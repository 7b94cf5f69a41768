//! Where the pages come from: a raw memory file, or a snapshot with those it builds on.
pub(crate) mod blocks;
pub(crate) mod look_up;
mod raw;
mod snapshot;

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::marker::PhantomData;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::SnapshotId;
use pagetide_track::snapshot::format::MAGIC;
use pagetide_track::snapshot::reader::BlockBuffer;
use rustix::fs::OFlags;

pub use raw::RawFile;
pub use snapshot::SnapshotImage;

use crate::counters::Origin;
use blocks::Block;

/// Why pages cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// An image of memory: pages of 4 KiB, counted from 0. Used by many threads at a time.
pub trait Source: Debug + Send + Sync {
    /// How many pages it has. Those beyond it are zeros.
    fn pages(&self) -> u64;

    /// What a recorded working set of this image is known by.
    fn id(&self) -> SnapshotId;

    /// Where the bytes of page `first` are, if it has some that are not zeros.
    fn origin(&self, first: u64) -> Origin;

    /// The bytes of page `first`, and of those after it that come with it: at least one, at most
    /// `most` (which is not 0).
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    fn read<'b>(
        &'b self,
        first: u64,
        most: u64,
        buffer: &'b mut Buffer,
    ) -> Result<Piece<'b>, SourceError>;

    /// Fills `into`, a whole number of pages, with the bytes from page `first` on; by a way that
    /// says why it fails, also where the kernel cannot read a piece of [`Source::read`] (`EFAULT`).
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    fn read_into(
        &self,
        first: u64,
        into: &mut [u8],
        buffer: &mut Buffer,
    ) -> Result<(), SourceError>;
}

/// Pages of an image.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'b> {
    /// So many pages of zeros.
    Zeros(u64),
    /// Bytes.
    Bytes(Bytes<'b>),
}

/// Bytes of pages, to be copied by the kernel. They may be those of a file that others change, so
/// there is no slice of them.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'b> {
    address: *const u8,
    pages: u64,
    lives: PhantomData<&'b [u8]>,
}

impl<'b> Bytes<'b> {
    /// Of memory that nobody changes, a whole number of pages.
    pub fn of(bytes: &'b [u8]) -> Bytes<'b> {
        Bytes {
            address: bytes.as_ptr(),
            pages: (bytes.len() / PAGE_SIZE) as u64,
            lives: PhantomData,
        }
    }

    /// Where the first byte is. The bytes are mapped while `'b` lasts; reading them may fail where
    /// they are those of a file.
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// How many pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}

/// What a thread that reads again and again keeps.
#[derive(Default)]
pub struct Buffer {
    block: Option<Arc<Block>>,
    unpacking: Option<Box<BlockBuffer>>,
    fetched: Vec<u8>,
}

impl Buffer {
    /// Room for pages that come from elsewhere.
    pub(crate) fn fetched(&mut self) -> &mut Vec<u8> {
        &mut self.fetched
    }
}

/// Opens the file, or the block device, at `path` without waiting: of a pipe nobody may hold the
/// other end.
pub(crate) fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_dir() || kind.is_block_device() {
        // Reading a directory says what it is.
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a pipe, a socket or a terminal; expected a regular file or a block device",
        )),
    }
}

/// Opens what is at `path`: a Pagetide snapshot, known by its first bytes, with its parents; else a
/// raw image of memory.
///
/// # Errors
/// It cannot be opened, is empty, or is a snapshot that is not whole.
pub fn open(path: &Path) -> Result<Arc<dyn Source>, SourceError> {
    let told = |error: io::Error| SourceError(format!("{}: {error}", path.display()));
    let file = opened(path).map_err(told)?;
    let mut head = Vec::new();
    let is_file = file.metadata().map_err(told)?.is_file();
    (&file)
        .take(MAGIC.len() as u64)
        .read_to_end(&mut head)
        .map_err(told)?;
    if is_file && head == MAGIC {
        return Ok(Arc::new(SnapshotImage::open(path)?));
    }
    Ok(Arc::new(RawFile::of(file).map_err(told)?))
}
