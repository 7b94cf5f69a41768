//! What each page of an image holds.
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

pub const PAGE_SIZE: usize = 4096;

/// Page `number` of every image here; one in five is zeros.
pub fn page(number: usize) -> [u8; PAGE_SIZE] {
    let mut bytes = [0; PAGE_SIZE];
    if number % 5 != 3 {
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            let value = (number as u64) << 32 | at as u64;
            word.copy_from_slice(&(!value.rotate_left(17)).to_le_bytes());
        }
    }
    bytes
}

pub fn write(path: &Path, pages: usize) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for number in 0..pages {
        file.write_all(&page(number))?;
    }
    file.flush()
}
