//! A file of which only parts are used, kept in memory where it was touched.
// Maps files, and gives out their bytes by reference: see `LockedFile::as_slice`.
#![allow(unsafe_code)]
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use pagetide_kernel::memory;
use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::uffd::Uffd;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::error::{FileError, LockError};
use super::exact::without_fault_around;
use super::flags::{Access, Mode, Sharing};
use super::hold::Hold;
use super::watch::{Shared, Watch, WatchStatistics};

/// How a [`LockedFile`] is to be mapped.
///
/// ```
/// use pagetide::lock::{Access, LockedFile, Mode};
///
/// let builder = LockedFile::builder().mode(Mode::Full).access(Access::Sequential);
/// assert!(builder.range(0, 1 << 20).open("/no/such/file").is_err());
/// ```
#[derive(Debug, Clone, Default)]
pub struct LockedFileBuilder {
    mode: Option<Mode>,
    access: Access,
    sharing: Sharing,
    range: Option<(u64, u64)>,
}

impl LockedFileBuilder {
    /// On fault if not said.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// [`Access::Adaptive`] if not said.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// [`Sharing::ReadOnly`] if not said.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// A part of the file: `len` bytes from `offset`, cut at the file's end. `offset` is a multiple
    /// of the page size.
    #[must_use]
    pub fn range(mut self, offset: u64, len: u64) -> Self {
        self.range = Some((offset, len));
        self
    }

    /// Opens, maps and locks the file at `path`.
    ///
    /// # Errors
    /// As [`LockedFileBuilder::map`], with the path.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<LockedFile, FileError> {
        let path = path.as_ref();
        let file = File::open(path).and_then(|file| self.map(file));
        file.map_err(FileError::of(path))
    }

    /// Maps and locks an open file, which must be readable.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a range that does not begin in the file or on a page;
    /// what mapping says; [`LockError`] inside where it cannot be locked: then nothing is mapped.
    pub fn map(&self, file: File) -> io::Result<LockedFile> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(invalid("expected a regular file"));
        }
        let (offset, len) = self.part_of(meta.len())?;
        let mut locked = LockedFile {
            address: std::ptr::null_mut(),
            len,
            offset,
            file: file.into(),
            writable: self.sharing == Sharing::Private,
            hold: None,
            watcher: None,
            exact: None,
            shared: Arc::default(),
            pid: std::process::id(),
        };
        if len == 0 {
            return Ok(locked);
        }
        let mode = self.mode.unwrap_or(Mode::OnFault);
        let exact = self.access == Access::Exact && mode == Mode::OnFault;
        let (protection, flags) = match self.sharing {
            // Of a file that may not be written, userfaultfd takes private mappings only. Read,
            // they are the page cache's own pages as well.
            Sharing::ReadOnly if exact => (ProtFlags::READ, MapFlags::PRIVATE),
            Sharing::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
            Sharing::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        };
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at a place of the kernel's choice.
        let address = unsafe { mmap(anywhere, len, protection, flags, &locked.file, offset) }?;
        // From here on, dropping `locked` unmaps it.
        locked.address = address.cast();
        let range = locked.pages();
        let hint = match self.access {
            Access::Adaptive | Access::Random | Access::Exact => Hint::Random,
            Access::Sequential => Hint::Sequential,
            Access::Normal => Hint::Normal,
        };
        if mode == Mode::OnFault {
            mlock::hint(range, hint)?;
        }
        if exact {
            locked.exact = Some(without_fault_around(range)?);
        }
        locked.hold = Some(Hold::new(range, mode).map_err(io_error)?);
        if self.access == Access::Adaptive && mode == Mode::OnFault {
            locked.watch()?;
        }
        Ok(locked)
    }

    fn part_of(&self, size: u64) -> io::Result<(u64, usize)> {
        let Some((offset, len)) = self.range else {
            return Ok((0, size as usize));
        };
        if offset % PAGE_SIZE as u64 != 0 {
            return Err(invalid(format!(
                "offset {offset}: expected a multiple of {PAGE_SIZE}"
            )));
        }
        if offset > 0 && offset >= size {
            return Err(invalid(format!(
                "offset {offset}: expected less than {size}, which is the file's size in bytes"
            )));
        }
        Ok((offset, len.min(size - offset) as usize))
    }
}

