//! Pages into a client's memory: one range, its bytes or its zeros, and what the kernel said.
#![allow(unsafe_code)] // installing pages: what they hold is what the image or the client said

use std::sync::Arc;

use pagetide_kernel::PageRange;
use pagetide_kernel::uffd::{Progress, Stop, Uffd};
use rustix::io::Errno;

use crate::counters::{Counters, count};
use crate::memory::{Area, Memory};
use crate::source::{Buffer, Piece, Source, SourceError};

/// How an installation ended that is not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// All of it is there.
    Done,
    /// An event is under way: first what is to be read, then again.
    Later,
    /// The system has no memory for it now.
    NoMemory,
}

/// What came of a part.
enum Step {
    /// So many pages are dealt with, at least one.
    Pages(u64),
    /// Not now.
    Stopped(Put),
}

/// Why it failed for good.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client's address space is gone.
    Gone,
    /// The bytes cannot be had, or the kernel refuses them.
    Lost(SourceError),
}

/// What installs pages for one client.
pub(crate) struct Installer {
    pub uffd: Uffd,
    pub memory: Memory,
    pub source: Arc<dyn Source>,
    pub counters: Arc<Counters>,
    pub buffer: Buffer,
    /// Installed pages, for who asks why they came.
    pub installed: u64,
}

impl Installer {
    /// Installs all of `area`: its part of the image, or zeros where the client gave it up. Wakes
    /// the threads that wait for it. Pages that are there are left as they are.
    pub fn put(&mut self, area: Area) -> Result<Put, Failure> {
        let mut rest = area;
        while !rest.range.is_empty() {
            let (removed, alike) = self.memory.alike(rest.first, rest.range.pages());
            let most = if rest.unit > 1 { rest.unit } else { alike };
            let step = match removed {
                true => self.put_zeros(part(rest, most))?,
                false if rest.unit > 1 => self.put_read(part(rest, most))?,
                false => self.put_piece(part(rest, most))?,
            };
            match step {
                Step::Pages(pages) => rest = after(rest, pages),
                Step::Stopped(put) => return Ok(put),
            }
        }
        Ok(Put::Done)
    }

    /// As much of `area` as comes in one piece.
    fn put_piece(&mut self, area: Area) -> Result<Step, Failure> {
        let (first, most) = (area.first, area.range.pages());
        let piece = self.source.read(first, most, &mut self.buffer);
        let bytes = match piece.map_err(Failure::Lost)? {
            Piece::Zeros(pages) => return self.put_zeros(part(area, pages)),
            Piece::Bytes(bytes) => bytes,
        };
        let area = part(area, bytes.pages());
        // SAFETY: the piece lives as long as the source and the buffer, which are not touched, and
        // is no memory of the client's; its bytes are the image's, of pages not given up.
        let progress = unsafe { self.uffd.copy(area.range, bytes.address(), false) };
        match progress.stop {
            Some(Stop::Other(Errno::FAULT)) => self.put_read(part(area, area.unit)),
            _ => self.settle(area, progress),
        }
    }

    /// All of `area`, read by this process.
    fn put_read(&mut self, area: Area) -> Result<Step, Failure> {
        let mut bytes = vec![0; area.range.bytes()];
        let read = self
            .source
            .read_into(area.first, &mut bytes, &mut self.buffer);
        read.map_err(Failure::Lost)?;
        // SAFETY: `bytes` is this function's, and holds what the image has for these pages.
        let progress = unsafe { self.uffd.copy(area.range, bytes.as_ptr(), false) };
        self.settle(area, progress)
    }

    fn put_zeros(&mut self, area: Area) -> Result<Step, Failure> {
        let before = self.installed;
        // SAFETY: the image has zeros here, or the client gave up what it had.
        let mut progress = unsafe { self.uffd.zero(area.range) };
        if progress.pages == 0 && progress.stop == Some(Stop::Refused) {
            let zeros = vec![0; area.range.bytes()];
            // SAFETY: as above; `zeros` is this function's.
            progress = unsafe { self.uffd.copy(area.range, zeros.as_ptr(), false) };
        }
        let result = self.settle(area, progress);
        count(&self.counters.zero_pages, self.installed - before);
        result
    }

    /// Notes what was done of `area`, and says how much of it is dealt with.
    fn settle(&mut self, area: Area, progress: Progress) -> Result<Step, Failure> {
        let Progress { pages, stop } = progress;
        self.memory.note_placed(area.first, pages);
        self.installed += pages;
        // Where only a part was done, the next call says why.
        let Some(stop) = stop.filter(|_| pages == 0) else {
            return Ok(Step::Pages(pages));
        };
        let refused = |what: String| {
            let text = format!("the kernel does not install it ({what})");
            Err(Failure::Lost(SourceError(text)))
        };
        let unit = part(area, area.unit);
        match stop {
            Stop::Present => {
                // Somebody waits for it perhaps, having faulted just before it came.
                count(&self.counters.present_pages, area.unit);
                Ok(self.pass_over(unit))
            }
            Stop::EventPending => Ok(Step::Stopped(Put::Later)),
            Stop::Other(Errno::NOMEM | Errno::NOSPC) => Ok(Step::Stopped(Put::NoMemory)),
            Stop::Gone => Err(Failure::Gone),
            // Memory of the userfaultfd's no more: all of it, or a part.
            Stop::Absent if area.range.pages() > area.unit => {
                let half = (area.range.pages() / area.unit / 2).max(1) * area.unit;
                match self.put(part(area, half))? {
                    Put::Done => Ok(Step::Pages(half)),
                    put => Ok(Step::Stopped(put)),
                }
            }
            Stop::Absent => Ok(self.pass_over(unit)),
            Stop::Other(Errno::FAULT) => refused("the image's bytes cannot be read".into()),
            stop => refused(format!("{stop:?}")),
        }
    }

    /// Nothing is to be installed in `unit`; whoever waits for it tries again.
    fn pass_over(&mut self, unit: Area) -> Step {
        self.memory.note_placed(unit.first, unit.unit);
        self.uffd.wake(unit.range);
        Step::Pages(unit.unit)
    }

    /// Takes the client's memory out of the userfaultfd: what is missing reads as zeros from now
    /// on. To be called when no page is absent.
    pub fn release_whole(&self) {
        for area in self.memory.areas() {
            // SAFETY: every page that was not given up was installed.
            let _ = unsafe { self.uffd.unregister(area.range) };
        }
    }
}

/// The first `pages` pages of `area`, or all of it.
fn part(area: Area, pages: u64) -> Area {
    let range = PageRange::of(area.range.start, pages.min(area.range.pages()));
    Area { range, ..area }
}

/// What comes after the first `pages` pages of `area`.
fn after(area: Area, pages: u64) -> Area {
    Area {
        range: area.range.after(pages),
        first: area.first + pages,
        ..area
    }
}
