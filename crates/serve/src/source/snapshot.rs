//! A Pagetide snapshot with those it builds on: its pages are those of its regions, one region
//! after the other.
use std::fmt;
use std::path::Path;

use pagetide_track::snapshot::format::ZEROS;
use pagetide_track::{Image, SnapshotId};

use crate::counters::Origin;

use super::blocks::Blocks;
use super::look_up::{LookUp, part_of_block};
use super::{Buffer, SourceError};

/// See the module's text.
pub struct SnapshotImage {
    image: Image,
    pages: u64,
    blocks: Blocks,
}

impl SnapshotImage {
    /// Opens the snapshot at `path` and its parents.
    ///
    /// # Errors
    /// A file of the chain cannot be opened or is not whole. Blocks are checked as they are read.
    pub fn open(path: &Path) -> Result<SnapshotImage, SourceError> {
        let image = Image::open(path).map_err(|error| SourceError(error.to_string()))?;
        let pages = image.regions().iter().map(|region| region.pages).sum();
        Ok(SnapshotImage {
            image,
            pages,
            blocks: Blocks::default(),
        })
    }
}

impl fmt::Debug for SnapshotImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SnapshotImage").field(&self.image).finish()
    }
}

impl LookUp for SnapshotImage {
    fn page_count(&self) -> u64 {
        self.pages
    }

    fn known_as(&self) -> SnapshotId {
        let newest = self.image.files().first();
        newest.map_or(SnapshotId::NONE, |file| file.header().id)
    }

    fn kept_in(&self) -> Origin {
        Origin::Image
    }

    fn look_up<'b>(
        &self,
        first: u64,
        most: u64,
        buffer: &'b mut Buffer,
    ) -> Result<(u64, Option<&'b [u8]>), SourceError> {
        let Some(run) = self.image.find(first) else {
            let runs = self.image.runs();
            let next = runs.get(runs.partition_point(|run| run.first <= first));
            let zeros = next.map_or(most, |run| most.min(run.first - first));
            return Ok((zeros, None));
        };
        let offset = first - run.first;
        let pages = (u64::from(run.pages) - offset).min(most);
        if run.block == ZEROS {
            return Ok((pages, None));
        }
        let key = (run.file, run.block);
        let part = (offset, pages);
        let bytes = part_of_block(&self.image, run, part, (key, &self.blocks), buffer)?;
        Ok((pages, Some(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Piece;
    use super::*;
    use pagetide_kernel::PAGE_SIZE;
    use pagetide_track::snapshot::format::RegionEntry;
    use pagetide_track::snapshot::sink::FileSink;
    use pagetide_track::snapshot::writer::{Parent, Writer};

    fn write(path: &Path, parent: Option<(SnapshotId, &str)>, pages: &[(u64, u8)]) -> SnapshotId {
        let region = |name: &str, pages| RegionEntry {
            name: name.into(),
            address: 0,
            pages,
        };
        let regions = vec![region("low", 40), region("high", 40)];
        let id = SnapshotId::random();
        let parent = parent.map(|(id, name)| Parent {
            id,
            name: name.to_owned(),
        });
        let sink = Box::new(FileSink::create(path).unwrap());
        let mut writer = Writer::new(sink, id, parent.as_ref(), regions).unwrap();
        for (page, byte) in pages {
            let region = (page / 40) as u32;
            writer
                .put(region, &[page % 40], &[*byte; PAGE_SIZE])
                .unwrap();
        }
        writer.finish().unwrap();
        id
    }

    #[test]
    fn pages_of_a_chain_are_read_in_pieces() {
        let place = tempfile::tempdir().unwrap();
        let path = |name| place.path().join(name);
        let pages = |from: u64, to: u64, byte| (from..to).map(move |page| (page, byte));
        let below: Vec<_> = pages(3, 30, 1).chain(pages(45, 60, 2)).collect();
        let id = write(&path("below"), None, &below);
        write(&path("above"), Some((id, "below")), &[(10, 3), (50, 4)]);
        let source = super::super::open(&path("above")).unwrap();
        assert_eq!(source.pages(), 80);
        let expected = |page: u64| match page {
            10 => 3,
            50 => 4,
            3..30 => 1,
            45..60 => 2,
            _ => 0,
        };
        let mut buffer = Buffer::default();
        let mut all = vec![9; 90 * PAGE_SIZE];
        source.read_into(0, &mut all, &mut buffer).unwrap();
        let firsts = all.iter().step_by(PAGE_SIZE).copied();
        assert!(firsts.eq((0..90).map(expected)));
        for most in [1, 7, 80] {
            let mut page = 0;
            while page < 80 {
                let piece = source.read(page, most, &mut buffer).unwrap();
                let pages = match piece {
                    Piece::Zeros(pages) => {
                        assert!((page..page + pages).all(|page| expected(page) == 0 || page > 79));
                        pages
                    }
                    Piece::Bytes(bytes) => {
                        for number in 0..bytes.pages() {
                            let at = bytes.address().wrapping_add(number as usize * PAGE_SIZE);
                            assert_eq!(first_byte(at), expected(page + number), "{page}");
                        }
                        bytes.pages()
                    }
                };
                assert!((1..=most).contains(&pages));
                page += pages;
            }
        }
    }

    #[allow(unsafe_code)]
    fn first_byte(at: *const u8) -> u8 {
        // SAFETY: the address is in a piece of a snapshot, whose bytes are in this test's memory.
        unsafe { *at }
    }
}
