//! Pages into a client's memory: one range, its bytes or its zeros, and what the kernel said.
#![allow(unsafe_code)] // installing pages: what they hold is what the image or the client said

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use pagetide_kernel::uffd::{Progress, Stop, Uffd};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::counters::{Counters, Origin, count};
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

/// What reads pages and installs them, for one thread; it knows nothing of what a client has.
pub(crate) struct Hand {
    pub uffd: Arc<Uffd>,
    pub source: Arc<dyn Source>,
    pub buffer: Buffer,
}

/// What a [`Hand`] has done.
pub(crate) struct Placed {
    /// What came in one piece: the first pages of what was asked for.
    pub area: Area,
    /// How much of it was installed, and why no more was.
    pub progress: Progress,
    /// Where its bytes were.
    pub origin: Origin,
}

impl Hand {
    /// The same for another thread.
    pub fn another(&self) -> Hand {
        Hand {
            uffd: Arc::clone(&self.uffd),
            source: Arc::clone(&self.source),
            buffer: Buffer::default(),
        }
    }

    /// Installs as much of `area`, which was not given up, as comes in one piece.
    ///
    /// # Errors
    /// The bytes cannot be had.
    pub fn place(&mut self, area: Area) -> Result<Placed, SourceError> {
        let (first, most) = (area.first, area.range.pages());
        let bytes = match self.source.read(first, most, &mut self.buffer)? {
            Piece::Zeros(pages) => return Ok(self.zeros(part(area, pages))),
            Piece::Bytes(bytes) => bytes,
        };
        let area = part(area, bytes.pages());
        // SAFETY: the piece lives as long as the source and the buffer, which are not touched, and
        // is no memory of the client's; its bytes are the image's, of pages not given up.
        let progress = unsafe { self.uffd.copy(area.range, bytes.address(), false) };
        let origin = self.source.origin(first);
        Ok(Placed {
            area,
            progress,
            origin,
        })
    }

    /// Zeros in all of `area`: the image has them there, or the client gave it up.
    fn zeros(&self, area: Area) -> Placed {
        // SAFETY: zeros are what is to be there, by the caller's word.
        let mut progress = unsafe { self.uffd.zero(area.range) };
        if progress.pages == 0 && progress.stop == Some(Stop::Refused) {
            let zeros = vec![0; area.range.bytes()];
            // SAFETY: as above; `zeros` is this function's.
            progress = unsafe { self.uffd.copy(area.range, zeros.as_ptr(), false) };
        }
        Placed {
            area,
            progress,
            origin: Origin::Zeros,
        }
    }
}

/// What installs pages for one client.
pub(crate) struct Installer {
    pub hand: Hand,
    pub memory: Memory,
    pub counters: Arc<Counters>,
    /// Installed pages, for who asks why they came.
    pub installed: u64,
}

