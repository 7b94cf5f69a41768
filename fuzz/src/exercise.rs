//! Everything that reads a snapshot file, given any bytes: it must neither panic nor allocate much
//! more than it was given.
use pagetide::track::read_region;
use pagetide::track::snapshot::format::{END_MAGIC, HEADER_BYTES, MAGIC, TRAILER_BYTES, VERSION};
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::reader::{BlockBuffer, SnapshotFile};
use pagetide::track::snapshot::working_set::WorkingSet;
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 4096;
/// Regions up to this size are read whole.
const REGION_BYTES_MAX: u64 = 64 * PAGE as u64;

/// Reads `bytes` as a snapshot file and as a working set in every way there is.
pub fn exercise(bytes: &[u8]) {
    let _ = WorkingSet::decode(bytes);
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

/// Makes `bytes` a file whose magic, checksums and lengths are right, so that what is behind them
/// is reached: the part from `directory_at` (of the bytes between header and trailer) is the
/// directory.
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
