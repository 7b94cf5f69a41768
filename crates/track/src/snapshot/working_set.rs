//! The order in which a run first touched its pages, kept in a small file beside the snapshot.
//!
//! ```text
//!  0   8  magic "PTWSET\r\n"
//!  8  16  id of the snapshot
//! 24   8  number of pages
//! 32      8 bytes a page: its index among all pages of the image
//!         8 bytes: xxh3 of everything before
//! ```
use std::io::{self, Read as _};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::format::{SnapshotId, u64_at};
use super::reader::open_regular;
use super::sink::{FileSink, Sink, naming};

const MAGIC: [u8; 8] = *b"PTWSET\r\n";
const HEAD_BYTES: usize = 32;
/// Most bytes a file may have: 2^27 pages, 512 GiB of touched memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Pages in the order of their first touch.
///
/// ```
/// use pagetide::track::{Image, LazyPlan, Restored, WorkingSet, restore};
///
/// /// As fast as the last run touched it, if that was recorded.
/// fn warm(path: &str, set: &str) -> Result<Restored, Box<dyn std::error::Error>> {
///     let image = Image::open(path)?;
///     let id = image.files()[0].header().id;
///     let plan = match WorkingSet::load(set, id) {
///         Ok(recorded) => LazyPlan::default().replay(recorded),
///         Err(_) => LazyPlan::default(),
///     };
///     Ok(restore(image, plan)?)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSet {
    /// The snapshot whose pages these are.
    pub snapshot: SnapshotId,
    /// Indexes among all pages of the image.
    pub pages: Vec<u64>,
}

impl WorkingSet {
    /// Writes the file `path`; it appears when it is complete.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.pages.len() * 8 + 8);
        bytes.extend(MAGIC);
        bytes.extend(self.snapshot.0);
        bytes.extend((self.pages.len() as u64).to_le_bytes());
        self.pages
            .iter()
            .for_each(|page| bytes.extend(page.to_le_bytes()));
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        let mut sink = FileSink::create(path.as_ref())?;
        sink.append(&bytes)?;
        sink.commit()
    }

    /// Reads the file `path`. A file that is damaged, or of another snapshot, is an error; the
    /// caller may go on without.
    pub fn load(path: impl AsRef<Path>, snapshot: SnapshotId) -> io::Result<WorkingSet> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        open_regular(path, "the file of a working set")
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(naming(path))?;
        let set = WorkingSet::decode(&bytes).ok_or_else(|| {
            let text = format!("{} is not a whole working set file", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        if set.snapshot == snapshot {
            return Ok(set);
        }
        let text = format!(
            "{} is the working set of snapshot {}, not of {snapshot}",
            path.display(),
            set.snapshot
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// Whether a working set may take the place of the file `path`: it begins as one does, or is
    /// empty.
    pub fn may_replace(path: impl AsRef<Path>) -> bool {
        let mut head = Vec::new();
        let read = open_regular(path.as_ref(), "the file of a working set")
            .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
        read.is_ok() && (head.is_empty() || head == MAGIC)
    }

    /// The contents of a file, if they are whole.
    pub fn decode(bytes: &[u8]) -> Option<WorkingSet> {
        let end = bytes.len().checked_sub(8)?;
        if end < HEAD_BYTES || bytes[..8] != MAGIC || u64_at(bytes, end) != xxh3_64(&bytes[..end]) {
            return None;
        }
        let pages = &bytes[HEAD_BYTES..end];
        if pages.len() as u64 != u64_at(bytes, 24).checked_mul(8)? {
            return None;
        }
        Some(WorkingSet {
            snapshot: SnapshotId(bytes[8..24].try_into().ok()?),
            pages: pages.chunks_exact(8).map(|page| u64_at(page, 0)).collect(),
        })
    }
}
