//! The snapshot file's fixed parts, byte by byte. `docs/snapshot-format.md` describes the whole.
//!
//! All numbers are little-endian. Nothing here reads or writes files.
//!
//! ```
//! use pagetide::track::snapshot::format::{Header, SnapshotId};
//!
//! let (id, parent) = (SnapshotId::random(), SnapshotId::NONE);
//! let header = Header { id, parent, created_ns: 0 };
//! assert_eq!(Header::decode(&header.encode()), Ok(header));
//! ```
use pagetide_kernel::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::debug_is_display;

/// First bytes of a snapshot file.
pub const MAGIC: [u8; 8] = *b"PTSNAP\r\n";
/// First bytes of the trailer.
pub const END_MAGIC: [u8; 8] = *b"PTSNEND\n";
/// The version this code writes and reads.
pub const VERSION: u32 = 1;
/// Bytes in the header.
pub const HEADER_BYTES: usize = 128;
/// Bytes in the trailer.
pub const TRAILER_BYTES: usize = 64;
/// Bytes of a block's entry in the directory.
pub const BLOCK_BYTES: usize = 24;
/// Bytes of a run's entry in the directory.
pub const RUN_BYTES: usize = 24;
/// Most pages in a block.
pub const BLOCK_PAGES_MAX: usize = 16;
/// Most bytes in an unpacked block.
pub const BLOCK_LEN_MAX: usize = BLOCK_PAGES_MAX * PAGE_SIZE;
/// Most pages in a region: 4 PiB.
pub const REGION_PAGES_MAX: u64 = 1 << 40;
/// In place of a block's number: the run's pages are zeros.
pub const ZEROS: u32 = u32::MAX;

/// Names a snapshot, for good: 16 random bytes.
///
/// ```
/// use pagetide::track::SnapshotId;
///
/// assert_ne!(SnapshotId::random(), SnapshotId::random());
/// assert_eq!(SnapshotId::NONE.to_string(), "0".repeat(32));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SnapshotId(pub [u8; 16]);

impl SnapshotId {
    /// The parent of a snapshot that has none.
    pub const NONE: SnapshotId = SnapshotId([0; 16]);

    /// A new one.
    pub fn random() -> SnapshotId {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        if filled != Ok(16) {
            // Before the kernel's generator is ready, at boot: time, process and a place in memory
            // tell snapshots apart.
            let now = pagetide_kernel::sync::now_ns();
            let here = (&raw const bytes) as u64 ^ u64::from(std::process::id()) << 40;
            bytes[..8].copy_from_slice(&now.to_le_bytes());
            bytes[8..].copy_from_slice(&xxh3_64(&here.to_le_bytes()).to_le_bytes());
        }
        SnapshotId(bytes)
    }
}

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

debug_is_display!(SnapshotId);

/// How a block's bytes are stored.
///
/// ```
/// use pagetide::track::snapshot::format::{Block, Codec};
///
/// let block = Block { offset: 128, stored_len: 1500, pages: 16, codec: Codec::Lz4, sum: 0 };
/// match block.codec {
///     Codec::Raw => println!("{} bytes as they are", block.stored_len),
///     Codec::Lz4 => println!("{} bytes for {} pages", block.stored_len, block.pages),
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    Raw = 0,
    /// An LZ4 block, without frame or length.
    Lz4 = 1,
}

/// The header's contents.
///
/// ```
/// use pagetide::track::snapshot::format::{HEADER_BYTES, Header, SnapshotId, Wrong};
///
/// # fn main() -> Result<(), Wrong> {
/// let header = Header { id: SnapshotId::random(), parent: SnapshotId::NONE, created_ns: 0 };
/// let bytes: [u8; HEADER_BYTES] = header.encode(); // a file begins with them
/// assert_eq!(Header::decode(&bytes)?.id, header.id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// This snapshot.
    pub id: SnapshotId,
    /// The snapshot that holds what this one does not; [`SnapshotId::NONE`] for a full one.
    pub parent: SnapshotId,
    /// Nanoseconds since 1970 when it was taken.
    pub created_ns: u64,
}