fn io_error(error: LockError) -> io::Error {
    io::Error::other(error)
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text.into())
}

/// A mapped file whose pages stay in memory once they are touched.
///
/// Locked are pages that this process touches. What the watcher reads ahead is in the page cache,
/// not locked, until it is touched. The kernel maps what is in the page cache already around each
/// page that is touched (up to 16 pages, or a whole 2 MiB where the file is cached in folios of
/// that size); that is locked with it, unless [`Access::Exact`] is asked for.
///
/// If the file is truncated, touching what is gone raises SIGBUS, as in any mapping.
///
/// ```
/// use pagetide::lock::LockedFile;
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("locked-{}", std::process::id()));
/// # std::fs::write(&path, "key=value")?;
/// match LockedFile::open(&path) {
///     Ok(index) => {
///         index.prefetch(&[0..9])?; // scattered reads, queued together
///         let mut start = [0u8; 4];
///         assert_eq!(index.copy_to(0, &mut start), 4); // touched, and so locked
///         assert_eq!(&start, b"key=");
///     }
///     Err(error) => eprintln!("{error}"),
/// }
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Debug)]
pub struct LockedFile {
    address: *mut u8,
    len: usize,
    offset: u64,
    file: OwnedFd,
    writable: bool,
    hold: Option<Hold>,
    watcher: Option<JoinHandle<()>>,
    /// For [`Access::Exact`].
    exact: Option<Uffd>,
    shared: Arc<Shared>,
    /// A forked child has no watcher to wait for.
    pid: u32,
}

// SAFETY: the address is of a mapping that this value alone unmaps; through `&` it is only read.
unsafe impl Send for LockedFile {}
// SAFETY: as above.
unsafe impl Sync for LockedFile {}

impl LockedFile {
    /// How to map one.
    pub fn builder() -> LockedFileBuilder {
        LockedFileBuilder::default()
    }

    /// Maps `path` read only, locked on fault, with adaptive read-around.
    ///
    /// # Errors
    /// As [`LockedFileBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<LockedFile, FileError> {
        LockedFile::builder().open(path)
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the file, or the part of it, is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte; null if empty.
    pub fn as_ptr(&self) -> *const u8 {
        self.address
    }

