//! Puts the pages of a dump into a place of their own, and an index beside the images.
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;

use super::chain::{chain, images_id, names, pages_name, pages_number};
use super::image::ImageError;
use super::others::is_remainder;
use crate::packed::{
    self, INDEX_NAME, Index, IndexError, PackError, Packed, Pages, Shelf, Summary, put, verify,
};

/// Bytes of a file of pages that are read at a time.
const READ_BYTES: usize = 256 * PAGE_SIZE;

impl From<ImageError> for PackError {
    fn from(error: ImageError) -> PackError {
        PackError::Image(error.to_string())
    }
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
    let (index, mut summary) = match packed_before(directory, &files)? {
        Some(index) => (index, Summary::default()),
        None => {
            let (index, summary) = put(&files, shelf, images_id(&directories)?, say)?;
            let path = directory.join(INDEX_NAME);
            let saved = index.save(&path);
            saved.map_err(|error| ImageError::new(&path, error))?;
            (index, summary)
        }
    };
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

impl Pages for PagesFile {
    fn key(&self) -> (u32, u32) {
        (self.level, self.number)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn each(&self, each: &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), PackError> {
        let told = |error: io::Error| ImageError::new(&self.path, error);
        let mut input = File::open(&self.path).map_err(told)?;
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
                return Err(ImageError::new(&self.path, text).into());
            }
            pages.iter().try_for_each(|page| each(page))?;
        }
    }
}

#[cfg(test)]
mod tests;
