//! Puts the pages of a dump into a place of their own, and an index beside the images.
//!
//! Files of pages are read twice: for the names of their pages, and for those pages that are in no
//! volume. So what this takes of memory is some 70 bytes for each page of the dump, however much is
//! there already.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::SnapshotId;

use super::chain::{chain, images_id, names, pages_name, pages_number};
use super::image::ImageError;
use super::others::is_remainder;
use crate::packed::{
    self, INDEX_NAME, Index, IndexError, Name, Packed, Place, Shelf, ShelfError, Volume,
    VolumeWriter,
};
use crate::source::{Buffer, Source as _, SourceError};

/// Bytes of a file of pages that are read at a time.
const READ_BYTES: usize = 256 * PAGE_SIZE;
const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Why a dump was not packed.
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
    Image(#[from] ImageError),
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
    /// Pages of the dump, those of images it builds on included.
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

/// A file of pages of a dump.
struct PagesFile {
    level: u32,
    number: u32,
    path: PathBuf,
}

/// The index of the packed dump in `directory`; `None` if it is not packed.
///
/// # Errors
/// It is damaged, or of other images.
pub fn index_of(directory: &Path) -> Result<Option<Index>, ImageError> {
    let path = directory.join(INDEX_NAME);
    let index = match Index::load(&path) {
        Err(IndexError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        loaded => loaded.map_err(|error| ImageError::new(&path, error))?,
    };
    if index.images != images_id(&chain(directory)?)? {
        let text = "it is of other images than those here; copy all of them, or remove it if they \
                    were dumped anew";
        return Err(ImageError::new(&path, text));
    }
    Ok(Some(index))
}

/// Packs the dump in `directory`, and those it builds on: puts the pages that `shelf` does not have
/// there, and writes the index when all are. With `remove_pages` everything is then read back and
/// compared, and the files of pages in `directory` are removed. `say` is told of what is wrong and
/// no failure.
///
/// # Errors
/// [`PackError`]. Pages that were put are found by the next attempt.
pub fn pack(
    directory: &Path,
    shelf: &Shelf,
    remove_pages: bool,
    say: &dyn Fn(&str),
) -> Result<Summary, PackError> {
    let directories = chain(directory)?;
    let files = pages_files(&directories)?;
    let mut packer = Packer::default();
    let index = match packed_before(directory, &files)? {
        Some(index) => index,
        None => {
            let images = images_id(&directories)?;
            packer.read_names(&files)?;
            packer.find_known(shelf, say)?;
            let index = packer.put_new(&files, shelf, images)?;
            let path = directory.join(INDEX_NAME);
            let saved = index.save(&path);
            saved.map_err(|error| ImageError::new(&path, error))?;
            index
        }
    };
    let mut summary = packer.summary;
    summary.pages = index.files.iter().map(packed::File::pages).sum();
    let meta = fs::metadata(directory.join(INDEX_NAME));
    summary.index_bytes = meta.map_or(0, |meta| meta.len());
    let packed = Packed::open(index, shelf).map_err(|error| PackError::Lost(error.0))?;
    if remove_pages {
        let packed = Arc::new(packed);
        verify(&packed, &files)?;
        // One that the index does not name was not packed.
        let is_packed = |file: &&PagesFile| packed.index().file(0, file.number).is_some();
        for file in files
            .iter()
            .filter(|file| file.level == 0)
            .filter(is_packed)
        {
            let removed = fs::remove_file(&file.path);
            removed.map_err(|error| ImageError::new(&file.path, error))?;
        }
    }
    Ok(summary)
}

/// The files of pages in `directories` that are whole.
fn pages_files(directories: &[PathBuf]) -> Result<Vec<PagesFile>, ImageError> {
    let mut files = Vec::new();
    for (level, directory) in (0..).zip(directories) {
        let names = names(directory, |name| pages_number(name).is_some())?;
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| pages_number(name)).collect();
        numbers.sort_unstable();
        for number in numbers {
            let path = directory.join(pages_name(number));
            // What serving a packed dump made has not all pages.
            if !is_remainder(&path) {
                files.push(PagesFile {
                    level,
                    number,
                    path,
                });
            }
        }
    }
    Ok(files)
}

/// The index that is there, if files it has the pages of are not there any more: it says all there
/// is to say of them.
fn packed_before(directory: &Path, files: &[PagesFile]) -> Result<Option<Index>, PackError> {
    let found = index_of(directory);
    let is_there = |of: &packed::File| {
        let mut files = files.iter();
        files.any(|file| (file.level, file.number) == (of.level, of.number))
    };
    match found {
        Ok(Some(index)) if !index.files.iter().all(is_there) => Ok(Some(index)),
        // One of other images, or a damaged one, is replaced.
        _ if !files.is_empty() => Ok(None),
        Ok(_) => {
            let text = "there are no pages-NUMBER.img in it, and no index of packed ones";
            Err(ImageError::new(directory, text).into())
        }
        Err(error) => Err(error.into()),
    }
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
    fn read_names(&mut self, files: &[PagesFile]) -> Result<(), PackError> {
        for file in files {
            let mut pages = Vec::new();
            each_page(file, |page| {
                if page == ZEROS {
                    self.summary.zero_pages += 1;
                    pages.push(Page(ZERO_PAGE));
                    return Ok(());
                }
                let next = self.places.len() as u32;
                let number = match self.numbers.entry(Name::of(page)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(_) if next == ZERO_PAGE => {
                        let text = "the dump has more than 16 TiB of pages that differ";
                        return Err(ImageError::new(&file.path, text).into());
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
        files: &[PagesFile],
        shelf: &Shelf,
        images: u128,
    ) -> Result<Index, PackError> {
        let mut volume: Option<VolumeWriter> = None;
        let mut index_files = Vec::new();
        let pages = std::mem::take(&mut self.pages);
        for (file, pages) in files.iter().zip(&pages) {
            let mut packed = packed::File::new(file.level, file.number);
            let is_new = |page: &Page| self.is_new(*page);
            if pages.iter().any(is_new) {
                let mut left = pages.iter();
                each_page(file, |bytes| match left.next() {
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
        file: &PagesFile,
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

#[cold]
fn changed(file: &PagesFile) -> PackError {
    ImageError::new(&file.path, "it changed while it was packed").into()
}

/// Gives `each` every page of `file`, in order.
fn each_page(
    file: &PagesFile,
    mut each: impl FnMut(&[u8]) -> Result<(), PackError>,
) -> Result<(), PackError> {
    let told = |error: io::Error| ImageError::new(&file.path, error);
    let mut input = File::open(&file.path).map_err(told)?;
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        bytes.clear();
        let mut part = (&mut input).take(READ_BYTES as u64);
        if part.read_to_end(&mut bytes).map_err(told)? == 0 {
            return Ok(());
        }
        let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
        if !rest.is_empty() {
            let text = format!("its last page has {} bytes of {PAGE_SIZE}", rest.len());
            return Err(ImageError::new(&file.path, text).into());
        }
        pages.iter().try_for_each(|page| each(page))?;
    }
}

/// Reads everything back that was packed, and compares it with the files that are there.
fn verify(packed: &Arc<Packed>, files: &[PagesFile]) -> Result<(), PackError> {
    let lost = |error: SourceError| PackError::Lost(error.0);
    let (mut buffer, mut read) = (Buffer::default(), vec![0; PAGE_SIZE]);
    for of in &packed.index().files {
        let source = packed.file(of.level, of.number);
        let Some(source) = source else { continue };
        let there = files
            .iter()
            .find(|file| (file.level, file.number) == (of.level, of.number));
        let mut number = 0;
        let mut next = |expected: Option<&[u8]>| {
            source
                .read_into(number, &mut read, &mut buffer)
                .map_err(lost)?;
            if expected.is_some_and(|expected| read != expected) {
                let (name, volumes) = (pages_name(of.number), &packed.index().volumes);
                let text = format!(
                    "page {number} of {name} was read back with other bytes than it has, from one \
                     of the volumes {volumes:?}"
                );
                return Err(PackError::Lost(text));
            }
            number += 1;
            Ok(())
        };
        match there {
            Some(file) => {
                each_page(file, |page| next(Some(page)))?;
                if number != of.pages() {
                    return Err(changed(file));
                }
            }
            None => (0..of.pages()).try_for_each(|_| next(None))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