/// What is wrong with a fixed part.
///
/// ```
/// use pagetide::track::snapshot::format::{HEADER_BYTES, Header, SnapshotId, Wrong};
///
/// assert_eq!(Header::decode(&[0; HEADER_BYTES]), Err(Wrong::Magic));
///
/// let header = Header { id: SnapshotId::random(), parent: SnapshotId::NONE, created_ns: 0 };
/// let mut bytes = header.encode();
/// bytes[20] ^= 1;
/// let wrong = Header::decode(&bytes).unwrap_err();
/// assert_eq!(wrong.to_string(), "the header is damaged (checksum)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Other first bytes.
    #[error("this is not a snapshot file")]
    Magic,
    /// A version this code does not know.
    #[error("version {0} of the format; this program reads version {VERSION}")]
    Version(u32),
    /// Pages of another size.
    #[error("pages of {0} bytes; this machine has pages of {PAGE_SIZE}")]
    PageSize(u32),
    /// A checksum that does not match.
    #[error("the {0} is damaged (checksum)")]
    Checksum(&'static str),
    /// No trailer where it must be.
    #[error("the end is missing: the file is torn, or was never completed")]
    Torn,
    /// A part lies outside the file, or parts contradict each other.
    #[error("the {0} is damaged ({1})")]
    Shape(&'static str, &'static str),
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn id_at(bytes: &[u8], at: usize) -> SnapshotId {
    SnapshotId(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

impl Header {
    /// As written.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(PAGE_SIZE as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.id.0);
        bytes[32..48].copy_from_slice(&self.parent.0);
        bytes[48..56].copy_from_slice(&self.created_ns.to_le_bytes());
        let sum = xxh3_64(&bytes[..120]);
        bytes[120..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// As read.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Wrong> {
        if bytes[..8] != MAGIC {
            return Err(Wrong::Magic);
        }
        if u32_at(bytes, 8) != VERSION {
            return Err(Wrong::Version(u32_at(bytes, 8)));
        }
        if u64_at(bytes, 120) != xxh3_64(&bytes[..120]) {
            return Err(Wrong::Checksum("header"));
        }
        if u32_at(bytes, 12) != PAGE_SIZE as u32 {
            return Err(Wrong::PageSize(u32_at(bytes, 12)));
        }
        Ok(Header {
            id: id_at(bytes, 16),
            parent: id_at(bytes, 32),
            created_ns: u64_at(bytes, 48),
        })
    }
}

/// The trailer's contents: where the directory is.
///
/// ```
/// use pagetide::track::snapshot::format::{Header, SnapshotId, TRAILER_BYTES, Trailer, Wrong};
///
/// let header = Header { id: SnapshotId::random(), parent: SnapshotId::NONE, created_ns: 0 };
/// let trailer = Trailer { id: header.id, directory: 128, directory_len: 40, directory_sum: 0 };
/// let len = 128 + 40 + TRAILER_BYTES as u64; // bytes of the whole file
/// assert_eq!(Trailer::decode(&trailer.encode(), &header, len), Ok(trailer));
/// assert_eq!(Trailer::decode(&[0; TRAILER_BYTES], &header, len), Err(Wrong::Torn));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// The snapshot it belongs to.
    pub id: SnapshotId,
    /// Where the directory begins.
    pub directory: u64,
    /// Bytes of the directory.
    pub directory_len: u64,
    /// The directory's checksum.
    pub directory_sum: u64,
}

impl Trailer {
    /// As written; `self.directory + self.directory_len` is where.
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..8].copy_from_slice(&END_MAGIC);
        bytes[8..24].copy_from_slice(&self.id.0);
        bytes[24..32].copy_from_slice(&self.directory.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.directory_len.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.directory_sum.to_le_bytes());
        let len = self.directory + self.directory_len + TRAILER_BYTES as u64;
        bytes[48..56].copy_from_slice(&len.to_le_bytes());
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// As read from the end of a file of `len` bytes that begins with `header`.
    pub fn decode(
        bytes: &[u8; TRAILER_BYTES],
        header: &Header,
        len: u64,
    ) -> Result<Trailer, Wrong> {
        if bytes[..8] != END_MAGIC {
            return Err(Wrong::Torn);
        }
        if u64_at(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err(Wrong::Checksum("trailer"));
        }
        let trailer = Trailer {
            id: id_at(bytes, 8),
            directory: u64_at(bytes, 24),
            directory_len: u64_at(bytes, 32),
            directory_sum: u64_at(bytes, 40),
        };
        if trailer.id != header.id {
            return Err(Wrong::Shape("trailer", "it belongs to another snapshot"));
        }
        let end = trailer.directory.checked_add(trailer.directory_len);
        let fits = end.and_then(|end| end.checked_add(TRAILER_BYTES as u64)) == Some(len);
        if !fits || u64_at(bytes, 48) != len || trailer.directory < HEADER_BYTES as u64 {
            return Err(Wrong::Shape("trailer", "the file has another length"));
        }
        Ok(trailer)
    }
}

/// A region as the directory has it.
///
/// See the example of [`Directory`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionEntry {
    /// Its name, unique in the file.
    pub name: String,
    /// Where it was in memory.
    pub address: u64,
    /// Its length.
    pub pages: u64,
}

