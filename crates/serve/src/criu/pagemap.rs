//! Where the pages of a task are: the records of its `pagemap-PID.img`.
use std::path::Path;

use pagetide_kernel::{PAGE_SHIFT, PAGE_SIZE, PageNumber, PageRange};
use xxhash_rust::xxh3::xxh3_128;

use super::entries::{LAZY, MmEntry, PARENT, PRESENT, PagemapEntry, PagemapHead};
use super::image::{ImageError, ImageFile, Kind};

/// Where user space ends at the latest, with five levels of page tables.
const ADDRESS_MAX: u64 = 1 << 56;

/// Pages of a task that follow each other in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where they are.
    pub range: PageRange,
    /// They come when they are touched.
    pub lazy: bool,
    /// They are where the images this one builds on say.
    pub in_parent: bool,
    /// Where the first one is in the file of pages, if they are there.
    pub at: Option<u64>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pagemap {
    /// `pages-N.img` has the pages.
    pub pages_id: u32,
    /// By address, without overlaps.
    pub entries: Vec<Entry>,
    /// Pages in that file.
    pub file_pages: u64,
    /// Pages are counted with 64 bits: CRIU 4.2 or later wrote it.
    pub wide: bool,
    /// Of its bytes.
    pub hash: u128,
}

impl Pagemap {
    /// Reads the one at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no pagemap, or its entries are no memory of a process or overlap.
    pub fn open(path: &Path) -> Result<Pagemap, ImageError> {
        let mut file = ImageFile::open(path, Kind::Pagemap)?;
        let head: PagemapHead = file.first("the number of a file of pages")?;
        let Some(pages_id) = head.pages_id else {
            return Err(file.error("its first record does not have the number of a file of pages"));
        };
        let mut map = Pagemap {
            pages_id,
            entries: Vec::new(),
            file_pages: 0,
            wide: false,
            hash: xxh3_128(file.bytes()),
        };
        while let Some(entry) = file.next::<PagemapEntry>()? {
            map.add(&entry).map_err(|what| file.error(what))?;
        }
        Ok(map)
    }

    fn add(&mut self, told: &PagemapEntry) -> Result<(), String> {
        let number = self.entries.len();
        let address = told.vaddr.ok_or(format!("entry {number} has no address"))?;
        let pages = told.nr_pages.or(told.compat_nr_pages.map(u64::from));
        let pages = pages.ok_or(format!("entry {number} does not say how many pages it has"))?;
        let range = range(address, pages).ok_or_else(|| {
            format!(
                "entry {number} is of {pages} pages at {address:#x}; whole pages within a \
                 process's memory were expected"
            )
        })?;
        if let Some(last) = self
            .entries
            .last()
            .filter(|last| last.range.end > range.start)
        {
            return Err(format!(
                "entry {number}, at {address:#x}, begins before the one before it ends, at {:#x}; \
                 entries in the order of their addresses were expected",
                last.range.end.0 << PAGE_SHIFT
            ));
        }
        let mut flags = told.flags.unwrap_or(PRESENT);
        if told.in_parent == Some(true) {
            flags = told.flags.unwrap_or_default() | PARENT;
        }
        let present = flags & PRESENT != 0;
        self.wide |= told.nr_pages.is_some();
        self.entries.push(Entry {
            range,
            lazy: flags & LAZY != 0,
            in_parent: flags & PARENT != 0,
            at: present.then_some(self.file_pages),
        });
        if present {
            self.file_pages += pages;
        }
        Ok(())
    }

    /// The entry that has `page`.
    pub fn find(&self, page: PageNumber) -> Option<&Entry> {
        let at = self
            .entries
            .partition_point(|entry| entry.range.end <= page);
        self.entries
            .get(at)
            .filter(|entry| entry.range.contains(page))
    }
}

/// The pages from `address` on; `None` where they cannot be a process's.
fn range(address: u64, pages: u64) -> Option<PageRange> {
    let len = pages.checked_mul(PAGE_SIZE as u64)?;
    let end = address.checked_add(len)?;
    let possible = address.is_multiple_of(PAGE_SIZE as u64) && pages > 0 && end <= ADDRESS_MAX;
    possible.then(|| PageRange::of(PageNumber(address >> PAGE_SHIFT), pages))
}

/// The mappings of a task, by address.
///
/// # Errors
/// The file cannot be read, is no `mm` image, or its mappings are none of a process or overlap.
pub(super) fn mappings(path: &Path) -> Result<Vec<PageRange>, ImageError> {
    let mut file = ImageFile::open(path, Kind::Mm)?;
    let space: MmEntry = file.first("an address space")?;
    let mut mappings: Vec<PageRange> = Vec::with_capacity(space.vmas.len());
    for (number, vma) in space.vmas.iter().enumerate() {
        let (start, end) = (vma.start.unwrap_or(0), vma.end.unwrap_or(0));
        // The kernel's own page at the end of the address space is none of the process's.
        if start > ADDRESS_MAX {
            continue;
        }
        let pages = end.saturating_sub(start).div_ceil(PAGE_SIZE as u64);
        let Some(mapping) = range(start, pages).filter(|_| end.is_multiple_of(PAGE_SIZE as u64))
        else {
            let text = format!(
                "mapping {number} is from {start:#x} to {end:#x}; whole pages of a process were \
                 expected"
            );
            return Err(file.error(text));
        };
        if mappings.last().is_some_and(|last| last.end > mapping.start) {
            let text = format!(
                "mapping {number}, at {start:#x}, begins before the one before it ends; mappings \
                 in the order of their addresses were expected"
            );
            return Err(file.error(text));
        }
        mappings.push(mapping);
    }
    Ok(mappings)
}

