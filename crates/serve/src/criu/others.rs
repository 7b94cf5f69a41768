//! The pages of a packed dump that do not come when they are touched: CRIU reads them itself, from
//! files of pages, which have to be there while it restores. They are made with these pages alone.
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;

use super::chain::{chain, pages_name};
use super::image::ImageError;
use super::reader::{Opened, Place, Reader};
use crate::packed::Packed;
use crate::source::Buffer;

/// Follows the pages in such a file, so that nobody takes it for a whole one.
const NOTE: &[u8] = b"pagetide: pages that come when they are touched are not in this file\n";
/// Pages read at a time.
const STEP_PAGES: u64 = 256;

/// Files of pages that were made; they are removed when this is dropped.
#[derive(Debug, Default)]
pub struct Others {
    made: Vec<PathBuf>,
}

impl Others {
    /// Makes the files of pages of the dump in `directory`, and of those it builds on, that were
    /// packed and are not there.
    ///
    /// # Errors
    /// Images are not what they should be, pages cannot be had, or a file cannot be written.
    pub fn make(directory: &Path, packed: &Arc<Packed>) -> Result<Others, ImageError> {
        let directories = chain(directory)?;
        let mut reader = Reader::new(directory, false, Some(Arc::clone(packed)));
        reader.read_others()?;
        let mut others = Others::default();
        for file in &packed.index().files {
            let of = (file.level as usize, file.number);
            let Some(directory) = directories.get(of.0) else {
                let text = "the index has pages of images that this dump does not build on";
                return Err(ImageError::new(directory, text));
            };
            let path = directory.join(pages_name(file.number));
            if path.exists() && !is_remainder(&path) {
                continue;
            }
            let told = |error: io::Error| {
                let text = format!("CRIU reads pages there, and it cannot be written: {error}");
                ImageError::new(&path, text)
            };
            let name = format!(
                ".{}.{}.partial",
                pages_name(file.number),
                std::process::id()
            );
            let partial = directory.join(name);
            let made = write(&partial, file.pages(), of, &reader)
                .map_err(|error| error.map_io(told))
                .and_then(|()| fs::rename(&partial, &path).map_err(told));
            made.inspect_err(|_| drop(fs::remove_file(&partial)))?;
            others.made.push(path);
        }
        Ok(others)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether the file at `path` is one that was made here, and left by a process that was killed.
pub(super) fn is_remainder(path: &Path) -> bool {
    let read = || {
        let file = File::open(path)?;
        let mut end = [0; NOTE.len()];
        let len = file.metadata()?.len();
        let at = len.checked_sub(NOTE.len() as u64);
        file.read_exact_at(&mut end, at.ok_or(io::ErrorKind::UnexpectedEof)?)?;
        io::Result::Ok(end == NOTE)
    };
    read().unwrap_or(false)
}

/// Why a file was not made.
enum NotMade {
    Io(io::Error),
    Image(ImageError),
}

impl NotMade {
    fn map_io(self, told: impl Fn(io::Error) -> ImageError) -> ImageError {
        match self {
            NotMade::Io(error) => told(error),
            NotMade::Image(error) => error,
        }
    }
}

impl From<io::Error> for NotMade {
    fn from(error: io::Error) -> NotMade {
        NotMade::Io(error)
    }
}

/// Writes the file of `pages` pages that is known as `of`, with those that `reader` has found.
fn write(path: &Path, pages: u64, of: (usize, u32), reader: &Reader) -> Result<(), NotMade> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path)?;
    file.set_len(pages * PAGE_SIZE as u64)?;
    let (mut buffer, mut bytes) = (Buffer::default(), Vec::new());
    for run in &reader.runs {
        let Place::File { file: number, page } = run.place else {
            continue;
        };
        let opened: &Opened = &reader.opened[number as usize];
        if opened.of != of {
            continue;
        }
        let end = page + run.pages;
        for first in (page..end).step_by(STEP_PAGES as usize) {
            bytes.resize((end - first).min(STEP_PAGES) as usize * PAGE_SIZE, 0);
            let read = opened.source.read_into(first, &mut bytes, &mut buffer);
            read.map_err(|error| NotMade::Image(ImageError::new(path, error)))?;
            file.write_all_at(&bytes, first * PAGE_SIZE as u64)?;
        }
    }
    file.write_all_at(NOTE, pages * PAGE_SIZE as u64)?;
    Ok(())
}