/// A block of up to [`BLOCK_PAGES_MAX`] pages.
///
/// See the example of [`Directory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub stored_len: u32,
    /// Pages in it.
    pub pages: u16,
    /// How they are stored.
    pub codec: Codec,
    /// Checksum of the stored bytes.
    pub sum: u64,
}

/// Pages that follow each other in a region and in a block.
///
/// See the example of [`Directory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index of the region.
    pub region: u32,
    /// How many.
    pub pages: u32,
    /// The first's place in the region.
    pub first: u64,
    /// Number of the block, or [`ZEROS`].
    pub block: u32,
    /// The first's place in the block.
    pub first_in_block: u32,
}

/// What the file holds, and where.
///
/// ```
/// use pagetide::track::snapshot::format::{Block, Codec, Directory, RegionEntry, Run};
///
/// // One block of one page, behind the header. It is page 7 of the region; all others are zeros.
/// let directory = Directory {
///     regions: vec![RegionEntry { name: "table".into(), address: 0, pages: 100 }],
///     blocks: vec![Block { offset: 128, stored_len: 4096, pages: 1, codec: Codec::Raw, sum: 0 }],
///     runs: vec![Run { region: 0, pages: 1, first: 7, block: 0, first_in_block: 0 }],
///     ..Directory::default()
/// };
/// let data_end = 128 + 4096; // bytes
/// assert_eq!(Directory::decode(&directory.encode(), data_end), Ok(directory));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Directory {
    /// Regions.
    pub regions: Vec<RegionEntry>,
    /// Name of the parent's file, without directories; empty for a full snapshot.
    pub parent_name: String,
    /// Blocks, in the order of their offsets.
    pub blocks: Vec<Block>,
    /// Runs, by region and first page; none overlap.
    pub runs: Vec<Run>,
}

impl Directory {
    /// As written.
    pub fn encode(&self) -> Vec<u8> {
        let tables = self.blocks.len() * BLOCK_BYTES + self.runs.len() * RUN_BYTES;
        let mut bytes = Vec::with_capacity(512 + tables);
        bytes.extend((self.regions.len() as u32).to_le_bytes());
        bytes.extend((self.blocks.len() as u32).to_le_bytes());
        bytes.extend((self.runs.len() as u64).to_le_bytes());
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        text(&mut bytes, &self.parent_name);
        for region in &self.regions {
            text(&mut bytes, &region.name);
            bytes.extend(region.address.to_le_bytes());
            bytes.extend(region.pages.to_le_bytes());
        }
        for block in &self.blocks {
            bytes.extend(block.offset.to_le_bytes());
            bytes.extend(block.stored_len.to_le_bytes());
            bytes.extend(block.pages.to_le_bytes());
            bytes.extend([block.codec as u8, 0]);
            bytes.extend(block.sum.to_le_bytes());
        }
        for run in &self.runs {
            bytes.extend(run.region.to_le_bytes());
            bytes.extend(run.pages.to_le_bytes());
            bytes.extend(run.first.to_le_bytes());
            bytes.extend(run.block.to_le_bytes());
            bytes.extend(run.first_in_block.to_le_bytes());
        }
        bytes
    }

