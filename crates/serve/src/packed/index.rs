//! The file beside images that says where their pages lie.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `PTPACK\r\n` |
//! | 4, 4 | version, 1; bytes in a page, 4096 |
//! | 16 | checksum of the images it is of |
//! | 2 + n | length and text of the store's URI |
//! | 4 | number of volumes, then 16 bytes for the id of each |
//! | 4 | number of files of pages, then for each: |
//! | 4, 4, 4 | level of its directory, its number; number of runs, then for each: |
//! | 4, 4, 4 | pages; which volume, or 2^32 - 1 for zeros; place of the first in the volume |
//! | 8 | checksum (XXH3-64) of everything before |
//!
//! All numbers are little-endian. No length in it is believed: it takes a few times its own bytes.
use std::io;
use std::path::Path;

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::SnapshotId;
use pagetide_track::snapshot::sink::{FileSink, Sink as _};
use xxhash_rust::xxh3::xxh3_64;

/// Its name in the directory of the images.
pub const INDEX_NAME: &str = "pagetide.pages";
const VERSION: u32 = 1;
/// In place of a volume's number.
const ZEROS: u32 = u32::MAX;
/// Most bytes of an index that is read.
const BYTES_MAX: u64 = 4 << 30;
/// Most pages of a file: 4 PiB.
const FILE_PAGES_MAX: u64 = 1 << 40;

/// Where pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// They are zeros.
    Zeros,
    /// In a volume, one after the other.
    Volume {
        /// Which one, by its place among the index's.
        volume: u32,
        /// Where the first page is in it.
        page: u32,
    },
}

/// Pages that follow each other in a file and at their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first one's number in the file.
    pub first: u64,
    /// How many.
    pub pages: u32,
    /// Where they are.
    pub place: Place,
}

impl Run {
    /// The place of the page after the last.
    fn next(&self) -> Option<Place> {
        match self.place {
            Place::Zeros => Some(Place::Zeros),
            Place::Volume { volume, page } => {
                let page = page.checked_add(self.pages)?;
                Some(Place::Volume { volume, page })
            }
        }
    }
}

/// A file of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// In which directory: 0 for the images' own, 1 for those they build on, and so on.
    pub level: u32,
    /// It is called `pages-NUMBER.img`.
    pub number: u32,
    pages: u64,
    runs: Vec<Run>,
}

impl File {
    /// A file without pages.
    pub fn new(level: u32, number: u32) -> File {
        File {
            level,
            number,
            pages: 0,
            runs: Vec::new(),
        }
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Where they are, from the first to the last.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Adds a page at the end.
    pub fn push(&mut self, place: Place) {
        let first = self.pages;
        self.pages += 1;
        if let Some(last) = self.runs.last_mut()
            && last.next() == Some(place)
            && last.pages < u32::MAX
        {
            last.pages += 1;
            return;
        }
        self.runs.push(Run {
            first,
            pages: 1,
            place,
        });
    }

    /// Where page `page` is, and how many from it on are there; `None` beyond the end.
    pub fn find(&self, page: u64) -> Option<(Place, u64)> {
        let after = self.runs.partition_point(|run| run.first <= page);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let offset = page - run.first;
        let rest = u64::from(run.pages).checked_sub(offset)?;
        let place = match run.place {
            Place::Zeros => Place::Zeros,
            // Smaller than the pages of the run, which are.
            Place::Volume { volume, page } => Place::Volume {
                volume,
                page: page + offset as u32,
            },
        };
        (rest > 0).then_some((place, rest))
    }
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Of the images it is of.
    pub images: u128,
    /// Where the volumes are, as it was when it was written.
    pub store: String,
    /// Those that have pages of these images.
    pub volumes: Vec<SnapshotId>,
    /// The files of pages.
    pub files: Vec<File>,
}

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is none, or not whole.
    #[error("it is no index of packed pages: {0}")]
    Wrong(String),
}

impl Index {
    /// What its file begins with.
    pub const MAGIC: [u8; 8] = *b"PTPACK\r\n";