    /// The bytes.
    ///
    /// # Safety
    /// Nobody changes the file while the reference lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: mapped for as long as `self`; constant by the caller's word.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The bytes, to be written; `None` unless [`Sharing::Private`].
    ///
    /// # Safety
    /// As [`LockedFile::as_slice`].
    pub unsafe fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if !self.writable {
            return None;
        }
        if self.len == 0 {
            return Some(&mut []);
        }
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address, self.len) })
    }

    /// Copies bytes from `offset` (in the mapping) into `buffer`, touching and so locking their
    /// pages. Returns how many there were. A file that is changed meanwhile gives some mixture of
    /// old and new.
    pub fn copy_to(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let count = self.len.saturating_sub(offset).min(buffer.len());
        if count > 0 {
            // SAFETY: within the mapping and within the buffer, which do not overlap; the copy
            // makes no reference to bytes that may change.
            unsafe {
                std::ptr::copy_nonoverlapping(self.address.add(offset), buffer.as_mut_ptr(), count);
            }
        }
        count
    }

    /// Starts reading scattered parts (byte ranges in the mapping), all of them at once so that the
    /// device works on many, and returns when the reads are queued. The pages are in the page cache
    /// then, and locked when touched.
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the end.
    pub fn prefetch(&self, parts: &[Range<usize>]) -> io::Result<()> {
        let pages = self.page_ranges(parts)?;
        let batch = mlock::this_process();
        for some in pages.chunks(mlock::SPANS_MAX) {
            let done = match &batch {
                Ok(process) => mlock::will_need_all(process, some),
                Err(errno) => Err(*errno),
            };
            if done.is_err() {
                for range in some {
                    mlock::hint(*range, Hint::WillNeed)?;
                }
            }
        }
        Ok(())
    }

    /// The same, and waits until the pages are in memory and locked.
    ///
    /// # Errors
    /// As [`LockedFile::prefetch`], and where the file cannot be read.
    pub fn load(&self, parts: &[Range<usize>]) -> io::Result<()> {
        self.prefetch(parts)?;
        for range in self.page_ranges(parts)? {
            memory::populate(range)?;
        }
        Ok(())
    }

    /// What the watcher has done; zeros without one.
    pub fn statistics(&self) -> WatchStatistics {
        self.shared.statistics()
    }

    /// Locks all of it: reads block by block, calling `progress` with the bytes done so far, then
    /// turns the lock into a full one.
    ///
    /// # Errors
    /// Where the file cannot be read or the lock fails.
    pub fn fill(&mut self, mut progress: impl FnMut(u64)) -> io::Result<()> {
        const BLOCK_BYTES: usize = 8 << 20;
        let whole = self.pages();
        for start in (0..self.len).step_by(BLOCK_BYTES) {
            // Twice as far ahead is being read while this block is taken in.
            let end = (start + 2 * BLOCK_BYTES).min(self.len);
            self.prefetch(std::slice::from_ref(&(start..end)))?;
            let done = (start + BLOCK_BYTES).min(self.len);
            self.load(std::slice::from_ref(&(start..done)))?;
            progress(done as u64);
        }
        if self.len > 0 {
            // The new lock first: the pages are never without one.
            let hold = Hold::new(whole, Mode::Full).map_err(io_error)?;
            self.hold = Some(hold);
        }
        Ok(())
    }

    /// Whether the kernel tells this user which of the file's pages are in the page cache: its
    /// owner, whoever may write it, and root.
    pub fn is_told(&self) -> bool {
        pagetide_kernel::residency::is_told(self.descriptor())
    }

    /// The file, for questions about its cache.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in the file the mapping begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The pages mapped.
    pub fn pages(&self) -> PageRange {
        PageRange::covering(self.address as usize, self.len)
    }

    fn page_ranges(&self, parts: &[Range<usize>]) -> io::Result<Vec<PageRange>> {
        let mut pages: Vec<PageRange> = Vec::with_capacity(parts.len());
        for part in parts {
            if part.start > part.end || part.end > self.len {
                return Err(invalid(format!(
                    "bytes {}..{}: expected a range within the {} bytes mapped",
                    part.start, part.end, self.len
                )));
            }
            if part.is_empty() {
                continue;
            }
            let start = PageNumber::containing(self.address as usize + part.start);
            let end = PageNumber::containing(self.address as usize + part.end - 1).add(1);
            match pages.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => pages.push(PageRange { start, end }),
            }
        }
        Ok(pages)
    }

    fn watch(&mut self) -> io::Result<()> {
        let file = self.file.as_fd().try_clone_to_owned()?;
        let watch = Watch::new(Arc::clone(&self.shared), self.pages(), file, self.offset);
        let thread = std::thread::Builder::new()
            .name("pagetide-watch".into())
            .stack_size(128 << 10);
        self.watcher = Some(thread.spawn(move || watch.run())?);
        Ok(())
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(watcher) = self.watcher.take() {
            if self.pid == std::process::id() {
                // A watcher that failed has nothing to say here.
                let _ = watcher.join();
            } else {
                // A forked child has no such thread, and its stack may be another's by now.
                std::mem::forget(watcher);
            }
        }
        let unmap = || {
            if !self.address.is_null() {
                // SAFETY: mapped by `map`, and nothing uses it any more: the watcher has ended,
                // references borrow from `self`.
                let _ = unsafe { munmap(self.address.cast(), self.len) };
            }
        };
        match self.hold.take() {
            Some(hold) => hold.unmap(unmap),
            None => unmap(),
        }
    }
}