#[cfg(test)]
mod tests {
    use super::super::entries::VmaEntry;
    use super::super::image::written::{add, image};
    use super::*;

    fn entry(vaddr: u64, pages: u32, flags: u32) -> PagemapEntry {
        PagemapEntry {
            vaddr: Some(vaddr),
            compat_nr_pages: Some(pages),
            flags: Some(flags),
            ..PagemapEntry::default()
        }
    }

    fn read(entries: &[PagemapEntry]) -> Result<Pagemap, String> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pagemap-7.img");
        let mut bytes = image(Kind::Pagemap, &[PagemapHead { pages_id: Some(3) }]);
        entries.iter().for_each(|entry| add(&mut bytes, entry));
        std::fs::write(&path, bytes).unwrap();
        Pagemap::open(&path).map_err(|error| error.to_string())
    }

    fn at(start: u64, pages: u64, flags: u32, at: Option<u64>) -> Entry {
        Entry {
            range: PageRange::of(PageNumber(start), pages),
            lazy: flags & LAZY != 0,
            in_parent: flags & PARENT != 0,
            at,
        }
    }

    #[test]
    fn only_present_pages_are_counted_in_the_file_of_pages() {
        let map = read(&[
            entry(0x10000, 3, PRESENT | LAZY),
            entry(0x20000, 5, PARENT),
            entry(0x30000, 7, LAZY),
            entry(0x40000, 2, PRESENT),
        ]);
        let map = map.unwrap();
        assert_eq!((map.pages_id, map.file_pages, map.wide), (3, 5, false));
        let expected = [
            at(0x10, 3, LAZY, Some(0)),
            at(0x20, 5, PARENT, None),
            at(0x30, 7, LAZY, None),
            at(0x40, 2, 0, Some(3)),
        ];
        assert_eq!(map.entries, expected);
        assert_eq!(map.find(PageNumber(0x36)), Some(&expected[2]));
        assert_eq!(map.find(PageNumber(0x37)), None);
    }

    #[test]
    fn both_ways_of_counting_are_understood() {
        // CRIU 4.2 writes both; the old field cannot hold the number.
        let wide = PagemapEntry {
            nr_pages: Some(1 << 33),
            ..entry(0x10000, 0, PRESENT)
        };
        let map = read(&[wide]).unwrap();
        assert_eq!((map.wide, map.file_pages), (true, 1 << 33));
        // Old images say neither that pages are present nor, by flags, that they are in the parent.
        let old = PagemapEntry {
            flags: None,
            ..entry(0x10000, 1, 0)
        };
        let inherited = PagemapEntry {
            flags: None,
            in_parent: Some(true),
            ..entry(0x20000, 1, 0)
        };
        let map = read(&[old, inherited]).unwrap();
        let expected = [at(0x10, 1, 0, Some(0)), at(0x20, 1, PARENT, None)];
        assert_eq!(map.entries, expected);
    }

    #[test]
    fn entries_that_cannot_be_are_refused_and_named() {
        let huge = PagemapEntry {
            nr_pages: Some(u64::MAX),
            ..entry(0x10000, 0, PRESENT)
        };
        let no_address = PagemapEntry {
            vaddr: None,
            ..entry(0, 1, PRESENT)
        };
        let no_pages = PagemapEntry {
            compat_nr_pages: None,
            ..entry(0x10000, 1, PRESENT)
        };
        let cases = [
            (vec![huge], "whole pages within"),
            (
                vec![entry(0x10001, 1, PRESENT)],
                "entry 0 is of 1 pages at 0x10001",
            ),
            (
                vec![entry(u64::MAX - 4095, 1, PRESENT)],
                "whole pages within",
            ),
            (vec![entry(0x10000, 0, PRESENT)], "of 0 pages"),
            (vec![no_address], "no address"),
            (vec![no_pages], "how many pages"),
            (
                vec![entry(0x10000, 3, PRESENT), entry(0x12000, 1, PRESENT)],
                "entry 1, at 0x12000, begins before the one before it ends, at 0x13000",
            ),
        ];
        for (entries, expected) in cases {
            let why = read(&entries).unwrap_err();
            assert!(
                why.contains("pagemap-7.img: ") && why.contains(expected),
                "{why}"
            );
        }
    }

    fn space(vmas: &[(u64, u64)]) -> Result<Vec<PageRange>, String> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("mm-7.img");
        let vma = |(start, end): &(u64, u64)| VmaEntry {
            start: Some(*start),
            end: Some(*end),
        };
        let space = MmEntry {
            vmas: vmas.iter().map(vma).collect(),
        };
        std::fs::write(&path, image(Kind::Mm, &[space])).unwrap();
        mappings(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn mappings_are_whole_pages_in_order() {
        let vsyscall = (0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000);
        let mappings = space(&[(0x1000, 0x3000), (0x3000, 0x4000), vsyscall]).unwrap();
        let range = |start, end| PageRange {
            start: PageNumber(start),
            end: PageNumber(end),
        };
        assert_eq!(mappings, [range(1, 3), range(3, 4)]);
        for (vmas, expected) in [
            ([(0x1000, 0x3000), (0x2000, 0x4000)], "mapping 1, at 0x2000"),
            (
                [(0x1000, 0x1800), (0x2000, 0x4000)],
                "from 0x1000 to 0x1800",
            ),
            (
                [(0x3000, 0x1000), (0x4000, 0x5000)],
                "from 0x3000 to 0x1000",
            ),
        ] {
            let why = space(&vmas).unwrap_err();
            assert!(
                why.contains("mm-7.img: ") && why.contains(expected),
                "{why}"
            );
        }
    }
}
