//! Pages of an image, one after the other.
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::reader::BlockBuffer;

use super::shared::failure;
use crate::exit::Failure;
use crate::size::PAGE_BYTES;

/// Reads pages, keeping the last block.
pub struct PageReader<'i> {
    image: &'i Image,
    buffer: BlockBuffer,
    held: Option<(u32, u32)>,
    block: Vec<u8>,
    zeros: Vec<u8>,
}

impl<'i> PageReader<'i> {
    pub fn new(image: &'i Image) -> PageReader<'i> {
        PageReader {
            image,
            buffer: BlockBuffer::default(),
            held: None,
            block: Vec::new(),
            zeros: vec![0; PAGE_BYTES as usize],
        }
    }

    pub fn read(&mut self, index: u64) -> Result<&[u8], Failure> {
        let Some(run) = self.image.find(index) else {
            return Ok(&self.zeros);
        };
        if self.held != Some((run.file, run.block)) {
            self.held = None;
            let bytes = self.image.read(run, &mut self.buffer).map_err(failure)?;
            self.block.clear();
            self.block.extend_from_slice(bytes);
            self.held = Some((run.file, run.block));
        }
        let place = (u64::from(run.first_in_block) + index - run.first) * PAGE_BYTES;
        Ok(&self.block[place as usize..][..PAGE_BYTES as usize])
    }
}