    /// Reads the one at `path`.
    ///
    /// # Errors
    /// It cannot be read, or is not what it should be.
    pub fn load(path: &Path) -> Result<Index, IndexError> {
        let len = std::fs::metadata(path)?.len();
        if len > BYTES_MAX {
            let text = format!("it has {len} bytes; at most {BYTES_MAX} were expected");
            return Err(IndexError::Wrong(text));
        }
        Index::decode(&std::fs::read(path)?).map_err(IndexError::Wrong)
    }

    /// Writes it to `path`, where it is when it is whole and on the disk.
    ///
    /// # Errors
    /// The file system.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut sink = FileSink::create(path)?;
        sink.append(&self.encode()?)?;
        sink.commit()
    }

    /// The file `pages-NUMBER.img` of the directory at `level`.
    pub fn file(&self, level: u32, number: u32) -> Option<&File> {
        let mut files = self.files.iter();
        files.find(|file| (file.level, file.number) == (level, number))
    }

    /// The bytes of its file.
    ///
    /// # Errors
    /// There is more of something than the file has room to tell.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let too_much = |_| io::Error::other("it has more parts than an index can have");
        let number = |len: usize| u32::try_from(len).map(u32::to_le_bytes).map_err(too_much);
        let mut bytes = Index::MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((PAGE_SIZE as u32).to_le_bytes());
        bytes.extend(self.images.to_le_bytes());
        let uri = u16::try_from(self.store.len()).map_err(too_much)?;
        bytes.extend(uri.to_le_bytes());
        bytes.extend(self.store.as_bytes());
        bytes.extend(number(self.volumes.len())?);
        self.volumes.iter().for_each(|id| bytes.extend(id.0));
        bytes.extend(number(self.files.len())?);
        for file in &self.files {
            bytes.extend(file.level.to_le_bytes());
            bytes.extend(file.number.to_le_bytes());
            bytes.extend(number(file.runs.len())?);
            for run in &file.runs {
                let (volume, page) = match run.place {
                    Place::Zeros => (ZEROS, 0),
                    Place::Volume { volume, page } => (volume, page),
                };
                [run.pages, volume, page]
                    .iter()
                    .for_each(|number| bytes.extend(number.to_le_bytes()));
            }
        }
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        Ok(bytes)
    }

    /// Reads what [`Index::save`] wrote. Any bytes may be given.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Index, String> {
        let (bytes, sum) = bytes.split_last_chunk::<8>().ok_or("it is too short")?;
        let mut parts = Parts(bytes);
        if parts.take(8)? != Index::MAGIC {
            return Err("it begins with other bytes".to_owned());
        }
        let version = parts.number()?;
        if version != VERSION {
            return Err(format!(
                "it is of version {version}; this program reads version {VERSION}"
            ));
        }
        if xxh3_64(bytes) != u64::from_le_bytes(*sum) {
            return Err("it is damaged (checksum)".to_owned());
        }
        let page = parts.number()?;
        if page != PAGE_SIZE as u32 {
            return Err(format!("its pages have {page} bytes, not {PAGE_SIZE}"));
        }
        let images = u128::from_le_bytes(parts.array()?);
        let len = u16::from_le_bytes(parts.array()?);
        let store = std::str::from_utf8(parts.take(len.into())?);
        let store = store.map_err(|_| "its URI is no text")?.to_owned();
        let mut volumes = Vec::new();
        for _ in 0..parts.number()? {
            volumes.push(SnapshotId(parts.array()?));
        }
        let mut files: Vec<File> = Vec::new();
        for _ in 0..parts.number()? {
            files.push(parts.file(volumes.len() as u64)?);
        }
        match parts.0 {
            [] => Ok(Index {
                images,
                store,
                volumes,
                files,
            }),
            rest => Err(format!("{} bytes follow its end", rest.len())),
        }
    }
}

/// What is left to be read.
struct Parts<'b>(&'b [u8]);

