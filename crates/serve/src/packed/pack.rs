//! Puts the pages of images into a place of their own, each content once, and makes the index that
//! says where they lie.
//!
//! Pages are read twice: for their names, and those that are in no volume to be put. So what this
//! takes of memory is some 70 bytes for each page, however much is there already.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::SnapshotId;

use super::index::{File, Index, Place};
use super::name::Name;
use super::shelf::{Shelf, ShelfError};
use super::source::Packed;
use super::volume::{Volume, VolumeWriter};
use crate::source::{Buffer, Source as _, SourceError};

const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Why pages were not packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The store has no room.
    #[error(
        "the store is full: {0}; what was put before is kept, and no index was written: make room \
         and pack again"
    )]
    Full(String),
    /// The store cannot be used.
    #[error("{0}")]
    Store(String),
    /// An image is not what it should be.
    #[error("{0}")]
    Image(String),
    /// What was packed is not there any more, or other bytes.
    #[error("{0}")]
    Lost(String),
}

impl From<ShelfError> for PackError {
    fn from(error: ShelfError) -> PackError {
        match error {
            ShelfError::Full(why) => PackError::Full(why),
            ShelfError::Unusable(why) => PackError::Store(why),
        }
    }
}

/// What packing came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Pages, those of images that a dump builds on included.
    pub pages: u64,
    /// Of those, zeros.
    pub zero_pages: u64,
    /// Pages that differ from each other, without zeros.
    pub distinct_pages: u64,
    /// Of those, the ones that were in the store before.
    pub known_pages: u64,
    /// The ones that were not.
    pub new_pages: u64,
    /// Bytes of these, compressed.
    pub new_bytes: u64,
    /// Bytes that the store has more.
    pub added_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
}

/// Pages that are one file to the index.
pub(crate) trait Pages {
    /// The number of its directory in the chain, and its own.
    fn key(&self) -> (u32, u32);

    /// What it is called.
    fn name(&self) -> String;

    /// Gives `each` every page, in order; the same whenever it is called, unless it changed.
    ///
    /// # Errors
    /// Pages cannot be read, or those of `each`.
    fn each(&self, each: &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), PackError>;
}

/// Puts those pages of `files` that `shelf` does not have there; the index of all, and what that
/// came to. `images` is what the index is known to belong to, and `say` is told of what is wrong
/// and no failure.
///
/// # Errors
/// [`PackError`]. Pages that were put are found by the next attempt.
pub(crate) fn put(
    files: &[impl Pages],
    shelf: &Shelf,
    images: u128,
    say: &dyn Fn(&str),
) -> Result<(Index, Summary), PackError> {
    let mut packer = Packer::default();
    packer.read_names(files)?;
    packer.find_known(shelf, say)?;
    let index = packer.put_new(files, shelf, images)?;
    Ok((index, packer.summary))
}

#[cold]
fn wrong(file: &impl Pages, what: &str) -> PackError {
    PackError::Image(format!("{}: {what}", file.name()))
}

#[cold]
fn changed(file: &impl Pages) -> PackError {
    wrong(file, "it changed while it was packed")
}

/// A page of the dump: zeros, or the one with this number among those that differ.
#[derive(Clone, Copy)]
struct Page(u32);

const ZERO_PAGE: u32 = u32::MAX;

/// What is known of the pages of a dump.
#[derive(Default)]
struct Packer {
    /// Numbers of the pages that differ.
    numbers: HashMap<Name, u32>,
    /// Where they are.
    places: Vec<Option<Place>>,
    volumes: Vec<SnapshotId>,
    /// The pages of each file.
    pages: Vec<Vec<Page>>,
    summary: Summary,
}

impl Packer {
    /// Reads all files for the names of their pages.
    fn read_names(&mut self, files: &[impl Pages]) -> Result<(), PackError> {
        for file in files {
            let mut pages = Vec::new();
            file.each(&mut |page| {
                if page == ZEROS {
                    self.summary.zero_pages += 1;
                    pages.push(Page(ZERO_PAGE));
                    return Ok(());
                }
                let next = self.places.len() as u32;
                let number = match self.numbers.entry(Name::of(page)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(_) if next == ZERO_PAGE => {
                        let text = "there are more than 16 TiB of pages that differ";
                        return Err(wrong(file, text));
                    }
                    Entry::Vacant(new) => {
                        self.places.push(None);
                        *new.insert(next)
                    }
                };
                pages.push(Page(number));
                Ok(())
            })?;
            self.pages.push(pages);
        }
        self.summary.distinct_pages = self.places.len() as u64;
        Ok(())
    }

