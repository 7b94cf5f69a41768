//! Everything that reads a snapshot file, given any bytes: it must neither panic nor allocate much
//! more than it was given.
use pagetide::track::read_region;
use std::sync::{Arc, Mutex};

use pagetide::track::snapshot::format::{
    Directory, END_MAGIC, HEADER_BYTES, MAGIC, RegionEntry, SnapshotId, TRAILER_BYTES, VERSION,
};
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::reader::{BlockBuffer, SnapshotFile};
use pagetide::track::snapshot::sink::Sink;
use pagetide::track::snapshot::working_set::WorkingSet;
use pagetide::track::snapshot::writer::{Parent, Writer};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 4096;
/// Regions up to this size are read whole.
const REGION_BYTES_MAX: u64 = 64 * PAGE as u64;

/// Reads `bytes` as a snapshot file and as a working set in every way there is.
pub fn exercise(bytes: &[u8]) {
    let _ = WorkingSet::decode(bytes);
    if let Some(set) = WorkingSet::decode(&working_set(bytes)) {
        assert_eq!(set.pages.len() as u64 * 8 + 40, bytes.len() as u64);
    }
    let open = || SnapshotFile::from_source("bytes", Box::new(bytes.to_vec()));
    let Ok(file) = open() else { return };
    let mut buffer = BlockBuffer::default();
    for block in 0..file.blocks().min(64) {
        let _ = file.read_block(block, &mut buffer);
    }
    let _ = Image::keeping_zeros(vec![file]);
    let Ok(image) = open()
        .map(|file| Image::of(vec![file]))
        .expect("it was read just now")
    else {
        return;
    };
    let mut page = [0; PAGE];
    let runs: Vec<u64> = image.runs().iter().take(64).map(|run| run.first).collect();
    for index in runs.into_iter().chain([0, 1, u64::MAX]) {
        let _ = image.read_page(index, &mut buffer, &mut page);
    }
    for region in image.regions() {
        if region.pages * PAGE as u64 <= REGION_BYTES_MAX {
            let mut into = vec![0; region.pages as usize * PAGE];
            let _ = read_region(&image, &region.name, &mut into);
        }
    }
}

/// `bytes` as a file of a working set, with its magic and a checksum that is right.
fn working_set(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(end) = bytes.len().checked_sub(8).filter(|end| *end >= 8) else {
        return bytes;
    };
    bytes[..8].copy_from_slice(b"PTWSET\r\n");
    let sum = xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Makes `bytes` a file whose magic, checksums and lengths are right, so that what is behind them
/// is reached: the part from `directory_at` (of the bytes between header and trailer) is the
/// directory. If that can be read, the checksums of blocks are right as well.
pub fn seal(bytes: &mut Vec<u8>, directory_at: usize) {
    let least = HEADER_BYTES + TRAILER_BYTES;
    if bytes.len() < least {
        bytes.resize(least, 0);
    }
    let (len, end) = (bytes.len(), bytes.len() - TRAILER_BYTES);
    let directory = HEADER_BYTES + directory_at % (end - HEADER_BYTES + 1);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(PAGE as u32).to_le_bytes());
    let sum = xxh3_64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&sum.to_le_bytes());
    seal_blocks(&mut bytes[..end], directory);
    let directory_sum = xxh3_64(&bytes[directory..end]);
    let id: [u8; 16] = bytes[16..32].try_into().expect("sixteen bytes");
    let trailer = &mut bytes[end..];
    trailer[..8].copy_from_slice(&END_MAGIC);
    trailer[8..24].copy_from_slice(&id);
    trailer[24..32].copy_from_slice(&(directory as u64).to_le_bytes());
    trailer[32..40].copy_from_slice(&((end - directory) as u64).to_le_bytes());
    trailer[40..48].copy_from_slice(&directory_sum.to_le_bytes());
    trailer[48..56].copy_from_slice(&(len as u64).to_le_bytes());
    let sum = xxh3_64(&trailer[..56]);
    trailer[56..64].copy_from_slice(&sum.to_le_bytes());
}

/// The same for the blocks of a file, whose directory is what is there from `at` on.
fn seal_blocks(bytes: &mut [u8], at: usize) {
    let Ok(mut directory) = Directory::decode(&bytes[at..], at as u64) else {
        return;
    };
    for block in &mut directory.blocks {
        let stored = &bytes[block.offset as usize..][..block.stored_len as usize];
        block.sum = xxh3_64(stored);
    }
    let encoded = directory.encode();
    assert_eq!(
        Directory::decode(&encoded, at as u64).as_ref(),
        Ok(&directory)
    );
    bytes[at..].copy_from_slice(&encoded);
}

/// Where the directory of a file of [`real_file`] begins.
pub fn directory_of(file: &[u8]) -> usize {
    let at = file.len() - TRAILER_BYTES + 24;
    u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes")) as usize
}

/// Bytes that stay here.
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Sink for Kept {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0
            .lock()
            .expect("nobody panics")
            .extend_from_slice(bytes);
        Ok(())
    }
    fn commit(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A real file, small enough that changes meet something. `byte` gives what is in it.
pub fn real_file(mut byte: impl FnMut() -> u8, parent: Option<&Parent>) -> Vec<u8> {
    let bytes = Arc::default();
    let regions = ["a", "another"].map(|name| RegionEntry {
        name: name.into(),
        address: 0x10000,
        pages: 40,
    });
    let sink = Box::new(Kept(Arc::clone(&bytes)));
    let id = SnapshotId(std::array::from_fn(|_| byte()));
    let mut writer = Writer::new(sink, id, parent, regions.into()).expect("a writer");
    for region in 0..2 {
        for first in (0..40).step_by(5) {
            let pages: Vec<u64> = (first..first + 3).collect();
            let mut block = vec![first as u8; 3 * PAGE];
            block[..64].iter_mut().for_each(|place| *place = byte());
            writer.put(region, &pages, &block).expect("it is kept");
            writer.put_zeros(region, first + 3, 1);
        }
    }
    writer.finish().expect("it is kept");
    std::mem::take(&mut *bytes.lock().expect("nobody panics"))
}
