//! Some pages of a shelf, and their names: a snapshot file with two regions.
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::snapshot::format::{BLOCK_PAGES_MAX, HEADER_BYTES, RegionEntry};
use pagetide_track::snapshot::reader::{BlockBuffer, SnapshotFile};
use pagetide_track::snapshot::sink::Sink;
use pagetide_track::snapshot::writer::Writer;
use pagetide_track::{Image, SnapshotId};

use super::name::Name;
use super::shelf::{Shelf, ShelfError, Stored};

/// Most pages of a volume: 256 MiB.
const PAGES_MAX: u64 = 1 << 16;
const PAGES: &str = "pages";
const NAMES: &str = "names";
/// Bytes of all names a volume can have: a whole number of pages.
const NAMES_BYTES_MAX: u64 = PAGES_MAX * Name::BYTES as u64;
const BLOCK_BYTES: usize = BLOCK_PAGES_MAX * PAGE_SIZE;

/// A volume that is being written.
pub struct VolumeWriter {
    id: SnapshotId,
    writer: Writer,
    /// Pages that fill no block yet.
    waiting: Vec<u8>,
    names: Vec<u8>,
    appended: Arc<AtomicU64>,
}

/// What a volume came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Finished {
    /// Bytes of its pages, compressed.
    pub packed_bytes: u64,
    /// Bytes of all of it.
    pub bytes: u64,
}

impl VolumeWriter {
    /// Begins one on `shelf`.
    ///
    /// # Errors
    /// The shelf.
    pub fn begin(shelf: &Shelf) -> Result<VolumeWriter, ShelfError> {
        let (id, sink) = shelf.begin()?;
        let region = |name: &str, pages| RegionEntry {
            name: name.to_owned(),
            address: 0,
            pages,
        };
        let regions = vec![
            region(PAGES, PAGES_MAX),
            region(NAMES, NAMES_BYTES_MAX / PAGE_SIZE as u64),
        ];
        let appended = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            sink,
            bytes: Arc::clone(&appended),
        };
        Ok(VolumeWriter {
            id,
            writer: Writer::new(Box::new(counted), id, None, regions)?,
            waiting: Vec::with_capacity(BLOCK_BYTES),
            names: Vec::new(),
            appended,
        })
    }

    /// Its id.
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// How many pages it has.
    fn pages(&self) -> u64 {
        (self.names.len() / Name::BYTES) as u64
    }

    /// Whether it can take no more.
    pub fn is_full(&self) -> bool {
        self.pages() == PAGES_MAX
    }

    /// Adds a page that is not all zeros; its place. Not called when it is full.
    ///
    /// # Errors
    /// The shelf.
    pub fn add(&mut self, name: Name, page: &[u8]) -> Result<u32, ShelfError> {
        debug_assert!(!self.is_full() && page.len() == PAGE_SIZE);
        let place = self.pages() as u32;
        self.names.extend(name.0);
        self.waiting.extend_from_slice(page);
        if self.waiting.len() == BLOCK_BYTES {
            self.put_waiting()?;
        }
        Ok(place)
    }

    fn put_waiting(&mut self) -> io::Result<()> {
        let count = (self.waiting.len() / PAGE_SIZE) as u64;
        let numbers: Vec<u64> = (self.pages() - count..self.pages()).collect();
        self.writer.put(0, &numbers, &self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Makes it whole, and there.
    ///
    /// # Errors
    /// The shelf; then there is no such volume.
    pub fn finish(mut self) -> Result<Finished, ShelfError> {
        self.put_waiting()?;
        let packed_bytes = self.appended.load(Relaxed) - HEADER_BYTES as u64;
        let mut names = std::mem::take(&mut self.names);
        names.resize(names.len().next_multiple_of(PAGE_SIZE), 0);
        for (number, block) in (0..).zip(names.chunks(BLOCK_BYTES)) {
            let first = number * BLOCK_PAGES_MAX as u64;
            let pages: Vec<u64> = (first..).take(block.len() / PAGE_SIZE).collect();
            self.writer.put(1, &pages, block)?;
        }
        Ok(Finished {
            packed_bytes,
            bytes: self.writer.finish()?.file_bytes,
        })
    }
}

/// Counts what is appended.
struct Counted {
    sink: Box<dyn Sink>,
    bytes: Arc<AtomicU64>,
}

impl Sink for Counted {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.sink.append(bytes)
    }

    fn commit(&mut self) -> io::Result<()> {
        self.sink.commit()
    }
}

/// A volume that is read.
#[derive(Debug)]
pub struct Volume {
    image: Image,
    pages: u64,
}

impl Volume {
    /// Opens `stored`.
    ///
    /// # Errors
    /// It cannot be read, is not whole, or is no volume. Blocks are checked as they are read.
    pub fn open(shelf: &Shelf, stored: &Stored) -> Result<Volume, ShelfError> {
        Volume::of(shelf.read(stored)?)
    }

