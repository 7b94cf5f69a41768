//! Reading a snapshot file: everything is checked before it is used, and no length in the file is
//! believed.
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use pagetide_kernel::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_64;

use super::format::{
    BLOCK_LEN_MAX, Codec, Directory, HEADER_BYTES, Header, RegionEntry, Run, SnapshotId,
    TRAILER_BYTES, Trailer, Wrong,
};
use crate::error::debug_is_display;

/// Bytes that can be read at any place.
///
/// ```
/// use std::fs::File;
/// use std::io;
/// use std::os::unix::fs::FileExt;
///
/// use pagetide::track::snapshot::reader::{SnapshotFile, Source};
///
/// /// A snapshot inside a larger file.
/// struct Part {
///     file: File,
///     begin: u64, // in bytes
///     len: u64,
/// }
///
/// impl Source for Part {
///     fn len(&self) -> io::Result<u64> {
///         Ok(self.len)
///     }
///
///     fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
///         self.file.read_exact_at(buffer, self.begin + offset)
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let part = Part { file: File::open("/proc/self/exe")?, begin: 4096, len: 1000 };
/// let error = SnapshotFile::from_source("part", Box::new(part)).unwrap_err();
/// assert_eq!(error.to_string(), "part: this is not a snapshot file");
/// # Ok(())
/// # }
/// ```
pub trait Source: Send + Sync {
    /// How many there are.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Whether there are none.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

impl Source for File {
    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|meta| meta.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl Source for Vec<u8> {
    fn len(&self) -> io::Result<u64> {
        Ok(Vec::len(self) as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(from..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Why a snapshot file cannot be used. Every message begins with the file's name.
///
/// ```
/// use pagetide::track::{FileError, Image};
///
/// let error = Image::open("/no/such/snapshot").unwrap_err();
/// assert!(matches!(error, FileError::Io(..)));
/// ```
#[derive(thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    /// It is not what it should be.
    #[error("{0}: {1}")]
    Wrong(String, #[source] Wrong),
    /// A block's bytes are not those that were written.
    #[error("{name}: block {block} at byte {offset} is damaged ({what})")]
    Block {
        /// The file.
        name: String,
        /// Number of the block.
        block: u32,
        /// Where it is.
        offset: u64,
        /// How that is known.
        what: &'static str,
    },
    /// The parent is not there, or another snapshot has its name.
    #[error(
        "{name}: its parent, snapshot {parent}, is not {looked}; it is looked for by its name in \
         the same directory: put it there"
    )]
    Parent {
        /// The file.
        name: String,
        /// The parent.
        parent: SnapshotId,
        /// Where it was looked for.
        looked: String,
    },
    /// A region that is asked for is not in the file, or has another length.
    #[error("{name}: {what}")]
    Region {
        /// The file.
        name: String,
        /// What was expected.
        what: String,
    },
}

debug_is_display!(FileError);

/// An open snapshot file.
///
/// ```
/// use std::path::Path;
///
/// use pagetide::track::FileError;
/// use pagetide::track::snapshot::reader::{BlockBuffer, SnapshotFile};
/// # use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// # use pagetide::track::snapshot::sink::FileSink;
/// # use pagetide::track::snapshot::writer::Writer;
///
/// fn verify(path: &Path) -> Result<(), FileError> {
///     let file = SnapshotFile::open(path)?; // all but the blocks is checked
///     let mut buffer = BlockBuffer::default();
///     for block in 0..file.blocks() {
///         file.read_block(block, &mut buffer)?; // an error names a damaged one
///     }
///     println!("{}: {} bytes, {:?}", file.name(), file.file_len(), file.regions());
///     Ok(())
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("verify-{}", std::process::id()));
/// # let region = RegionEntry { name: "table".into(), address: 0, pages: 100 };
/// # let sink = Box::new(FileSink::create(&path)?);
/// # let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
/// # writer.put(0, &[7], &[1; 4096])?;
/// # writer.finish()?;
/// # verify(&path)?;
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct SnapshotFile {
    name: String,
    source: Box<dyn Source>,
    header: Header,
    directory: Directory,
    len: u64,
}

/// Room for one block.
///
/// See the example of [`SnapshotFile`]: one serves for all blocks, one after the other.
pub struct BlockBuffer {
    stored: Vec<u8>,
    pages: Vec<u8>,
}

impl Default for BlockBuffer {
    fn default() -> BlockBuffer {
        BlockBuffer {
            stored: vec![0; BLOCK_LEN_MAX],
            pages: vec![0; BLOCK_LEN_MAX],
        }
    }
}

impl SnapshotFile {
    /// Opens and checks the file at `path`: everything but the blocks, which are checked when they
    /// are read. What is no regular file is refused.
    pub fn open(path: &Path) -> Result<SnapshotFile, FileError> {
        Ok(open_file(path)?.0)
    }

    /// The same for bytes from anywhere; `name` is for messages.
    pub fn from_source(name: &str, source: Box<dyn Source>) -> Result<SnapshotFile, FileError> {
        let io = |error| FileError::Io(name.to_owned(), error);
        let wrong = |wrong| FileError::Wrong(name.to_owned(), wrong);
        let len = source.len().map_err(io)?;
        let mut head = [0; HEADER_BYTES];
        if len < HEADER_BYTES as u64 {
            // What there is decides whether it is a torn snapshot or something else.
            let held = len as usize;
            source.read_at(&mut head[..held], 0).map_err(io)?;
            let torn = super::format::MAGIC.starts_with(&head[..held.min(8)]) && held > 0;
            return Err(wrong(if torn { Wrong::Torn } else { Wrong::Magic }));
        }
        source.read_at(&mut head, 0).map_err(io)?;
        let header = Header::decode(&head).map_err(wrong)?;
        if len < (HEADER_BYTES + TRAILER_BYTES) as u64 {
            return Err(wrong(Wrong::Torn));
        }
        let mut end = [0; TRAILER_BYTES];
        source
            .read_at(&mut end, len - TRAILER_BYTES as u64)
            .map_err(io)?;
        let trailer = Trailer::decode(&end, &header, len).map_err(wrong)?;
        // The trailer was checked against the file's length: this allocates no more than there is.
        let mut bytes = Vec::new();
        let len_in_memory = usize::try_from(trailer.directory_len).unwrap_or(usize::MAX);
        let no_memory = |_| io(io::ErrorKind::OutOfMemory.into());
        bytes.try_reserve_exact(len_in_memory).map_err(no_memory)?;
        bytes.resize(len_in_memory, 0);
        source.read_at(&mut bytes, trailer.directory).map_err(io)?;
        if xxh3_64(&bytes) != trailer.directory_sum {
            return Err(wrong(Wrong::Checksum("directory")));
        }
        let directory = Directory::decode(&bytes, trailer.directory).map_err(wrong)?;
        Ok(SnapshotFile {
            name: name.to_owned(),
            source,
            header,
            directory,
            len,
        })
    }

    /// The name it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity, its parent's, and when it was taken.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The parent, if it is incremental.
    pub fn parent(&self) -> Option<SnapshotId> {
        Some(self.header.parent).filter(|parent| *parent != SnapshotId::NONE)
    }

    /// Name of the parent's file when this one was written.
    pub fn parent_name(&self) -> &str {
        &self.directory.parent_name
    }

    /// Its regions.
    pub fn regions(&self) -> &[RegionEntry] {
        &self.directory.regions
    }

    /// Runs of pages that the file names, by region and page.
    pub fn runs(&self) -> &[Run] {
        &self.directory.runs
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.directory.blocks.len() as u32
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// Reads block `block` and checks it; its pages, one after the other.
    pub fn read_block<'b>(
        &self,
        block: u32,
        buffer: &'b mut BlockBuffer,
    ) -> Result<&'b [u8], FileError> {
        let entry = self.directory.blocks.get(block as usize).copied();
        let entry = entry.ok_or_else(|| FileError::Region {
            name: self.name.clone(),
            what: format!("it has no block {block}; it has {}", self.blocks()),
        })?;
        let damaged = |what| FileError::Block {
            name: self.name.clone(),
            block,
            offset: entry.offset,
            what,
        };
        let stored = &mut buffer.stored[..entry.stored_len as usize];
        self.source
            .read_at(stored, entry.offset)
            .map_err(|error| FileError::Io(self.name.clone(), error))?;
        if xxh3_64(stored) != entry.sum {
            return Err(damaged("checksum"));
        }
        let pages = &mut buffer.pages[..entry.pages as usize * PAGE_SIZE];
        match entry.codec {
            Codec::Raw => pages.copy_from_slice(stored),
            Codec::Lz4 => {
                let len = lz4_flex::block::decompress_into(stored, pages)
                    .map_err(|_| damaged("compressed data"))?;
                if len != pages.len() {
                    return Err(damaged("unpacked length"));
                }
            }
        }
        Ok(pages)
    }
}

impl std::fmt::Debug for SnapshotFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotFile")
            .field("name", &self.name)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// Which file an open one is, whatever its names are.
///
/// ```
/// use pagetide::track::snapshot::reader::open_file;
/// # use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// # use pagetide::track::snapshot::sink::FileSink;
/// # use pagetide::track::snapshot::writer::Writer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("identity-{}", std::process::id()));
/// # let region = RegionEntry { name: "table".into(), address: 0, pages: 100 };
/// # let sink = Box::new(FileSink::create(&path)?);
/// # let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
/// # writer.put(0, &[7], &[1; 4096])?;
/// # writer.finish()?;
/// let link = path.with_extension("link");
/// std::fs::hard_link(&path, &link)?;
/// let ((_, one), (_, other)) = (open_file(&path)?, open_file(&link)?);
/// assert_eq!(one, other); // two names of one file
/// # std::fs::remove_file(&path)?;
/// # std::fs::remove_file(&link)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

/// Opens the regular file at `path`, which is to be `expected`, without waiting: of a pipe nobody
/// may hold the other end.
pub(super) fn open_regular(path: &Path, expected: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => {
            let text = format!(
                "it is {}, not a regular file; name {expected}",
                kind_of(kind)
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

/// Opens a snapshot file, and says which it is. What is no regular file is refused; a FIFO without
/// a writer is not waited for.
pub fn open_file(path: &Path) -> Result<(SnapshotFile, FileIdentity), FileError> {
    let name = path.display().to_string();
    let io = |error| FileError::Io(name.clone(), error);
    let file = open_regular(path, "the file of a snapshot").map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    let identity = FileIdentity {
        device: meta.dev(),
        inode: meta.ino(),
    };
    let file = SnapshotFile::from_source(&name, Box::new(file))?;
    Ok((file, identity))
}

fn kind_of(file: FileType) -> &'static str {
    match file {
        file if file.is_dir() => "a directory",
        file if file.is_fifo() => "a FIFO",
        _ => "a device",
    }
}
