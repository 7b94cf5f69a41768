//! What a client's userfaultfd says: faults are queued, events are followed in the client's memory.
//!
//! Events of several threads can be read in another order than the one things happened in. A log
//! puts them in order ([`EventLog`]); while it is in doubt, nothing is installed.
//!
//! A fork copies the address space at a moment that may be before or after a change that is heard
//! of beside it. So a child is made when no event is under way any more: it is told of all that was
//! there since, and what was moved is looked for in the child itself.
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Instant;

use pagetide_kernel::uffd::event_log::{EventLog, Heard, Memory as Followed, Settled};
use pagetide_kernel::uffd::{Event, Message, Stop, Uffd};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use crate::counters::{Counters, count};
use crate::install::{Installer, is_registered};
use crate::memory::{Area, Memory};

/// Messages read at once.
pub(crate) const MESSAGES: usize = 64;

/// A fault that is to be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub page: PageNumber,
    pub since: Instant,
    /// It was put off before.
    pub late: bool,
}

/// What was done to a client's memory since no event was under way, as heard of.
#[derive(Debug)]
enum Change {
    Unmapped(Vec<Area>),
    Moved { from: PageRange, to: PageNumber },
}

/// A forked child of a client's.
#[derive(Debug)]
pub(crate) struct Child {
    pub uffd: Uffd,
    pub memory: Memory,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    log: EventLog,
    /// Read and not yet answered.
    pub faults: VecDeque<Fault>,
    changes: Vec<Change>,
    /// Children that are not known yet.
    forked: Vec<Uffd>,
    /// The lowest place that memory was moved to since somebody asked.
    moved_to: Option<PageNumber>,
}

impl Inbox {
    /// Reads what there is, acts on events at once and queues faults; how many messages there were.
    pub fn read(&mut self, installer: &mut Installer) -> Result<usize, Errno> {
        let read = read(installer, &mut self.faults, self.log.events())?;
        let (log, mut followed) = self.parts(installer);
        log.act_on_all(&mut followed);
        self.all_known(installer);
        Ok(read)
    }

    /// Says so once nothing that was read is still to be acted on.
    fn all_known(&mut self, installer: &Installer) {
        if self.log.events().is_empty() {
            installer.memory.end_hearing();
        }
    }

    /// Whether nothing is in doubt.
    pub fn is_clear(&self) -> bool {
        self.log.is_settled() && self.changes.is_empty() && self.forked.is_empty()
    }

    /// Settles what is in doubt, as far as that can be done now; false where it cannot, and nothing
    /// may be installed. `born` is given the children of forks.
    pub fn settle(&mut self, installer: &mut Installer, born: &mut dyn FnMut(Child)) -> bool {
        if self.is_clear() {
            return true;
        }
        let (log, mut followed) = self.parts(installer);
        let settled = log.settle(&mut followed);
        self.all_known(installer);
        match settled {
            Settled::Later | Settled::Kept => return self.log.is_sure() && self.forked.is_empty(),
            Settled::Already if installer.uffd().has_event_pending() => {
                return self.forked.is_empty();
            }
            Settled::Already | Settled::Now => {}
        }
        for uffd in self.forked.drain(..) {
            let memory = memory_of(&uffd, &installer.memory, &self.changes);
            born(Child { uffd, memory });
        }
        self.changes.clear();
        true
    }

    /// The log, and what it asks and does.
    fn parts<'a>(&'a mut self, installer: &'a mut Installer) -> (&'a mut EventLog, Following<'a>) {
        let following = Following {
            installer,
            faults: &mut self.faults,
            changes: &mut self.changes,
            forked: &mut self.forked,
            moved_to: &mut self.moved_to,
        };
        (&mut self.log, following)
    }

    /// The lowest place that memory was moved to since this was asked.
    pub fn take_moved_to(&mut self) -> Option<PageNumber> {
        self.moved_to.take()
    }
}

/// Reads messages: faults into `faults`, events into `events`.
fn read(
    installer: &Installer,
    faults: &mut VecDeque<Fault>,
    events: &mut VecDeque<Event>,
) -> Result<usize, Errno> {
    let mut messages = [Message::default(); MESSAGES];
    installer.memory.begin_hearing();
    let read = installer.uffd().read_at_once(&mut messages)?;
    let since = Instant::now();
    for message in &messages[..read] {
        match message.decode() {
            Event::Fault {
                page,
                write_protect: false,
                ..
            } => {
                count(&installer.counters.faults, 1);
                faults.push_back(Fault {
                    page,
                    since,
                    late: false,
                });
            }
            Event::Fault { page, .. } => end_protection(installer, page),
            event => events.push_back(event),
        }
    }
    Ok(read)
}

