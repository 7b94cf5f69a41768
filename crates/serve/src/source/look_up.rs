//! What images of blocks have in common: pages are found in pieces, and read into memory that can
//! be borrowed.
use std::fmt::Debug;
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;
use pagetide_track::snapshot::image::ImageRun;
use pagetide_track::{Image, SnapshotId};

use crate::counters::Origin;

use super::blocks::{Block, Blocks, Key};
use super::{Buffer, Bytes, Piece, Source, SourceError};

/// An image whose pages are found in pieces; it is a [`Source`] then.
pub(crate) trait LookUp: Debug + Send + Sync {
    /// [`Source::pages`].
    fn page_count(&self) -> u64;

    /// [`Source::id`].
    fn known_as(&self) -> SnapshotId;

    /// Where its bytes are.
    fn kept_in(&self) -> Origin;

    /// How many pages from `first` on come in one piece, at most `most`, and their bytes unless
    /// they are zeros.
    fn look_up<'b>(
        &self,
        first: u64,
        most: u64,
        buffer: &'b mut Buffer,
    ) -> Result<(u64, Option<&'b [u8]>), SourceError>;
}

impl<I: LookUp> Source for I {
    fn pages(&self) -> u64 {
        self.page_count()
    }

    fn id(&self) -> SnapshotId {
        self.known_as()
    }

    fn origin(&self, _: u64) -> Origin {
        self.kept_in()
    }

    fn read<'b>(
        &'b self,
        first: u64,
        most: u64,
        buffer: &'b mut Buffer,
    ) -> Result<Piece<'b>, SourceError> {
        let (pages, bytes) = self.look_up(first, most, buffer)?;
        Ok(bytes.map_or(Piece::Zeros(pages), |bytes| Piece::Bytes(Bytes::of(bytes))))
    }

    fn read_into(
        &self,
        first: u64,
        into: &mut [u8],
        buffer: &mut Buffer,
    ) -> Result<(), SourceError> {
        let (mut first, mut rest) = (first, into);
        while !rest.is_empty() {
            let most = (rest.len() / PAGE_SIZE) as u64;
            let (pages, bytes) = self.look_up(first, most, buffer)?;
            let (now, later) = rest.split_at_mut(pages as usize * PAGE_SIZE);
            match bytes {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            (first, rest) = (first + pages, later);
        }
        Ok(())
    }
}

/// The bytes of `pages` pages of `run`, from its page `offset` on. Its block is known as `key`
/// among all that are kept in `blocks`.
pub(crate) fn part_of_block<'b>(
    image: &Image,
    run: &ImageRun,
    (offset, pages): (u64, u64),
    (key, blocks): (Key, &Blocks),
    buffer: &'b mut Buffer,
) -> Result<&'b [u8], SourceError> {
    if buffer.block.as_ref().is_none_or(|block| block.key != key) {
        buffer.block = blocks.get(key);
    }
    if buffer.block.is_none() {
        let unpacking = buffer.unpacking.get_or_insert_default();
        let bytes = image.read(run, unpacking);
        let bytes = bytes
            .map_err(|error| SourceError(error.to_string()))?
            .to_vec();
        let block = Arc::new(Block { key, bytes });
        blocks.put(&block);
        buffer.block = Some(block);
    }
    let bytes = buffer.block.as_ref().map_or(&[][..], |block| &block.bytes);
    let from = (u64::from(run.first_in_block) + offset) as usize * PAGE_SIZE;
    let part = bytes.get(from..from + pages as usize * PAGE_SIZE);
    part.ok_or_else(|| SourceError(format!("block {} is shorter than its pages", run.block)))
}
