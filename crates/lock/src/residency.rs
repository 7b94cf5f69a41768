//! Which pages of a file are in memory, and which of them are locked.
use std::io;
use std::path::Path;

use pagetide_kernel::memory;
use pagetide_kernel::residency::{FileMapping, Frames, UNEVICTABLE, cachestat, is_told, mincore};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};

use super::error::FileError;

/// What became of a page of a file.
///
/// ```
/// use pagetide::lock::{PageState, Residency};
///
/// let runs = vec![(0, 8, PageState::Cached), (8, 2, PageState::Absent)];
/// let residency = Residency { size: 40_000, runs, tells_locked: false };
/// assert_eq!(residency.count(PageState::Cached), 8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Not in the page cache.
    Absent,
    /// In the page cache.
    Cached,
    /// In the page cache and locked by some process (as far as the caller may see).
    Locked,
}

/// Pages of a file in memory.
///
/// ```
/// use pagetide::lock::{PageState, Residency};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("residency-{}", std::process::id()));
/// # std::fs::write(&path, "cached, as it was just written")?;
/// let residency = Residency::of(&path)?;
/// let cached = residency.count(PageState::Cached) + residency.count(PageState::Locked);
/// println!("{cached} pages of it are in the page cache");
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// Of the file, in bytes.
    pub size: u64,
    /// Runs of pages in the same state, in order and without gaps: first page, pages, state.
    pub runs: Vec<(u64, u64, PageState)>,
    /// Whether locked pages could be told from others: that takes root (`/proc/kpageflags`).
    pub tells_locked: bool,
}

impl Residency {
    /// Pages of the file in this state.
    pub fn count(&self, state: PageState) -> u64 {
        let runs = self.runs.iter().filter(|(_, _, s)| *s == state);
        runs.map(|(_, pages, _)| pages).sum()
    }

    /// Looks at the file `path`, reading nothing of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] for a file of which the kernel does not tell this user;
    /// what opening, mapping and looking say.
    pub fn of(path: impl AsRef<Path>) -> Result<Residency, FileError> {
        let path = path.as_ref();
        let look = || Residency::of_mapping(&FileMapping::new(&std::fs::File::open(path)?)?);
        look().map_err(FileError::of(path))
    }

    fn of_mapping(mapping: &FileMapping) -> io::Result<Residency> {
        if !is_told(mapping.descriptor()) {
            return Err(not_told());
        }
        let frames = Frames::open().ok();
        let whole = mapping.range();
        let mut residency = Residency {
            size: mapping.size(),
            runs: Vec::new(),
            tells_locked: frames.is_some(),
        };
        for window in windows(whole) {
            let first = window.start.0 - whole.start.0;
            let offset = first * PAGE_SIZE as u64;
            // Where nothing is, as in the holes of a sparse file, the cache says so at once.
            let counted = cachestat(mapping.descriptor(), offset, window.bytes() as u64);
            if counted.is_ok_and(|stat| stat.cached == 0) {
                residency.append(first, window.pages(), PageState::Absent);
                continue;
            }
            let states = residency.states(window, frames.as_ref())?;
            for (index, state) in states.into_iter().enumerate() {
                residency.append(first + index as u64, 1, state);
            }
        }
        Ok(residency)
    }

    /// The state of each page of `window`.
    fn states(&mut self, window: PageRange, frames: Option<&Frames>) -> io::Result<Vec<PageState>> {
        let mut cached = vec![0u8; window.pages() as usize];
        mincore(window, &mut cached)?;
        let state = |byte: &u8| match byte & 1 {
            0 => PageState::Absent,
            _ => PageState::Cached,
        };
        let mut states: Vec<PageState> = cached.iter().map(state).collect();
        let Some(frames) = frames else {
            return Ok(states);
        };
        // Frame numbers are told of mapped pages; these are in memory, so mapping them reads
        // nothing.
        for_each_run(
            window,
            |i| cached[i] & 1 != 0,
            |run| _ = memory::populate(run),
        );
        let looked = frames.for_each(window, |page, flags| {
            let state = &mut states[(page.0 - window.start.0) as usize];
            if flags & UNEVICTABLE != 0 && *state == PageState::Cached {
                *state = PageState::Locked;
            }
        });
        self.tells_locked &= looked.is_ok();
        Ok(states)
    }

    /// Adds the `pages` from `first` on, which follow the last run.
    fn append(&mut self, first: u64, pages: u64, state: PageState) {
        match self.runs.last_mut() {
            Some((_, before, last)) if *last == state => *before += pages,
            _ => self.runs.push((first, pages, state)),
        }
    }
}

/// Pages are looked at in parts of so many.
const WINDOW_PAGES: u64 = 1 << 14;

/// The parts of `whole` that are looked at in one go.
pub(super) fn windows(whole: PageRange) -> impl Iterator<Item = PageRange> {
    let starts = (whole.start.0..whole.end.0).step_by(WINDOW_PAGES as usize);
    starts.map(move |start| PageRange {
        start: PageNumber(start),
        end: PageNumber(start).add(WINDOW_PAGES).min(whole.end),
    })
}

/// Calls `visit` with each run of pages of `window` for whose index `holds`.
pub(super) fn for_each_run(
    window: PageRange,
    holds: impl Fn(usize) -> bool,
    mut visit: impl FnMut(PageRange),
) {
    let mut start = None;
    for (index, page) in window.iter().enumerate() {
        if holds(index) {
            start.get_or_insert(page);
        } else if let Some(start) = start.take() {
            visit(PageRange { start, end: page });
        }
    }
    if let Some(start) = start {
        let end = window.end;
        visit(PageRange { start, end });
    }
}

/// Why nothing can be said of a file.
pub(super) fn not_told() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the kernel tells its owner, those who may write it and root alone which of its pages are \
         in memory",
    )
}