impl Installer {
    /// Of the client's address space.
    pub fn uffd(&self) -> &Uffd {
        &self.hand.uffd
    }

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
        let placed = self.hand.place(area).map_err(Failure::Lost)?;
        match placed.progress.stop {
            Some(Stop::Other(Errno::FAULT)) => self.put_read(part(placed.area, area.unit)),
            _ => self.settle(placed),
        }
    }

    /// All of `area`, read by this process.
    fn put_read(&mut self, area: Area) -> Result<Step, Failure> {
        let mut bytes = vec![0; area.range.bytes()];
        let Hand { source, buffer, .. } = &mut self.hand;
        let read = source.read_into(area.first, &mut bytes, buffer);
        read.map_err(Failure::Lost)?;
        // SAFETY: `bytes` is this function's, and holds what the image has for these pages.
        let progress = unsafe { self.uffd().copy(area.range, bytes.as_ptr(), false) };
        let origin = self.hand.source.origin(area.first);
        self.settle(Placed {
            area,
            progress,
            origin,
        })
    }

    fn put_zeros(&mut self, area: Area) -> Result<Step, Failure> {
        let placed = self.hand.zeros(area);
        self.settle(placed)
    }

    /// Pages of `area` from its start on were installed, so many with bytes from `origin`.
    pub fn note(&mut self, area: Area, pages: u64, origin: Origin) {
        self.memory.note_placed(area.first, pages);
        self.installed += pages;
        count(self.counters.from(origin), pages);
    }

    /// Notes what was done, and says how much of it is dealt with.
    fn settle(&mut self, placed: Placed) -> Result<Step, Failure> {
        let area = placed.area;
        let Progress { pages, stop } = placed.progress;
        self.note(area, pages, placed.origin);
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
        self.uffd().wake(unit.range);
        Step::Pages(unit.unit)
    }

    /// Zeros in a page that is no part of the image: memory that came to the client's since.
    pub fn put_beyond(&mut self, page: PageNumber) -> Result<Put, Failure> {
        let range = PageRange::one(page);
        // SAFETY: nothing was in the page when the image was made, and it has not been written
        // since, or it would be there.
        let progress = unsafe { self.uffd().zero(range) };
        let put = match progress.stop {
            None => {
                count(&self.counters.beyond_pages, 1);
                Put::Done
            }
            // It is there, or unmapped by now: whoever waits tries again.
            Some(Stop::Present | Stop::Absent) => {
                self.uffd().wake(range);
                Put::Done
            }
            Some(Stop::EventPending) => Put::Later,
            Some(Stop::Other(Errno::NOMEM)) => Put::NoMemory,
            Some(Stop::Gone) => return Err(Failure::Gone),
            Some(stop) => {
                let text = format!("the kernel does not install zeros ({stop:?})");
                return Err(Failure::Lost(SourceError(text)));
            }
        };
        Ok(put)
    }

    /// Has every access to the missing pages of `area` raise SIGBUS: they are lost. Threads that
    /// wait for one are woken.
    ///
    /// # Errors
    /// [`Failure::Gone`]; [`Failure::Lost`] where the kernel cannot (before Linux 6.6).
    pub fn poison(&mut self, area: Area) -> Result<Put, Failure> {
        let mut rest = area;
        while !rest.range.is_empty() {
            let progress = self.uffd().poison(rest.range);
            let done = match progress.stop {
                _ if progress.pages > 0 => progress.pages,
                None => rest.range.pages(),
                Some(Stop::Absent) if rest.range.pages() > 1 => {
                    match self.poison(part(rest, rest.range.pages() / 2))? {
                        Put::Done => rest.range.pages() / 2,
                        put => return Ok(put),
                    }
                }
                Some(Stop::Present | Stop::Absent) => 1,
                Some(Stop::EventPending) => return Ok(Put::Later),
                Some(Stop::Other(Errno::NOMEM)) => return Ok(Put::NoMemory),
                Some(Stop::Gone) => return Err(Failure::Gone),
                Some(stop) => {
                    let text = format!("the kernel does not mark it as lost ({stop:?})");
                    return Err(Failure::Lost(SourceError(text)));
                }
            };
            self.memory.note_placed(rest.first, done);
            self.uffd().wake(part(rest, done).range);
            rest = after(rest, done);
        }
        Ok(Put::Done)
    }

    /// Whether the client's address space is gone.
    pub fn is_gone(&self) -> bool {
        let somewhere = self.memory.areas().first().map(|area| area.range.start);
        let page = PageRange::one(somewhere.unwrap_or(PageNumber(0x400)));
        is_registered(self.uffd(), page) == Err(Stop::Gone)
    }

    /// The userfaultfd of a forked child of the client's.
    ///
    /// # Safety
    /// `number` was read from this client's userfaultfd, and this is called once with it.
    pub unsafe fn child(&self, number: RawFd) -> Uffd {
        // SAFETY: by the caller's word.
        unsafe { self.uffd().of_child(number) }
    }

    /// Takes the client's memory out of the userfaultfd: what is missing reads as zeros from now
    /// on. To be called when no page is absent.
    pub fn release_whole(&self) {
        for area in self.memory.areas() {
            // SAFETY: every page that was not given up was installed.
            let _ = unsafe { self.uffd().unregister(area.range) };
        }
    }
}

/// Whether `range` is one registered mapping of the process that `uffd` is of, at a moment when no
/// event is unread: see [`Uffd::is_registered`].
pub(crate) fn is_registered(uffd: &Uffd, range: PageRange) -> Result<(), Stop> {
    static UNREADABLE: OnceLock<Option<PageRange>> = OnceLock::new();
    let page = UNREADABLE.get_or_init(|| {
        // SAFETY: a new mapping at an address of the kernel's choice; it stays.
        let page =
            unsafe { mmap_anonymous(null_mut(), PAGE_SIZE, ProtFlags::empty(), MapFlags::PRIVATE) };
        let page = page.ok()?;
        Some(PageRange::covering(page as usize, PAGE_SIZE))
    });
    uffd.is_registered(range, page.ok_or(Stop::Other(Errno::NOMEM))?)
}

/// The first `pages` pages of `area`, or all of it.
fn part(area: Area, pages: u64) -> Area {
    let range = PageRange::of(area.range.start, pages.min(area.range.pages()));
    Area { range, ..area }
}

/// What comes after the first `pages` pages of `area`.
pub(crate) fn after(area: Area, pages: u64) -> Area {
    Area {
        range: area.range.after(pages),
        first: area.first + pages,
        ..area
    }
}