    fn of(file: SnapshotFile) -> Result<Volume, ShelfError> {
        let name = file.name().to_owned();
        let wrong = |what: &str| {
            let text = format!("{name}: it is no volume of packed pages: {what}");
            Err(ShelfError::Unusable(text))
        };
        if file.parent().is_some() {
            return wrong("it builds on another snapshot");
        }
        let image = Image::of(vec![file])?;
        let [pages, names] = image.regions() else {
            return wrong("it does not have two regions");
        };
        let are_known = (pages.name.as_str(), names.name.as_str()) == (PAGES, NAMES);
        if !are_known || pages.pages > PAGES_MAX {
            return wrong("its regions are others");
        }
        // Its pages are the first of the region, without gaps; then each has a name.
        let (end, room) = (
            pages.pages,
            names.pages * PAGE_SIZE as u64 / Name::BYTES as u64,
        );
        let mut count = 0;
        for run in image.runs().iter().take_while(|run| run.first < end) {
            if run.first != count {
                return wrong("pages are missing");
            }
            count += u64::from(run.pages);
        }
        if count > room {
            return wrong("it has fewer names than pages");
        }
        Ok(Volume {
            image,
            pages: count,
        })
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Tells `each` the name of every page, from the first on.
    ///
    /// # Errors
    /// The names cannot be read, or are damaged.
    pub fn names(&self, mut each: impl FnMut(u32, Name)) -> Result<(), ShelfError> {
        let first = self.image.region(NAMES)?.first;
        let (mut buffer, mut page) = (BlockBuffer::default(), [0; PAGE_SIZE]);
        let (mut number, mut name) = (0u64, Vec::with_capacity(Name::BYTES));
        let mut at = first;
        while number < self.pages {
            self.image.read_page(at, &mut buffer, &mut page)?;
            at += 1;
            // A name may be in two pages.
            for byte in page {
                name.push(byte);
                let Ok(whole) = <[u8; Name::BYTES]>::try_from(&name[..]) else {
                    continue;
                };
                name.clear();
                if number < self.pages {
                    each(number as u32, Name(whole));
                }
                number += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_track::snapshot::sink::FileSink;
    use std::path::Path;

    /// Names and pages.
    type Regions<'r> = &'r [(&'r str, u64)];
    /// Regions and pages of theirs.
    type Numbers<'n> = &'n [(u32, u64)];

    fn page(number: u32) -> Vec<u8> {
        let words = (0..PAGE_SIZE as u32 / 4).map(|word| number * 7919 + word / 8 + 1);
        words.flat_map(u32::to_le_bytes).collect()
    }

    fn shelf(place: &Path) -> Shelf {
        Shelf::make(&format!("file:{}", place.display())).unwrap()
    }

    #[test]
    fn a_volume_has_its_pages_and_their_names() {
        let place = tempfile::tempdir().unwrap();
        let shelf = shelf(place.path());
        for count in [1, 16, 17, 400] {
            let mut writer = VolumeWriter::begin(&shelf).unwrap();
            let id = writer.id();
            for number in 0..count {
                let page = page(number);
                assert_eq!(writer.add(Name::of(&page), &page).unwrap(), number);
            }
            // It is not there before it is whole.
            assert!(shelf.volumes().unwrap().iter().all(|one| one.id != id));
            let finished = writer.finish().unwrap();
            let volumes = shelf.volumes().unwrap();
            let stored = volumes.iter().find(|one| one.id == id).unwrap();
            assert_eq!(stored.bytes, finished.bytes);
            assert!(finished.packed_bytes < finished.bytes);
            let volume = Volume::open(&shelf, stored).unwrap();
            assert_eq!(volume.pages(), u64::from(count));
            let mut names = Vec::new();
            volume
                .names(|number, name| names.push((number, name)))
                .unwrap();
            let expected = (0..count).map(|number| (number, Name::of(&page(number))));
            assert!(names.into_iter().eq(expected));
            let (mut buffer, mut read) = (BlockBuffer::default(), [0; PAGE_SIZE]);
            for number in 0..count {
                volume
                    .image()
                    .read_page(number.into(), &mut buffer, &mut read)
                    .unwrap();
                assert_eq!(read[..], page(number));
            }
        }
        let volumes = shelf.volumes().unwrap();
        assert_eq!(volumes.len(), 4);
        shelf.remove(&volumes[0]).unwrap();
        assert_eq!(shelf.volumes().unwrap(), volumes[1..]);
    }

    #[test]
    fn one_that_is_given_up_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let shelf = shelf(place.path());
        let mut writer = VolumeWriter::begin(&shelf).unwrap();
        writer.add(Name::of(&page(1)), &page(1)).unwrap();
        drop(writer);
        assert_eq!(place.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn other_snapshots_are_no_volumes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("other");
        let write = |regions: Regions<'_>, pages: Numbers<'_>| {
            let region = |(name, pages): &(&str, u64)| RegionEntry {
                name: (*name).to_owned(),
                address: 0,
                pages: *pages,
            };
            let regions = regions.iter().map(region).collect();
            let sink = Box::new(FileSink::create(&path).unwrap());
            let mut writer = Writer::new(sink, SnapshotId::random(), None, regions).unwrap();
            for (region, number) in pages {
                writer.put(*region, &[*number], &page(1)).unwrap();
            }
            writer.finish().unwrap();
            let volume = Volume::of(SnapshotFile::open(&path).unwrap());
            volume
                .map(|volume| volume.pages())
                .map_err(|e| e.to_string())
        };
        assert_eq!(
            write(&[(PAGES, 9), (NAMES, 1)], &[(0, 0), (0, 1), (1, 0)]),
            Ok(2)
        );
        let cases: [(Regions<'_>, Numbers<'_>, &str); 5] = [
            (&[(PAGES, 9)], &[(0, 0)], "two regions"),
            (&[(PAGES, 9), ("other", 1)], &[], "are others"),
            (&[(PAGES, 1 << 40), (NAMES, 1)], &[], "are others"),
            (&[(PAGES, 9), (NAMES, 1)], &[(0, 1)], "missing"),
            (&[(PAGES, 9), (NAMES, 1)], &[(0, 0), (0, 2)], "missing"),
        ];
        for (regions, pages, expected) in cases {
            let why = write(regions, pages).unwrap_err();
            assert!(why.contains(expected) && why.contains("other: "), "{why}");
        }
        let many: Vec<_> = (0..180).map(|number| (0, number)).collect();
        let why = write(&[(PAGES, 200), (NAMES, 1)], &many).unwrap_err();
        assert!(why.contains("fewer names"), "{why}");
    }
}
