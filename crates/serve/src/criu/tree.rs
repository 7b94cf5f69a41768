//! The memory of all tasks of a dump, as one image: pages are numbered task by task, by address.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pagetide_kernel::{PAGE_SIZE, PageNumber};
use pagetide_track::SnapshotId;

use super::entries::PstreeEntry;
use super::image::{ImageError, ImageFile, Kind};
use super::page_server::{Counting, PageServer};
use super::reader::{Opened, Place, Reader, Run};
use crate::counters::Origin;
use crate::memory::Area;
use crate::packed::Packed;
use crate::source::{Buffer, Bytes, Piece, Source, SourceError};

/// Where the page server is, and how it counts pages.
#[derive(Debug, Clone)]
pub struct Remote {
    /// A name or an address, and a port.
    pub address: (String, u16),
    /// As it is told; else as the images are.
    pub counting: Option<Counting>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Tree {
    /// The memory of each task that comes when it is touched.
    tasks: BTreeMap<u32, Vec<Area>>,
    runs: Vec<Run>,
    files: Vec<Opened>,
    pages: u64,
    remote: Option<Remote>,
    /// How the images count pages.
    counting: Counting,
    server: OnceLock<PageServer>,
    id: SnapshotId,
}

impl Tree {
    /// Reads the images of the dump in `directory`. Pages that are not there are at the page server
    /// `remote`, as are all that are not in images this dump builds on.
    ///
    /// # Errors
    /// A file cannot be read, is not what it should be, or lacks pages.
    pub fn open(directory: &Path, remote: Option<Remote>) -> Result<Tree, ImageError> {
        let reader = Reader::new(directory, remote.is_some(), None);
        Tree::read_by(reader, directory, remote)
    }

    /// The same for a dump whose pages were packed.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn packed(directory: &Path, packed: Arc<Packed>) -> Result<Tree, ImageError> {
        let reader = Reader::new(directory, false, Some(packed));
        Tree::read_by(reader, directory, None)
    }

    fn read_by(
        mut reader: Reader,
        directory: &Path,
        remote: Option<Remote>,
    ) -> Result<Tree, ImageError> {
        let mut tasks = BTreeMap::new();
        let mut tree = ImageFile::open(&directory.join("pstree.img"), Kind::Pstree)?;
        while let Some(task) = tree.next::<PstreeEntry>()? {
            let pid = task
                .pid
                .ok_or_else(|| tree.error("a task has no process ID"))?;
            let path = directory.join(format!("pagemap-{pid}.img"));
            // Those that had ended, and were not waited for yet, had no memory.
            if path.exists() {
                tasks.insert(pid, reader.task(pid, &path)?);
            }
        }
        Ok(Tree {
            tasks,
            runs: reader.runs,
            files: reader.opened,
            pages: reader.pages,
            remote,
            counting: if reader.wide {
                Counting::Bits64
            } else {
                Counting::Bits32
            },
            server: OnceLock::new(),
            id: SnapshotId(reader.hash.digest128().to_le_bytes()),
        })
    }

    /// The memory of task `pid` that comes when it is touched; `None` if the dump has no such task.
    pub fn areas(&self, pid: u32) -> Option<&[Area]> {
        self.tasks.get(&pid).map(Vec::as_slice)
    }

    /// How many tasks have memory.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Connects to the page server, if there is one.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn connect(&self) -> Result<(), SourceError> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        if self.server.get().is_none() {
            let counting = remote.counting.unwrap_or(self.counting);
            let server = PageServer::connect(&remote.address, counting)?;
            let _ = self.server.set(server);
        }
        Ok(())
    }

    /// Whoever waits for the page server, if there is one, is told that nothing more comes.
    pub fn give_up(&self) {
        if let Some(server) = self.server.get() {
            server.give_up();
        }
    }

    /// Tells the page server, if there is one, that nothing more is wanted.
    pub fn disconnect(&self) {
        if let Some(server) = self.server.get() {
            server.close();
        }
    }

    /// Where page `number` is, and how many follow it there.
    fn find(&self, number: u64) -> Option<(Place, u64)> {
        let at = self
            .runs
            .partition_point(|run| run.first + run.pages <= number);
        let run = self.runs.get(at)?;
        let offset = number.checked_sub(run.first)?;
        let place = match run.place {
            Place::File { file, page } => Place::File {
                file,
                page: page + offset,
            },
            Place::Remote { pid, page } => Place::Remote {
                pid,
                page: page.add(offset),
            },
        };
        Some((place, run.pages - offset))
    }

    fn fetch(
        &self,
        pid: u32,
        page: PageNumber,
        pages: u64,
        into: &mut Vec<u8>,
    ) -> Result<u64, SourceError> {
        let server = self.server.get();
        let server = server.ok_or(SourceError("there is no page server".to_owned()))?;
        server.get(pid, page, pages, into)
    }
}

impl Source for Tree {
    fn pages(&self) -> u64 {
        self.pages
    }

    fn id(&self) -> SnapshotId {
        self.id
    }

    fn origin(&self, first: u64) -> Origin {
        match self.find(first) {
            None => Origin::Zeros,
            Some((Place::Remote { .. }, _)) => Origin::PageServer,
            Some((Place::File { file, page }, _)) => self.files[file as usize].source.origin(page),
        }
    }

    fn read<'b>(
        &'b self,
        first: u64,
        most: u64,
        buffer: &'b mut Buffer,
    ) -> Result<Piece<'b>, SourceError> {
        let Some((place, pages)) = self.find(first) else {
            return Ok(Piece::Zeros(1));
        };
        let most = most.min(pages);
        match place {
            Place::File { file, page } => self.files[file as usize].source.read(page, most, buffer),
            Place::Remote { pid, page } => {
                let fetched = buffer.fetched();
                let pages = self.fetch(pid, page, most, fetched)?;
                Ok(Piece::Bytes(Bytes::of(
                    &fetched[..pages as usize * PAGE_SIZE],
                )))
            }
        }
    }

    fn read_into(
        &self,
        first: u64,
        into: &mut [u8],
        buffer: &mut Buffer,
    ) -> Result<(), SourceError> {
        let (mut first, mut rest) = (first, into);
        while !rest.is_empty() {
            let wanted = (rest.len() / PAGE_SIZE) as u64;
            let Some((place, pages)) = self.find(first) else {
                rest.fill(0);
                return Ok(());
            };
            let mut pages = pages.min(wanted);
            let bytes = |pages: u64| pages as usize * PAGE_SIZE;
            match place {
                Place::File { file, page } => {
                    let source = &self.files[file as usize].source;
                    source.read_into(page, &mut rest[..bytes(pages)], buffer)?;
                }
                Place::Remote { pid, page } => {
                    let fetched = buffer.fetched();
                    pages = self.fetch(pid, page, pages, fetched)?;
                    rest[..bytes(pages)].copy_from_slice(&fetched[..bytes(pages)]);
                }
            }
            (first, rest) = (first + pages, &mut rest[bytes(pages)..]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