    /// As read; blocks lie between the header and `data_end`. Allocates no more than a few times
    /// the length of `bytes`.
    pub fn decode(bytes: &[u8], data_end: u64) -> Result<Directory, Wrong> {
        let mut rest = Rest(bytes);
        let counts = rest.take(16)?;
        let (regions, blocks) = (u32_at(counts, 0) as usize, u32_at(counts, 4) as usize);
        let runs = usize::try_from(u64_at(counts, 8)).map_err(|_| shape("too many runs"))?;
        let mut directory = Directory {
            parent_name: rest.text()?,
            ..Directory::default()
        };
        for _ in 0..regions {
            let name = rest.text()?;
            let numbers = rest.take(16)?;
            let region = RegionEntry {
                name,
                address: u64_at(numbers, 0),
                pages: u64_at(numbers, 8),
            };
            if region.pages == 0 || region.pages > REGION_PAGES_MAX {
                return Err(shape("a region's length"));
            }
            directory.regions.push(region);
        }
        let mut names: Vec<&str> = directory.regions.iter().map(|r| r.name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(shape("two regions have one name"));
        }
        let table = blocks.checked_mul(BLOCK_BYTES);
        let table = table.ok_or(shape("too many blocks"))?;
        let mut end = HEADER_BYTES as u64;
        for entry in rest.take(table)?.chunks_exact(BLOCK_BYTES) {
            let block = decode_block(entry)?;
            let after = block.offset.checked_add(u64::from(block.stored_len));
            if block.offset < end || after.is_none_or(|after| after > data_end) {
                return Err(shape("a block is outside the data"));
            }
            end = block.offset + u64::from(block.stored_len);
            directory.blocks.push(block);
        }
        let table = runs.checked_mul(RUN_BYTES).ok_or(shape("too many runs"))?;
        for entry in rest.take(table)?.chunks_exact(RUN_BYTES) {
            let run = directory.decode_run(entry)?;
            directory.runs.push(run);
        }
        match rest.0.is_empty() {
            true => Ok(directory),
            false => Err(shape("it goes on after its end")),
        }
    }

    fn decode_run(&self, entry: &[u8]) -> Result<Run, Wrong> {
        let run = Run {
            region: u32_at(entry, 0),
            pages: u32_at(entry, 4),
            first: u64_at(entry, 8),
            block: u32_at(entry, 16),
            first_in_block: u32_at(entry, 20),
        };
        let region = self.regions.get(run.region as usize);
        let region = region.ok_or(shape("a run's region"))?;
        let end = run.first.checked_add(u64::from(run.pages));
        if run.pages == 0 || end.is_none_or(|end| end > region.pages) {
            return Err(shape("a run is outside its region"));
        }
        if run.block != ZEROS {
            let block = self
                .blocks
                .get(run.block as usize)
                .ok_or(shape("a run's block"))?;
            if u64::from(run.first_in_block) + u64::from(run.pages) > u64::from(block.pages) {
                return Err(shape("a run is outside its block"));
            }
        }
        if let Some(last) = self.runs.last() {
            let last_end = last.first + u64::from(last.pages);
            if (run.region, run.first) < (last.region, last_end) {
                return Err(shape("runs overlap"));
            }
        }
        Ok(run)
    }
}

fn shape(what: &'static str) -> Wrong {
    Wrong::Shape("directory", what)
}

/// What of the directory was not decoded yet.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], Wrong> {
        let halves = self.0.split_at_checked(len);
        let (head, tail) = halves.ok_or(shape("it ends too early"))?;
        self.0 = tail;
        Ok(head)
    }

    /// A length of two bytes and as many bytes of text.
    fn text(&mut self) -> Result<String, Wrong> {
        let len = u16_at(self.take(2)?, 0) as usize;
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| shape("a name is not text"))
    }
}

fn decode_block(entry: &[u8]) -> Result<Block, Wrong> {
    let codec = match entry[14] {
        0 => Codec::Raw,
        1 => Codec::Lz4,
        _ => return Err(shape("a block's codec")),
    };
    let block = Block {
        offset: u64_at(entry, 0),
        stored_len: u32_at(entry, 8),
        pages: u16_at(entry, 12),
        codec,
        sum: u64_at(entry, 16),
    };
    let len = block.pages as usize * PAGE_SIZE;
    let stored = block.stored_len as usize;
    let right = match codec {
        Codec::Raw => stored == len,
        Codec::Lz4 => stored > 0 && stored < len,
    };
    if !right || block.pages == 0 || block.pages as usize > BLOCK_PAGES_MAX {
        return Err(shape("a block's length"));
    }
    Ok(block)
}
