//! Which pages of a file are in memory, and which of them are locked.
use std::io;
use std::path::Path;

use pagetide_kernel::memory;
use pagetide_kernel::residency::{FileMapping, Frames, UNEVICTABLE, cachestat, is_told, mincore};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};

use super::keeper::for_each_run;

/// Pages looked at in one go.
const WINDOW_PAGES: u64 = 1 << 14;

/// What became of a page of a file.
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

    /// Looks at `file`, reading nothing of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] for a file of which the kernel does not tell this user;
    /// what opening, mapping and looking say.
    pub fn of(path: impl AsRef<Path>) -> io::Result<Residency> {
        let file = std::fs::File::open(path)?;
        let mapping = FileMapping::new(&file)?;
        if !is_told(mapping.descriptor()) {
            return Err(not_told());
        }
        let frames = Frames::open().ok();
        let whole = mapping.range();
        let mut tells = frames.is_some();
        let mut runs: Vec<(u64, u64, PageState)> = Vec::new();
        let mut start = whole.start;
        while start < whole.end {
            let window = PageRange {
                start,
                end: start.add(WINDOW_PAGES).min(whole.end),
            };
            let first = window.start.0 - whole.start.0;
            let offset = first * PAGE_SIZE as u64;
            start = window.end;
            // Where nothing is, as in the holes of a sparse file, the cache says so at once.
            let counted = cachestat(mapping.descriptor(), offset, window.bytes() as u64);
            if counted.is_ok_and(|stat| stat.cached == 0) {
                append(&mut runs, first, window.pages(), PageState::Absent);
                continue;
            }
            let mut cached = vec![0u8; window.pages() as usize];
            mincore(window, &mut cached)?;
            let mut states: Vec<PageState> = cached
                .iter()
                .map(|byte| match byte & 1 {
                    0 => PageState::Absent,
                    _ => PageState::Cached,
                })
                .collect();
            if let Some(frames) = &frames {
                // Frame numbers are told of mapped pages; these are in memory, so mapping them
                // reads nothing.
                let at = |index: usize| PageNumber(window.start.0 + index as u64);
                for_each_run(
                    cached.len(),
                    |i| cached[i] & 1 != 0,
                    |first, end| {
                        let run = PageRange {
                            start: at(first),
                            end: at(end),
                        };
                        let _ = memory::populate(run);
                    },
                );
                let looked = frames.for_each(window, |page, flags| {
                    if flags & UNEVICTABLE != 0 {
                        let index = (page.0 - window.start.0) as usize;
                        if states[index] == PageState::Cached {
                            states[index] = PageState::Locked;
                        }
                    }
                });
                tells &= looked.is_ok();
            }
            for (index, state) in states.into_iter().enumerate() {
                append(&mut runs, first + index as u64, 1, state);
            }
        }
        Ok(Residency {
            size: mapping.size(),
            runs,
            tells_locked: tells,
        })
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

/// Adds the `pages` from `first` on, which follow the last run.
fn append(runs: &mut Vec<(u64, u64, PageState)>, first: u64, pages: u64, state: PageState) {
    match runs.last_mut() {
        Some((_, before, last)) if *last == state => *before += pages,
        _ => runs.push((first, pages, state)),
    }
}
