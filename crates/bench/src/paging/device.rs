//! The device under a `file:` store by itself: the same pages, read one at a time and past the page
//! cache.
use std::fs::File;
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::fs::{Mode, OFlags};

use crate::content::{PAGE_BYTES, Random};
use crate::statistics::histogram;

/// Its name among the systems.
pub const NAME: &str = "device, read alone";

/// A file of random bytes beside the store's, deleted when this is dropped.
#[derive(Debug)]
pub struct DeviceFile(PathBuf);

impl DeviceFile {
    /// Makes one of so many bytes in the directory that `store`, a `file:` URI, names or is in.
    pub fn new(store: &str, bytes: u64, seed: u64) -> Result<DeviceFile> {
        let place = store.strip_prefix("file:").ok_or_else(|| {
            Error::other(format!(
                "--peer device: '{store}' is on no device; expected --store file:PATH"
            ))
        })?;
        let place = Path::new(place.split('?').next().unwrap_or(place));
        let directory = match place.parent() {
            _ if place.is_dir() => place,
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let file = DeviceFile(directory.join(format!("pagetide-device-{}", std::process::id())));
        let mut random = Random::new(seed);
        let mut out = File::create(&file.0)?;
        let mut block = Vec::with_capacity(1 << 20);
        for _ in 0..bytes.div_ceil(1 << 20) {
            block.clear();
            block.extend((0..1 << 17).flat_map(|_| random.number().to_ne_bytes()));
            out.write_all(&block)?;
        }
        out.sync_all()?;
        Ok(file)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads `count` pages by direct I/O, timing each.
pub fn read(
    path: &Path,
    mut page: impl FnMut() -> u64,
    count: u64,
) -> std::result::Result<Histogram<u64>, String> {
    let failed = |what: &str, error| format!("{what} {}: {error}", path.display());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| failed("opening for direct I/O", error))?;
    let mut room = vec![0u8; 2 * PAGE_BYTES];
    let start = room.as_ptr().align_offset(PAGE_BYTES);
    let buffer = &mut room[start..start + PAGE_BYTES];
    let mut times = histogram();
    for _ in 0..count {
        let offset = page() * PAGE_BYTES as u64;
        let began = Instant::now();
        let read = rustix::io::pread(&file, &mut *buffer, offset);
        times.saturating_record(began.elapsed().as_nanos() as u64);
        match read {
            Ok(PAGE_BYTES) => {}
            Ok(short) => return Err(format!("{}: {short} bytes at {offset}", path.display())),
            Err(error) => return Err(failed("reading", error)),
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beside_the_store_is_read_and_deleted() {
        assert!(DeviceFile::new("ram:", 4096, 1).is_err());
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let store = format!("file:{}?keep=1", directory.path().display());
        let file = DeviceFile::new(&store, 1 << 20, 1).unwrap();
        let mut pages = (0..256).cycle();
        match read(file.path(), || pages.next().unwrap(), 300) {
            Ok(times) => assert_eq!(times.len(), 300),
            // A file system without direct I/O.
            Err(error) => assert!(error.contains("direct I/O"), "{error}"),
        }
        drop(file);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
