//! Writing a snapshot file: blocks as they come, the directory and the trailer at the end.
use std::io;

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use pagetide_kernel::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_64;

use super::format::{
    BLOCK_LEN_MAX, BLOCK_PAGES_MAX, Block, Codec, Directory, HEADER_BYTES, Header,
    REGION_PAGES_MAX, RegionEntry, Run, SnapshotId, TRAILER_BYTES, Trailer, ZEROS,
};
use super::sink::Sink;

/// The parent of an incremental snapshot.
///
/// ```
/// use pagetide::track::Image;
/// use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// use pagetide::track::snapshot::sink::FileSink;
/// use pagetide::track::snapshot::writer::{Parent, Writer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = std::env::temp_dir().join(format!("parent-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// let regions = vec![RegionEntry { name: "table".into(), address: 0, pages: 100 }];
/// let (first, second) = (SnapshotId::random(), SnapshotId::random());
/// let sink = Box::new(FileSink::create(&directory.join("first"))?);
/// Writer::new(sink, first, None, regions.clone())?.finish()?;
///
/// let parent = Parent { id: first, name: "first".into() };
/// let sink = Box::new(FileSink::create(&directory.join("second"))?);
/// Writer::new(sink, second, Some(&parent), regions)?.finish()?;
/// assert_eq!(Image::open(directory.join("second"))?.files().len(), 2);
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Parent {
    /// Its identity.
    pub id: SnapshotId,
    /// Name of its file, without directories: where a reader looks first.
    pub name: String,
}

/// What was written.
///
/// See the example of [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Pages with bytes of their own.
    pub pages: u64,
    /// Pages found to be zeros.
    pub zero_pages: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Writes one snapshot to a sink.
///
/// ```
/// use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// use pagetide::track::snapshot::sink::FileSink;
/// use pagetide::track::snapshot::writer::{Writer, Written};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("writer-{}", std::process::id()));
/// let region = RegionEntry { name: "table".into(), address: 0, pages: 100 };
/// let sink = Box::new(FileSink::create(&path)?);
/// let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
/// let two_pages = [[1; 4096], [2; 4096]].concat();
/// writer.put(0, &[7, 9], &two_pages)?; // pages 7 and 9 of region 0
/// writer.put_zeros(0, 10, 5); // pages 10 to 14
/// let written: Written = writer.finish()?;
/// println!("{} bytes", written.file_bytes);
/// assert_eq!((written.pages, written.zero_pages), (2, 5));
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct Writer {
    sink: Box<dyn Sink>,
    header: Header,
    directory: Directory,
    offset: u64,
    packed: Vec<u8>,
    /// LZ4's, used again for each block.
    table: CompressTable,
    /// The pages of a block that are not zeros, where some are.
    gathered: Vec<u8>,
    written: Written,
}

impl Writer {
    /// Starts a snapshot of `regions`, taken now; incremental if it has a parent.
    pub fn new(
        sink: Box<dyn Sink>,
        id: SnapshotId,
        parent: Option<&Parent>,
        regions: Vec<RegionEntry>,
    ) -> io::Result<Writer> {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = since_1970.map_or(0, |time| time.as_nanos() as u64);
        Writer::taken_at(now, sink, id, parent, regions)
    }

    /// The same for a snapshot that was taken `created_ns` nanoseconds after 1970 began: for one
    /// that is put together from others.
    pub fn taken_at(
        created_ns: u64,
        mut sink: Box<dyn Sink>,
        id: SnapshotId,
        parent: Option<&Parent>,
        regions: Vec<RegionEntry>,
    ) -> io::Result<Writer> {
        debug_assert!(
            regions
                .iter()
                .all(|region| region.pages <= REGION_PAGES_MAX)
        );
        let header = Header {
            id,
            parent: parent.map_or(SnapshotId::NONE, |parent| parent.id),
            created_ns,
        };
        sink.append(&header.encode())?;
        Ok(Writer {
            sink,
            header,
            directory: Directory {
                regions,
                parent_name: parent.map_or_else(String::new, |parent| parent.name.clone()),
                ..Directory::default()
            },
            offset: HEADER_BYTES as u64,
            packed: vec![0; get_maximum_output_size(BLOCK_LEN_MAX)],
            table: CompressTable::large(),
            gathered: Vec::with_capacity(BLOCK_LEN_MAX),
            written: Written::default(),
        })
    }

