//! Keeping the pages of a file in memory from the moment anyone touches them, not only this process.
use std::io;
use std::time::{Duration, Instant};

use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::residency::{CacheView, cachestat};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use super::adaptive::{Adaptive, CHUNK_PAGES};
use super::file::{Access, LockedFile};

/// Pages looked at in one go.
const WINDOW_PAGES: u64 = 1 << 14;

/// A file whose pages are locked soon after they enter the page cache, whoever brought them in.
///
/// The kernel locks a page on fault for the process that faults. So that another process's touch counts, [`Keeper::step`] looks which pages of the file are in
/// the page cache and takes those into this process's locked mapping. Between touch and step the page could be evicted.
#[derive(Debug)]
pub struct Keeper {
    file: LockedFile,
    pagemap: Pagemap,
    view: CacheView,
    /// Cached pages at the last step, as far as the kernel counts them.
    cached_before: Option<u64>,
    locked_pages: u64,
    ahead: Option<Adaptive>,
    /// For [`Access::Sequential`]: chunks read whole, and the one after.
    follow: bool,
    /// Looking page by page without a count is not for every step.
    next_look: Instant,
}

impl Keeper {
    /// Keeps `file`, which is best mapped with [`Access::Random`] so that keeping reads nothing by itself. `access` says what is read ahead of those who
    /// touch it: nothing for `Random` and `Normal`, dense chunks and streams for `Adaptive`, the chunk and the next for `Sequential`.
    pub fn new(file: LockedFile, access: Access) -> Keeper {
        let pages = file.pages().pages() as usize;
        let view = CacheView::of(file.descriptor());
        Keeper {
            pagemap: Pagemap::open(),
            view,
            cached_before: None,
            locked_pages: 0,
            ahead: matches!(access, Access::Adaptive | Access::Sequential)
                .then(|| Adaptive::new(pages)),
            follow: access == Access::Sequential,
            next_look: Instant::now(),
            file,
        }
    }

    /// The file.
    pub fn file(&self) -> &LockedFile {
        &self.file
    }

    /// Bytes locked, as of the last step.
    pub fn locked_bytes(&self) -> u64 {
        self.locked_pages * PAGE_SIZE as u64
    }

    /// Locks what has come into the page cache since the last step. Cheap when nothing has (Linux 6.5; before, and for files that the caller neither owns nor may
    /// write, every page is asked for, at most once a second, which makes the kernel read ahead of the pages asked for). Returns whether it looked.
    ///
    /// # Errors
    /// Where the file cannot be read any more.
    pub fn step(&mut self) -> io::Result<bool> {
        if self.file.is_empty() {
            return Ok(false);
        }
        let counted = match self.view {
            CacheView::Whole => cachestat(
                self.file.descriptor(),
                self.file.offset(),
                self.file.len() as u64,
            )
            .ok(),
            CacheView::ByReading => None,
        };
        match counted {
            Some(stat) if self.cached_before == Some(stat.cached) => return Ok(false),
            Some(stat) => self.cached_before = Some(stat.cached),
            None => {
                let now = Instant::now();
                if now < self.next_look {
                    return Ok(false);
                }
                self.next_look = now + Duration::from_secs(1);
            }
        }
        self.take_cached()?;
        Ok(true)
    }

    fn take_cached(&mut self) -> io::Result<()> {
        let whole = self.file.pages();
        if let Some(ahead) = &mut self.ahead {
            for chunks in ahead.to_look_at(false) {
                ahead.begin_look(chunks);
            }
        }
        self.locked_pages = 0;
        let mut start = whole.start;
        while start < whole.end {
            let window = PageRange {
                start,
                end: start.add(WINDOW_PAGES).min(whole.end),
            };
            self.take_window(window)?;
            start = window.end;
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
        let mut cached = vec![0u8; window.pages() as usize];
        self.view
            .look(self.file.descriptor(), offset, window, &mut cached)?;
        let mut have = vec![false; cached.len()];
        self.pagemap.populated(window, |run, _| {
            for page in run.iter() {
                have[(page.0 - window.start.0) as usize] = true;
            }
        })?;
        let at = |index: usize| window.start.add(index as u64);
        for_each_run(
            cached.len(),
            |i| cached[i] & 1 != 0,
            |start, end| {
                if let Some(ahead) = &mut self.ahead {
                    let first = (window.start.0 - whole.start.0) as usize;
                    ahead.seen(first + start..first + end);
                }
            },
        );
        let mut result = Ok(());
        for_each_run(
            cached.len(),
            |i| cached[i] & 1 != 0 && !have[i],
            |start, end| {
                let range = PageRange {
                    start: at(start),
                    end: at(end),
                };
                if result.is_ok() {
                    result = take(range);
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
    match mlock::hint(range, Hint::PopulateRead) {
        // The file has become shorter; what is left of it is kept.
        Ok(()) | Err(Errno::FAULT) => Ok(()),
        Err(Errno::INVAL) => Err(io::Error::other(
            "MADV_POPULATE_READ is not known to this kernel; Linux 5.14 or later is needed to keep pages that others touch",
        )),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls `visit` with the bounds of each run of indices below `len` for which `holds`.
pub(super) fn for_each_run(
    len: usize,
    holds: impl Fn(usize) -> bool,
    mut visit: impl FnMut(usize, usize),
) {
    let mut at = 0;
    while at < len {
        if !holds(at) {
            at += 1;
            continue;
        }
        let start = at;
        while at < len && holds(at) {
            at += 1;
        }
        visit(start, at);
    }
}
