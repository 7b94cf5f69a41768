//! Where a snapshot's bytes go: a file that appears under its name only when it is complete.
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Takes a snapshot's bytes, in order.
///
/// ```
/// use std::io;
/// use std::sync::{Arc, Mutex};
///
/// use pagetide::track::snapshot::reader::SnapshotFile;
/// use pagetide::track::snapshot::sink::Sink;
/// # use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// # use pagetide::track::snapshot::writer::Writer;
///
/// /// Keeps the bytes in memory. Another sink could send them to a server.
/// #[derive(Clone, Default)]
/// struct Bytes(Arc<Mutex<Vec<u8>>>);
///
/// impl Sink for Bytes {
///     fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
///         self.0.lock().unwrap().extend(bytes);
///         Ok(())
///     }
///
///     fn commit(&mut self) -> io::Result<()> {
///         Ok(()) // nothing to make durable
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let regions = vec![RegionEntry { name: "table".into(), address: 0, pages: 100 }];
/// # let id = SnapshotId::random();
/// let sink = Bytes::default();
/// // Or `Snapshotter::snapshot_to`.
/// let writer = Writer::new(Box::new(sink.clone()), id, None, regions)?;
/// writer.finish()?;
/// let bytes = sink.0.lock().unwrap().clone();
/// assert_eq!(SnapshotFile::from_source("bytes", Box::new(bytes))?.regions()[0].pages, 100);
/// # Ok(())
/// # }
/// ```
pub trait Sink: Send {
    /// Takes all of `bytes`.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Everything was appended: makes it durable, and visible under its name. Not called after a
    /// failure.
    fn commit(&mut self) -> io::Result<()>;
}

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes after which the kernel is asked to start writing them to the disk, so that the last flush
/// has little left to do.
const FLUSH_BYTES: u64 = 32 << 20;
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A file written under a temporary name in the same directory, flushed to the disk and renamed at
/// the end. Dropped before that, it is removed. It holds what was in memory, so only its owner may
/// read it.
///
/// ```
/// use pagetide::track::snapshot::sink::{FileSink, Sink};
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("file-sink-{}", std::process::id()));
/// let mut sink = FileSink::create(&path)?;
/// sink.append(b"some bytes")?;
/// assert!(!path.exists()); // not before it is complete
/// sink.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"some bytes");
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Debug)]
pub struct FileSink {
    file: Option<BufWriter<File>>,
    /// Opened first: a directory that cannot be is found before anything is written.
    directory: File,
    temporary: PathBuf,
    path: PathBuf,
    written: u64,
    flushed: u64,
}

impl FileSink {
    /// Starts a file that will appear as `path`, where nothing may be but a file to replace.
    /// Temporary files for the same name that a killed process left behind are removed.
    pub fn create(path: &Path) -> io::Result<FileSink> {
        let name = path.file_name().ok_or_else(|| {
            let text = format!("'{}' is not the name of a file", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        if let Ok(there) = path.symlink_metadata()
            && !there.is_file()
        {
            let text = format!(
                "'{}' is there and is no regular file; give a name that is free, or that of a \
                 file to replace",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let directory = directory_of(path);
        let opened = File::open(&directory).map_err(naming(&directory))?;
        remove_leftovers(&directory, &name.to_string_lossy());
        let count = COUNTER.fetch_add(1, Relaxed);
        let temporary = directory.join(format!(
            ".{}.{}-{count}.partial",
            name.to_string_lossy(),
            std::process::id()
        ));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(naming(&temporary))?;
        Ok(FileSink {
            file: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
            directory: opened,
            temporary,
            path: path.to_owned(),
            written: 0,
            flushed: 0,
        })
    }
}

/// The same error, with the name of what it is about.
pub(crate) fn naming(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("'{}': {error}", path.display()))
}

/// The directory that `path` is in.
pub(crate) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Temporary files in `directory` that a killed process left behind: the name each would have got,
/// and its path.
fn leftovers(directory: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let left = |path: PathBuf| {
        let file = path.file_name()?.to_str()?;
        let (rest, count) = file
            .strip_prefix('.')?
            .strip_suffix(".partial")?
            .rsplit_once('-')?;
        let (name, process) = rest.rsplit_once('.')?;
        let process = process.parse::<u32>().ok()?;
        let is_ours = count.parse::<u64>().is_ok() && !name.is_empty();
        let is_left = is_ours && !Path::new(&format!("/proc/{process}")).exists();
        let name = name.to_owned();
        is_left.then_some((name, path))
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter_map(left).collect()
}

fn remove_leftovers(directory: &Path, name: &str) {
    for (left, path) in leftovers(directory) {
        if left == name {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes what [`FileSink`]s of killed processes left in `directory`, for names that end with
/// `suffix`, unless somebody wrote to it within the last `age`: a process of another machine
/// perhaps.
pub fn remove_leftovers_of(directory: &Path, suffix: &str, age: Duration) {
    for (left, path) in leftovers(directory) {
        let modified = path.metadata().and_then(|meta| meta.modified());
        let is_old = modified.is_ok_and(|then| then.elapsed().is_ok_and(|past| past >= age));
        if left.ends_with(suffix) && is_old {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Sink for FileSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let complete = || io::Error::other("the file is complete");
        let file = self.file.as_mut().ok_or_else(complete)?;
        file.write_all(bytes).map_err(naming(&self.path))?;
        self.written += bytes.len() as u64;
        if self.written - self.flushed >= FLUSH_BYTES {
            start_writing(file.get_ref(), self.flushed, self.written - self.flushed);
            self.flushed = self.written;
        }
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        let complete = || io::Error::other("the file is complete");
        let file = self.file.take().ok_or_else(complete)?;
        let named = (|| {
            let file = file.into_inner().map_err(|error| error.into_error())?;
            file.sync_all()?;
            std::fs::rename(&self.temporary, &self.path)
        })();
        let named = named.map_err(naming(&self.path));
        named.inspect_err(|_| _ = std::fs::remove_file(&self.temporary))?;
        // A name that may not last is none.
        let lasting = self.directory.sync_all().map_err(naming(&self.path));
        lasting.inspect_err(|_| _ = std::fs::remove_file(&self.path))
    }
}

/// Asks the kernel to start writing a part of the file out, without waiting.
fn start_writing(file: &File, offset: u64, len: u64) {
    use std::os::fd::AsRawFd as _;
    pagetide_kernel::memory::start_writing(file.as_raw_fd(), offset, len);
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