    /// Finds the pages that are in volumes.
    fn find_known(&mut self, shelf: &Shelf, say: &dyn Fn(&str)) -> Result<(), PackError> {
        for stored in shelf.volumes()? {
            let volume = self.volumes.len() as u32;
            let mut found = Vec::new();
            let read = Volume::open(shelf, &stored).and_then(|volume| {
                volume.names(|page, name| {
                    if let Some(number) = self.numbers.get(&name) {
                        found.push((*number, page));
                    }
                })
            });
            if let Err(error) = read {
                say(&format!("{error}; pages that are in it are put again"));
                continue;
            }
            found.retain(|(number, _)| self.places[*number as usize].is_none());
            for (number, page) in &found {
                self.places[*number as usize] = Some(Place::Volume {
                    volume,
                    page: *page,
                });
            }
            if !found.is_empty() {
                self.volumes.push(stored.id);
            }
        }
        self.summary.known_pages = self.places.iter().flatten().count() as u64;
        Ok(())
    }

    /// Puts the pages that are in none into new ones; the index of all.
    fn put_new(
        &mut self,
        files: &[impl Pages],
        shelf: &Shelf,
        images: u128,
    ) -> Result<Index, PackError> {
        let mut volume: Option<VolumeWriter> = None;
        let mut index_files = Vec::new();
        let pages = std::mem::take(&mut self.pages);
        for (file, pages) in files.iter().zip(&pages) {
            let (level, number) = file.key();
            let mut packed = File::new(level, number);
            let is_new = |page: &Page| self.is_new(*page);
            if pages.iter().any(is_new) {
                let mut left = pages.iter();
                file.each(&mut |bytes| match left.next() {
                    Some(page) if self.is_new(*page) => {
                        self.put(file, *page, bytes, shelf, &mut volume)
                    }
                    Some(_) => Ok(()),
                    None => Err(changed(file)),
                })?;
                if left.next().is_some() {
                    return Err(changed(file));
                }
            }
            for page in pages {
                let place = self.places.get(page.0 as usize).copied().flatten();
                packed.push(place.unwrap_or(Place::Zeros));
            }
            index_files.push(packed);
        }
        self.finish(volume)?;
        Ok(Index {
            images,
            store: shelf.uri().to_owned(),
            volumes: self.volumes.clone(),
            files: index_files,
        })
    }

    fn is_new(&self, page: Page) -> bool {
        self.places.get(page.0 as usize) == Some(&None)
    }

    fn put(
        &mut self,
        file: &impl Pages,
        page: Page,
        bytes: &[u8],
        shelf: &Shelf,
        volume: &mut Option<VolumeWriter>,
    ) -> Result<(), PackError> {
        let name = Name::of(bytes);
        if self.numbers.get(&name) != Some(&page.0) {
            return Err(changed(file));
        }
        if volume.as_ref().is_some_and(VolumeWriter::is_full) {
            self.finish(volume.take())?;
        }
        let writer = match volume {
            Some(writer) => writer,
            None => {
                let writer = VolumeWriter::begin(shelf)?;
                self.volumes.push(writer.id());
                volume.insert(writer)
            }
        };
        let place = Place::Volume {
            volume: self.volumes.len() as u32 - 1,
            page: writer.add(name, bytes)?,
        };
        self.places[page.0 as usize] = Some(place);
        self.summary.new_pages += 1;
        Ok(())
    }

    fn finish(&mut self, volume: Option<VolumeWriter>) -> Result<(), PackError> {
        if let Some(volume) = volume {
            let finished = volume.finish()?;
            self.summary.new_bytes += finished.packed_bytes;
            self.summary.added_bytes += finished.bytes;
        }
        Ok(())
    }
}

/// Reads everything back that was packed, and compares it with the files that are there.
pub(crate) fn verify(packed: &Arc<Packed>, files: &[impl Pages]) -> Result<(), PackError> {
    let lost = |error: SourceError| PackError::Lost(error.0);
    let (mut buffer, mut read) = (Buffer::default(), vec![0; PAGE_SIZE]);
    for of in &packed.index().files {
        let source = packed.file(of.level, of.number);
        let Some(source) = source else { continue };
        let there = files
            .iter()
            .find(|file| file.key() == (of.level, of.number));
        let mut number = 0;
        let mut next = |expected: Option<&[u8]>| {
            source
                .read_into(number, &mut read, &mut buffer)
                .map_err(lost)?;
            if expected.is_some_and(|expected| read != expected) {
                let (name, volumes) = (there.map(Pages::name), &packed.index().volumes);
                let text = format!(
                    "page {number} of {} was read back with other bytes than it has, from one of \
                     the volumes {volumes:?}",
                    name.unwrap_or_default()
                );
                return Err(PackError::Lost(text));
            }
            number += 1;
            Ok(())
        };
        match there {
            Some(file) => {
                file.each(&mut |page| next(Some(page)))?;
                if number != of.pages() {
                    return Err(changed(file));
                }
            }
            None => (0..of.pages()).try_for_each(|_| next(None))?,
        }
    }
    Ok(())
}
