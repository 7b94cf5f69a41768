//! Reads the images of a dump, and of those that it builds on, and notes where its pages are.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagetide_kernel::{PageNumber, PageRange};
use xxhash_rust::xxh3::Xxh3;

use super::chain::{names, pages_name, parent};
use super::image::ImageError;
use super::pagemap::{Entry, Pagemap, mappings};
use crate::memory::Area;
use crate::packed::Packed;
use crate::source::{self, RawFile, Source};

/// Where the pages of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a file of pages: which one, and the first page's place in it.
    File { file: u32, page: u64 },
    /// At the page server: which task, and the first page's address there.
    Remote { pid: u32, page: PageNumber },
}

/// Pages that follow each other in the image and at their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub pages: u64,
    pub place: Place,
}

/// A file of pages.
#[derive(Debug)]
pub(super) struct Opened {
    /// In which directory of the chain, and its number.
    pub of: (usize, u32),
    pub source: Box<dyn Source>,
    /// How many it has.
    whole_pages: u64,
}

/// Whose memory a page map is of.
struct Of {
    /// The task's, or 0.
    pid: u32,
    /// The map's file.
    name: String,
}

/// What reading the images of a tree has come to.
pub(super) struct Reader {
    /// The dump's, and those it builds on, as far as they were needed.
    directories: Vec<PathBuf>,
    /// There is a page server.
    remote: bool,
    /// Where files of pages are that are not there.
    packed: Option<Arc<Packed>>,
    /// Files of pages by their directory's place and their number.
    files: HashMap<(usize, u32), u32>,
    pub opened: Vec<Opened>,
    pub runs: Vec<Run>,
    pub pages: u64,
    pub wide: bool,
    pub hash: Xxh3,
}

impl Reader {
    pub fn new(directory: &Path, remote: bool, packed: Option<Arc<Packed>>) -> Reader {
        Reader {
            directories: vec![directory.to_owned()],
            remote,
            packed,
            files: HashMap::new(),
            opened: Vec::new(),
            runs: Vec::new(),
            pages: 0,
            wide: false,
            hash: Xxh3::new(),
        }
    }

    /// Notes where all pages are that do not come when they are touched, those of shared memory
    /// among them: what restores reads them itself.
    ///
    /// # Errors
    /// A page map is not what it should be, or pages are missing.
    pub fn read_others(&mut self) -> Result<(), ImageError> {
        let directory = self.directories[0].clone();
        let is_map = |name: &str| name.starts_with("pagemap-") && name.ends_with(".img");
        for name in names(&directory, is_map)? {
            let map = Pagemap::open(&directory.join(&name))?;
            let (of, mut parents) = (Of { pid: 0, name }, Vec::new());
            let others = map.entries.iter().filter(|entry| !entry.lazy);
            for entry in others.filter(|entry| entry.in_parent || entry.at.is_some()) {
                self.place(&of, &map, entry, entry.range, &mut parents)?;
            }
        }
        Ok(())
    }

    /// Reads the images of task `pid`; the memory that comes when it is touched.
    pub fn task(&mut self, pid: u32, path: &Path) -> Result<Vec<Area>, ImageError> {
        let map = Pagemap::open(path)?;
        self.wide |= map.wide;
        self.hash.update(&map.hash.to_le_bytes());
        let mappings = mappings(&self.directories[0].join(format!("mm-{pid}.img")))?;
        let (mut parents, mut areas) = (Vec::new(), Vec::new());
        let of = Of {
            pid,
            name: format!("pagemap-{pid}.img"),
        };
        for entry in map.entries.iter().filter(|entry| entry.lazy) {
            let first = mappings.partition_point(|mapping| mapping.end <= entry.range.start);
            // A page is installed in one mapping; what is in none is not touched.
            let parts = mappings[first..]
                .iter()
                .map(|mapping| mapping.intersection(entry.range))
                .take_while(|part| !part.is_empty());
            for part in parts {
                let first = self.pages;
                self.place(&of, &map, entry, part, &mut parents)?;
                push_area(&mut areas, &mappings, part, first);
            }
        }
        Ok(areas)
    }

    /// Notes where the pages in `part` of `entry` are.
    fn place(
        &mut self,
        of: &Of,
        map: &Pagemap,
        entry: &Entry,
        part: PageRange,
        parents: &mut Vec<Pagemap>,
    ) -> Result<(), ImageError> {
        if entry.in_parent {
            return self.place_in_parents(of, part, parents);
        }
        if self.remote {
            let (pid, page) = (of.pid, part.start);
            self.push_run(part.pages(), Place::Remote { pid, page });
            return Ok(());
        }
        self.place_in_file(0, of, map, entry, part)
    }