    /// Adds pages of one region, at most [`BLOCK_PAGES_MAX`]: `pages[i]`'s bytes are the i-th page
    /// of `bytes`. Each page is given once in a snapshot. Pages of zeros take no room.
    pub fn put(&mut self, region: u32, pages: &[u64], bytes: &[u8]) -> io::Result<()> {
        assert!(pages.len() <= BLOCK_PAGES_MAX && bytes.len() == pages.len() * PAGE_SIZE);
        let page_bytes = |index: usize| &bytes[index * PAGE_SIZE..][..PAGE_SIZE];
        let number = self.directory.blocks.len() as u32;
        self.gathered.clear();
        let mut kept = 0;
        for (index, page) in pages.iter().enumerate() {
            if is_zero(page_bytes(index)) {
                if kept == index {
                    // The first one: those before it are all kept.
                    self.gathered.extend_from_slice(&bytes[..index * PAGE_SIZE]);
                }
                self.put_zeros(region, *page, 1);
                continue;
            }
            let place = kept as u32;
            if kept < index {
                self.gathered.extend_from_slice(page_bytes(index));
            }
            kept += 1;
            self.written.pages += 1;
            self.add_run(Run {
                region,
                pages: 1,
                first: *page,
                block: number,
                first_in_block: place,
            });
        }
        match kept {
            0 => Ok(()),
            kept if kept == pages.len() => self.put_block(bytes),
            _ => {
                let gathered = std::mem::take(&mut self.gathered);
                let result = self.put_block(&gathered);
                self.gathered = gathered;
                result
            }
        }
    }

    /// Adds pages of zeros. A full snapshot does not name them.
    pub fn put_zeros(&mut self, region: u32, first: u64, pages: u64) {
        self.written.zero_pages += pages;
        if self.header.parent == SnapshotId::NONE {
            return;
        }
        let (mut first, mut rest) = (first, pages);
        while rest > 0 {
            let count = rest.min(u64::from(u32::MAX));
            self.add_run(Run {
                region,
                pages: count as u32,
                first,
                block: ZEROS,
                first_in_block: 0,
            });
            first += count;
            rest -= count;
        }
    }

    /// Adds a run, joined to the one before where it continues it.
    fn add_run(&mut self, run: Run) {
        if let Some(last) = self.directory.runs.last_mut() {
            let follows = last.region == run.region
                && last.first + u64::from(last.pages) == run.first
                && last.block == run.block
                && (run.block == ZEROS || last.first_in_block + last.pages == run.first_in_block);
            if follows && let Some(pages) = last.pages.checked_add(run.pages) {
                last.pages = pages;
                return;
            }
        }
        self.directory.runs.push(run);
    }

    fn put_block(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len();
        let packed = compress_into_with_table(bytes, &mut self.packed, &mut self.table)
            .ok()
            .filter(|packed| *packed < len);
        let (codec, stored) = match packed {
            Some(packed) => (Codec::Lz4, &self.packed[..packed]),
            None => (Codec::Raw, bytes),
        };
        self.sink.append(stored)?;
        self.directory.blocks.push(Block {
            offset: self.offset,
            stored_len: stored.len() as u32,
            pages: (len / PAGE_SIZE) as u16,
            codec,
            sum: xxh3_64(stored),
        });
        self.offset += stored.len() as u64;
        Ok(())
    }

    /// Writes the directory and the trailer, and makes the file durable and visible.
    pub fn finish(mut self) -> io::Result<Written> {
        self.directory
            .runs
            .sort_unstable_by_key(|run| (run.region, run.first));
        let directory = self.directory.encode();
        let trailer = Trailer {
            id: self.header.id,
            directory: self.offset,
            directory_len: directory.len() as u64,
            directory_sum: xxh3_64(&directory),
        };
        self.sink.append(&directory)?;
        self.sink.append(&trailer.encode())?;
        self.sink.commit()?;
        self.written.file_bytes = self.offset + directory.len() as u64 + TRAILER_BYTES as u64;
        Ok(self.written)
    }
}

/// Whether all bytes are zero; `bytes` is a whole number of words.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes
        .chunks_exact(64)
        .all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}