impl<'b> Parts<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], String> {
        let split = self.0.split_at_checked(len);
        let (part, rest) = split.ok_or("it ends within a part of it")?;
        self.0 = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn number(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn file(&mut self, volumes: u64) -> Result<File, String> {
        let mut file = File::new(self.number()?, self.number()?);
        let name = format!("pages-{}.img of directory {}", file.number, file.level);
        for _ in 0..self.number()? {
            let (pages, volume, page) = (self.number()?, self.number()?, self.number()?);
            let run = Run {
                first: file.pages,
                pages,
                place: match volume {
                    ZEROS => Place::Zeros,
                    volume => Place::Volume { volume, page },
                },
            };
            let is_there = match volume {
                ZEROS => page == 0,
                volume => u64::from(volume) < volumes,
            };
            if pages == 0 || !is_there || run.next().is_none() {
                return Err(format!(
                    "a run of {name} is of {pages} pages from page {page} of volume {volume}, and \
                     there are {volumes} volumes"
                ));
            }
            file.pages += u64::from(pages);
            if file.pages > FILE_PAGES_MAX {
                return Err(format!("{name} has more than {FILE_PAGES_MAX} pages"));
            }
            file.runs.push(run);
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(volume: u32, page: u32) -> Place {
        Place::Volume { volume, page }
    }

    fn index() -> Index {
        let mut file = File::new(0, 3);
        for place in [
            at(1, 7),
            at(1, 8),
            Place::Zeros,
            Place::Zeros,
            at(0, 9),
            at(1, 9),
        ] {
            file.push(place);
        }
        Index {
            images: 77 << 99,
            store: "file:/somewhere".to_owned(),
            volumes: vec![SnapshotId([1; 16]), SnapshotId([2; 16])],
            files: vec![file, File::new(1, 3)],
        }
    }

    /// With the checksum it would have.
    fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
        let end = bytes.len() - 8;
        let sum = xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(INDEX_NAME);
        index().save(&path).unwrap();
        assert_eq!(Index::load(&path).unwrap(), index());
        assert!(matches!(
            Index::load(&place.path().join("none")),
            Err(IndexError::Io(_))
        ));
    }

    #[test]
    fn pages_are_found_with_those_that_follow_them() {
        let file = &index().files[0];
        assert_eq!((file.pages(), file.runs().len()), (6, 4));
        let expected = [
            Some((at(1, 7), 2)),
            Some((at(1, 8), 1)),
            Some((Place::Zeros, 2)),
            Some((Place::Zeros, 1)),
            Some((at(0, 9), 1)),
            Some((at(1, 9), 1)),
            None,
        ];
        for (page, expected) in (0..).zip(expected) {
            assert_eq!(file.find(page), expected, "{page}");
        }
        assert_eq!(index().file(1, 3).unwrap().find(0), None);
        assert_eq!(index().file(1, 4), None);
    }

    #[test]
    fn what_is_no_index_is_refused_and_the_reason_said() {
        let good = index().encode().unwrap();
        assert_eq!(Index::decode(&good), Ok(index()));
        let refused = |bytes: &[u8]| Index::decode(bytes).unwrap_err();
        for len in 0..good.len() {
            refused(&good[..len]);
            // One that was made so on purpose.
            refused(&summed(good[..len.max(8)].to_vec()));
        }
        let changed = |at: usize, number: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            summed(bytes)
        };
        let uri = 34 + index().store.len();
        let runs = uri + 4 + 32 + 4 + 12;
        for (at, number, expected) in [
            (0, 7, "begins with other bytes"),
            (8, 2, "version 2"),
            (12, 65536, "65536 bytes"),
            (uri, u32::MAX, "ends within"),
            (uri, 1, "ends within"),
            (uri + 36, u32::MAX, "ends within"),
            (uri + 36, 1, "bytes follow its end"),
            (runs - 4, u32::MAX, "ends within"),
            (runs, 0, "of 0 pages"),
            (runs + 4, 2, "volume 2, and there are 2"),
            (runs + 8, u32::MAX, "volume 1, and"),
        ] {
            let why = refused(&changed(at, number));
            let ok = why.contains(expected) || (expected == "ends within" && !why.is_empty());
            assert!(ok, "{at}: {why}");
        }
        let mut flipped = good.clone();
        flipped[40] ^= 4;
        assert!(refused(&flipped).contains("checksum"));
        let mut longer = good;
        longer.push(0);
        assert!(refused(&summed(longer)).contains("1 bytes follow"));
    }
}