    /// The same for pages that images have which this dump builds on, the nearest first.
    fn place_in_parents(
        &mut self,
        of: &Of,
        part: PageRange,
        parents: &mut Vec<Pagemap>,
    ) -> Result<(), ImageError> {
        let mut rest = part;
        while !rest.is_empty() {
            let mut level = 1;
            let found = loop {
                let directory = self.directory(level)?.to_owned();
                let path = directory.join(&of.name);
                if parents.len() < level {
                    parents.push(Pagemap::open(&path)?);
                }
                let Some(entry) = parents[level - 1].find(rest.start).copied() else {
                    let text = format!(
                        "it does not have the page at {:#x}, which what builds on it expects there",
                        rest.address()
                    );
                    return Err(ImageError::new(&path, text));
                };
                rest.end = rest.end.min(entry.range.end);
                if !entry.in_parent {
                    break entry;
                }
                level += 1;
            };
            let map = parents.remove(level - 1);
            let placed = self.place_in_file(level, of, &map, &found, rest);
            parents.insert(level - 1, map);
            placed?;
            rest = PageRange {
                start: rest.end,
                end: part.end,
            };
        }
        Ok(())
    }

    fn place_in_file(
        &mut self,
        level: usize,
        of: &Of,
        map: &Pagemap,
        entry: &Entry,
        part: PageRange,
    ) -> Result<(), ImageError> {
        let Some(at) = entry.at else {
            let path = self.directories[level].join(&of.name);
            let text = format!(
                "the pages at {:#x} are in no image: they are at a page server, which was \
                 expected to be told of (--page-server, --address, --port)",
                part.address()
            );
            return Err(ImageError::new(&path, text));
        };
        let file = self.file(level, map)?;
        let page = at + (part.start.0 - entry.range.start.0);
        self.push_run(part.pages(), Place::File { file, page });
        Ok(())
    }

    /// The directory at `level` of the chain.
    fn directory(&mut self, level: usize) -> Result<&Path, ImageError> {
        while self.directories.len() <= level {
            self.directories.push(parent(&self.directories)?);
        }
        Ok(&self.directories[level])
    }

    /// The file of pages that `map`, of the directory at `level`, tells of.
    fn file(&mut self, level: usize, map: &Pagemap) -> Result<u32, ImageError> {
        let path = self.directories[level].join(pages_name(map.pages_id));
        let of = (level, map.pages_id);
        let number = match self.files.get(&of) {
            Some(number) => *number,
            None => {
                let opened = self.open(of, &path)?;
                self.hash.update(&opened.source.id().0);
                self.opened.push(opened);
                let number = self.opened.len() as u32 - 1;
                self.files.insert(of, number);
                number
            }
        };
        let pages = self.opened[number as usize].whole_pages;
        // More: the page map lacks its end.
        if pages != map.file_pages {
            let text = format!(
                "it has {pages} whole pages; its page map tells of {}",
                map.file_pages
            );
            return Err(ImageError::new(&path, text));
        }
        Ok(number)
    }

    fn open(&self, of: (usize, u32), path: &Path) -> Result<Opened, ImageError> {
        let packed = self.packed.as_ref();
        if let Some(file) = packed.and_then(|packed| packed.file(of.0 as u32, of.1)) {
            return Ok(Opened {
                of,
                whole_pages: file.pages(),
                source: Box::new(file),
            });
        }
        let told = |error: std::io::Error| ImageError::new(path, error);
        let file = source::opened(path).and_then(RawFile::of).map_err(told)?;
        Ok(Opened {
            of,
            whole_pages: file.whole_pages(),
            source: Box::new(file),
        })
    }

    fn push_run(&mut self, pages: u64, place: Place) {
        let first = self.pages;
        self.pages += pages;
        self.runs.push(Run {
            first,
            pages,
            place,
        });
    }
}

/// Adds memory at `part`, whose first page is `first` in the image, to what is there. What follows
/// the last in the same mapping makes it longer.
fn push_area(areas: &mut Vec<Area>, mappings: &[PageRange], part: PageRange, first: u64) {
    let begins_mapping = || {
        let at = mappings.partition_point(|mapping| mapping.start < part.start);
        mappings
            .get(at)
            .is_some_and(|mapping| mapping.start == part.start)
    };
    match areas.last_mut() {
        Some(last) if last.range.end == part.start && !begins_mapping() => {
            last.range.end = part.end;
        }
        _ => areas.push(Area {
            range: part,
            first,
            unit: 1,
        }),
    }
}
