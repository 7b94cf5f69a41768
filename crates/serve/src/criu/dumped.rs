//! Dumps as CRIU makes them, for tests.
use std::path::Path;

use pagetide_kernel::PAGE_SIZE;

use super::entries::{MmEntry, PagemapEntry, PagemapHead, PstreeEntry, VmaEntry};
use super::image::Kind;
use super::image::written::{add, image};

/// A directory of images.
pub(super) struct Dump<'p> {
    pub place: &'p Path,
}

impl Dump<'_> {
    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::create_dir_all(self.place).unwrap();
        std::fs::write(self.place.join(name), bytes).unwrap();
    }

    pub fn tasks(&self, pids: &[u32]) {
        let tasks: Vec<_> = pids
            .iter()
            .map(|pid| PstreeEntry { pid: Some(*pid) })
            .collect();
        self.write("pstree.img", &image(Kind::Pstree, &tasks));
    }

    /// The mappings (first page, end) of a task.
    pub fn mappings(&self, pid: u32, mappings: &[(u64, u64)]) {
        let vma = |(start, end): &(u64, u64)| VmaEntry {
            start: Some(start << 12),
            end: Some(end << 12),
        };
        let vmas = mappings.iter().map(vma).collect();
        self.write(
            &format!("mm-{pid}.img"),
            &image(Kind::Mm, &[MmEntry { vmas }]),
        );
    }

    /// The entries (first page, pages, flags) of a task, whose pages are in `pages-{file}.img`.
    pub fn pagemap(&self, pid: u32, file: u32, entries: &[(u64, u32, u32)]) {
        let head = PagemapHead {
            pages_id: Some(file),
        };
        let mut bytes = image(Kind::Pagemap, &[head]);
        for (first, pages, flags) in entries {
            let entry = PagemapEntry {
                vaddr: Some(first << 12),
                compat_nr_pages: Some(*pages),
                flags: Some(*flags),
                ..PagemapEntry::default()
            };
            add(&mut bytes, &entry);
        }
        self.write(&format!("pagemap-{pid}.img"), &bytes);
    }

    /// Pages that hold these bytes.
    pub fn pages(&self, file: u32, bytes: &[u8]) {
        let pages: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; PAGE_SIZE]).collect();
        self.write(&format!("pages-{file}.img"), &pages);
    }
}
