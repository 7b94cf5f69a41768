//! Keeping the pages of a file in memory from the moment anyone touches them, not only this
//! process.
use std::io;
use std::time::{Duration, Instant};

use pagetide_kernel::memory;
use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::residency::{cachestat, is_told, mincore};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use super::adaptive::{Adaptive, CHUNK_PAGES};
use super::file::LockedFile;
use super::flags::Access;
use super::residency::{for_each_run, not_told, windows};

/// Between two looks at a file of which nothing is known to have changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A file whose pages are locked soon after they enter the page cache, whoever brought them in.
///
/// The kernel locks a page on fault for the process that faults. So that another process's touch
/// counts, [`Keeper::step`] looks which pages of the file are in the page cache and takes those
/// into this process's locked mapping. Between touch and step the page could be evicted.
///
/// ```
/// use pagetide::lock::{Access, Keeper, LockedFile};
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("keeper-{}", std::process::id()));
/// # std::fs::write(&path, "keys")?;
/// // Keeping reads nothing by itself then.
/// if let Ok(file) = LockedFile::builder().access(Access::Random).open(&path) {
///     let mut keeper = Keeper::new(file, Access::Adaptive)?;
///     keeper.step()?; // ten times a second, say
///     println!("{} bytes are locked", keeper.locked_bytes());
/// }
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Debug)]
pub struct Keeper {
    file: LockedFile,
    pagemap: Pagemap,
    /// What the file was like at the last look, where the kernel counts its cached pages.
    seen: Option<Seen>,
    locked_pages: u64,
    ahead: Option<Adaptive>,
    /// For [`Access::Sequential`]: chunks read whole, and the one after.
    follow: bool,
    /// Looking page by page is not for every step, where the kernel does not count or what it
    /// counts cannot all be taken.
    next_look: Instant,
}

/// What would be different if pages came or went: those that are locked stay, unless the file is
/// cut or written past the cache, which changes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    cached: u64,
    size: u64,
    changed: (i64, u64),
}

impl Keeper {
    /// Keeps `file`, which is best mapped with [`Access::Random`] so that keeping reads nothing by
    /// itself. `access` says what is read ahead of those who touch it: nothing for `Random`,
    /// `Exact` and `Normal`, dense chunks and streams for `Adaptive`, the chunk and the next for
    /// `Sequential`.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] for a file of which the kernel does not tell this user
    /// what is cached. If all of it is locked already ([`LockedFile::fill`]), no keeper is needed.
    pub fn new(file: LockedFile, access: Access) -> io::Result<Keeper> {
        let pages = file.pages().pages() as usize;
        if !is_told(file.descriptor()) {
            return Err(not_told());
        }
        Ok(Keeper {
            pagemap: Pagemap::open(),
            seen: None,
            locked_pages: 0,
            ahead: matches!(access, Access::Adaptive | Access::Sequential)
                .then(|| Adaptive::new(pages)),
            follow: access == Access::Sequential,
            next_look: Instant::now(),
            file,
        })
    }

    /// The file.
    pub fn file(&self) -> &LockedFile {
        &self.file
    }

    /// Bytes locked, as of the last step.
    pub fn locked_bytes(&self) -> u64 {
        self.locked_pages * PAGE_SIZE as u64
    }

    /// Locks what has come into the page cache since the last step. Cheap when nothing has (Linux
    /// 6.5; before, and while a page is being read, every page is asked for, once a second).
    /// Returns whether it looked.
    ///
    /// # Errors
    /// Where the file cannot be read any more.
    pub fn step(&mut self) -> io::Result<bool> {
        if self.file.is_empty() {
            return Ok(false);
        }
        let (seen, now) = (self.look(), Instant::now());
        let is_news = seen.is_some() && self.seen != seen;
        // A page that is being read is counted as cached, and cannot be taken yet.
        let has_all = seen.is_some_and(|seen| seen.cached <= self.locked_pages);
        if !is_news && (has_all || now < self.next_look) {
            return Ok(false);
        }
        self.next_look = now + LOOK_INTERVAL;
        self.seen = seen;
        self.take_cached()?;
        Ok(true)
    }

    fn look(&self) -> Option<Seen> {
        let file = self.file.descriptor();
        let stat = cachestat(file, self.file.offset(), self.file.len() as u64).ok()?;
        let of = rustix::fs::fstat(file).ok()?;
        Some(Seen {
            cached: stat.cached,
            size: of.st_size as u64,
            changed: (of.st_mtime, of.st_mtime_nsec),
        })
    }

    fn take_cached(&mut self) -> io::Result<()> {
        let whole = self.file.pages();
        if let Some(ahead) = &mut self.ahead {
            for chunks in ahead.to_look_at(false) {
                ahead.begin_look(chunks);
            }
        }
        self.locked_pages = 0;
        for window in windows(whole) {
            self.take_window(window)?;
        }
        let Some(ahead) = &mut self.ahead else {
            return Ok(());
        };
        if self.follow {
            ahead.follow_every_touch();
        }
        let wanted = ahead.decide();
        ahead.forget_streams();
        for chunk in wanted {
            let first = whole.start.add((chunk * CHUNK_PAGES) as u64);
            let range = PageRange {
                start: first,
                end: first.add(CHUNK_PAGES as u64),
            };
            mlock::hint(range.intersection(whole), Hint::WillNeed)?;
        }
        Ok(())
    }

    fn take_window(&mut self, window: PageRange) -> io::Result<()> {
        let whole = self.file.pages();
        let offset = self.file.offset() + (window.start.0 - whole.start.0) * PAGE_SIZE as u64;
        let counted = cachestat(self.file.descriptor(), offset, window.bytes() as u64);
        if counted.is_ok_and(|stat| stat.cached == 0) {
            return Ok(());
        }
        let mut cached = vec![0u8; window.pages() as usize];
        mincore(window, &mut cached)?;
        let mut have = vec![false; cached.len()];
        self.pagemap.populated(window, |run, _| {
            for page in run.iter() {
                have[(page.0 - window.start.0) as usize] = true;
            }
        })?;
        let first = (window.start.0 - whole.start.0) as usize;
        for_each_run(
            window,
            |i| cached[i] & 1 != 0,
            |run| {
                if let Some(ahead) = &mut self.ahead {
                    let start = first + (run.start.0 - window.start.0) as usize;
                    ahead.seen(start..start + run.pages() as usize);
                }
            },
        );
        let mut result = Ok(());
        for_each_run(
            window,
            |i| cached[i] & 1 != 0 && !have[i],
            |run| {
                if result.is_ok() {
                    result = take(run);
                }
            },
        );
        result?;
        let mut pages = 0;
        self.pagemap
            .populated(window, |run, _| pages += run.pages())?;
        self.locked_pages += pages;
        Ok(())
    }
}

fn take(range: PageRange) -> io::Result<()> {
    match memory::populate(range) {
        // The file has become shorter; what is left of it is kept.
        Ok(()) | Err(Errno::FAULT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