/// The client protects memory itself, to learn what is written: that somebody writes now is its
/// affair, and the page is opened.
fn end_protection(installer: &Installer, page: PageNumber) {
    count(&installer.counters.write_faults, 1);
    if let Some(unit) = installer.memory.unit_of(page)
        && installer.uffd().write_protect(unit.range, false).is_err()
    {
        // It tries again, and is heard of again.
        installer.uffd().wake(unit.range);
    }
}

/// What `child` has, whose parent has `parent` after `changes`, some of which may be later than the
/// fork. What was unmapped may be there yet; if it is not, nobody misses it.
fn memory_of(child: &Uffd, parent: &Memory, changes: &[Change]) -> Memory {
    let mut memory = parent.clone();
    for change in changes.iter().rev() {
        match change {
            Change::Unmapped(areas) => areas.iter().for_each(|area| memory.put_back(*area)),
            Change::Moved { from, to } => {
                for area in memory.areas_in(PageRange::of(*to, from.pages())) {
                    // Of several mappings by now perhaps: its first page tells.
                    let first = PageRange::one(area.range.start);
                    if is_registered(child, first) == Err(Stop::Absent) {
                        let old = from.start.add(area.range.start.0 - to.0);
                        memory.move_pages(area.range, old);
                    }
                }
            }
        }
    }
    memory
}

/// A client's memory, as the log sees it.
struct Following<'a> {
    installer: &'a mut Installer,
    faults: &'a mut VecDeque<Fault>,
    changes: &'a mut Vec<Change>,
    forked: &'a mut Vec<Uffd>,
    moved_to: &'a mut Option<PageNumber>,
}

impl Following<'_> {
    fn counters(&self) -> &Counters {
        &self.installer.counters
    }
}

impl Followed for Following<'_> {
    fn first_managed_in(&self, range: PageRange) -> Option<PageRange> {
        self.installer.memory.first_in(range).map(|area| area.range)
    }

    fn is_registered(&self, range: PageRange) -> Result<(), Stop> {
        is_registered(self.installer.uffd(), range)
    }

    /// They are another process's: they are asked about page by page.
    fn mapped_in(&self, _: PageRange) -> Option<Vec<PageRange>> {
        None
    }

    fn has_event_pending(&self) -> bool {
        self.installer.uffd().has_event_pending()
    }

    /// Another process's pages cannot be looked at: what is in doubt is asked about later.
    fn is_in_place(&self, _: PageRange, _: &[PageRange]) -> Option<bool> {
        Some(true)
    }

    fn is_emptying(&self, _: PageRange) -> bool {
        false
    }

    fn emptied_by_program(&mut self, range: PageRange) -> Vec<PageRange> {
        vec![range]
    }

    fn read_on(&mut self, events: &mut VecDeque<Event>) -> Heard {
        // Asked before they are read: if none is under way now, all there are can be read now.
        let pending = self.has_event_pending();
        match (read(self.installer, self.faults, events), pending) {
            (Ok(1..), _) => Heard::Some,
            (Ok(0), true) => {
                std::thread::yield_now();
                Heard::Pending
            }
            _ => Heard::Nothing,
        }
    }

    fn empty(&mut self, range: PageRange) {
        let removed = self.installer.memory.remove(range);
        count(&self.counters().removed_pages, removed);
    }

    fn unmap(&mut self, range: PageRange) {
        let areas = self.installer.memory.unmap(range);
        if !areas.is_empty() {
            self.changes.push(Change::Unmapped(areas));
        }
        self.installer.uffd().wake(range);
    }

    fn move_pages(&mut self, from: PageRange, to: PageNumber) {
        count(&self.counters().moves, 1);
        self.installer.memory.move_pages(from, to);
        self.changes.push(Change::Moved { from, to });
        *self.moved_to = Some(self.moved_to.map_or(to, |lowest| lowest.min(to)));
        // Who waits at the old place tries again.
        self.installer.uffd().wake(from);
    }

    #[allow(unsafe_code)]
    fn forked(&mut self, child: RawFd) {
        count(&self.counters().forks, 1);
        // SAFETY: the log acts once on each event, and all it has were read from this userfaultfd.
        let child = unsafe { self.installer.child(child) };
        self.forked.push(child);
    }
}
