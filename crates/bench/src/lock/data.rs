//! The file that is measured: made, put into and out of the page cache, and deleted.
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use pagetide_kernel::residency::cachestat;
use rustix::fs::{Advice, fadvise, statvfs};

use crate::undo;

/// A file of random bytes.
pub struct Data {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Data {
    /// Makes it in `directory`; it is deleted by `undo`.
    pub fn make(directory: &Path, size: u64) -> Result<Data> {
        let space = statvfs(directory)?;
        let free = space.f_bavail * space.f_frsize;
        if free < size + (64 << 20) {
            return Err(Error::other(format!(
                "{}: {size} bytes are needed and {free} are free; name another directory with \
                 --dir, or a smaller --file-size",
                directory.display()
            )));
        }
        let path = directory.join(format!("pagetide-bench-{}", std::process::id()));
        let gone = path.clone();
        let mut file = undo::change(
            "the measured file",
            || {
                File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&path)
            },
            move || std::fs::remove_file(gone),
        )?;
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut block = vec![0u8; 8 << 20];
        let mut left = size;
        while left > 0 {
            for word in block.as_chunks_mut::<8>().0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state.to_ne_bytes();
            }
            let now = left.min(block.len() as u64);
            file.write_all(&block[..now as usize])?;
            left -= now;
        }
        file.sync_all()?;
        Ok(Data { path, file, size })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing of it in the page cache.
    pub fn make_cold(&self) -> Result<()> {
        for _ in 0..20 {
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
            match cachestat(self.file.as_fd(), 0, self.size) {
                Ok(stat) if stat.cached > 0 => {
                    // Pages on their way through the kernel's per-processor lists are missed for a
                    // moment.
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return Ok(()),
            }
        }
        Err(Error::other(
            "the file cannot be put out of the page cache: is it locked or being written?",
        ))
    }

    /// All of it in the page cache.
    pub fn make_warm(&self) -> Result<()> {
        let pages = self.size.div_ceil(4096);
        let mut block = vec![0u8; 4 << 20];
        let mut cached = 0;
        // Proactive reclaim (DAMON, another group's limit) takes a few pages back now and then.
        for _ in 0..5 {
            let mut file = File::open(&self.path)?;
            while file.read(&mut block)? > 0 {}
            match cachestat(self.file.as_fd(), 0, self.size) {
                Ok(stat) if stat.cached < pages => cached = stat.cached,
                _ => return Ok(()),
            }
        }
        Err(Error::other(format!(
            "{cached} of {pages} pages stay in the page cache: there is not enough memory; use a \
             smaller --file-size"
        )))
    }
}
