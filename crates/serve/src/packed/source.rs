//! Packed files of pages, as images.
use std::collections::HashMap;
use std::sync::Arc;

use pagetide_track::SnapshotId;
use xxhash_rust::xxh3::Xxh3;

use super::index::{Index, Place};
use super::shelf::{Shelf, Stored};
use super::volume::Volume;
use crate::counters::Origin;
use crate::source::blocks::Blocks;
use crate::source::look_up::{LookUp, part_of_block};
use crate::source::{Buffer, SourceError};

/// The pages of images that were packed: those that an index tells of, and their volumes.
pub struct Packed {
    index: Index,
    /// In the index's order.
    volumes: Vec<Volume>,
    /// Of all volumes, by their place here.
    blocks: Blocks,
}

impl Packed {
    /// Opens the volumes on `shelf` that `index` tells of.
    ///
    /// # Errors
    /// One is not there, or not what it should be.
    pub fn open(index: Index, shelf: &Shelf) -> Result<Packed, SourceError> {
        let told = |error: &dyn ToString| SourceError(error.to_string());
        let stored = shelf.volumes().map_err(|error| told(&error))?;
        let stored: HashMap<SnapshotId, &Stored> =
            stored.iter().map(|stored| (stored.id, stored)).collect();
        let mut volumes = Vec::new();
        for id in &index.volumes {
            let Some(stored) = stored.get(id) else {
                return Err(SourceError(format!(
                    "volume {id} with pages of these images is not at {} (any more); another place \
                     can be named with --store",
                    shelf.uri()
                )));
            };
            volumes.push(Volume::open(shelf, stored).map_err(|error| told(&error))?);
        }
        for file in &index.files {
            for run in file.runs() {
                let Place::Volume { volume, page } = run.place else {
                    continue;
                };
                let end = u64::from(page) + u64::from(run.pages);
                if volumes[volume as usize].pages() < end {
                    let id = index.volumes[volume as usize];
                    let text = format!("volume {id} does not have page {}", end - 1);
                    return Err(SourceError(text));
                }
            }
        }
        Ok(Packed {
            index,
            volumes,
            blocks: Blocks::default(),
        })
    }

    /// What says where the pages are.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The pages of `pages-NUMBER.img` in the directory at `level`, if they were packed.
    pub fn file(self: &Arc<Self>, level: u32, number: u32) -> Option<PackedFile> {
        let mut files = self.index.files.iter();
        let place = files.position(|file| (file.level, file.number) == (level, number))?;
        Some(PackedFile {
            packed: Arc::clone(self),
            place,
        })
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let volumes = &self.index.volumes;
        f.debug_struct("Packed")
            .field("volumes", volumes)
            .finish_non_exhaustive()
    }
}

/// A file of pages that was packed.
#[derive(Debug)]
pub struct PackedFile {
    packed: Arc<Packed>,
    /// Of the index's files.
    place: usize,
}

impl PackedFile {
    fn file(&self) -> &super::index::File {
        &self.packed.index.files[self.place]
    }
}

impl LookUp for PackedFile {
    fn page_count(&self) -> u64 {
        self.file().pages()
    }

    /// Of where its pages are, which are others only if they have other contents.
    fn known_as(&self) -> SnapshotId {
        let mut hash = Xxh3::new();
        self.packed
            .index
            .volumes
            .iter()
            .for_each(|id| hash.update(&id.0));
        for run in self.file().runs() {
            let (volume, page) = match run.place {
                Place::Zeros => (u32::MAX, 0),
                Place::Volume { volume, page } => (volume, page),
            };
            [run.pages, volume, page]
                .iter()
                .for_each(|number| hash.update(&number.to_le_bytes()));
        }
        SnapshotId(hash.digest128().to_le_bytes())
    }

    fn kept_in(&self) -> Origin {
        Origin::Store
    }

    fn look_up<'b>(
        &self,
        first: u64,
        most: u64,
        buffer: &'b mut Buffer,
    ) -> Result<(u64, Option<&'b [u8]>), SourceError> {
        let (place, pages) = match self.file().find(first) {
            None => (Place::Zeros, most),
            Some((place, pages)) => (place, pages.min(most)),
        };
        let Place::Volume { volume, page } = place else {
            return Ok((pages, None));
        };
        let named = |error: SourceError| {
            let file = self.file();
            let name = format!("pages-{}.img", file.number);
            SourceError(format!(
                "page {first} of {name}, directory {}: {}",
                file.level, error.0
            ))
        };
        let image = self.packed.volumes[volume as usize].image();
        let run = image.find(page.into());
        let run =
            run.ok_or_else(|| named(SourceError("its volume does not have it".to_owned())))?;
        let offset = u64::from(page) - run.first;
        let pages = pages.min(u64::from(run.pages) - offset);
        let kept = ((volume, run.block), &self.packed.blocks);
        let bytes = part_of_block(image, run, (offset, pages), kept, buffer);
        Ok((pages, Some(bytes.map_err(named)?)))
    }
}
