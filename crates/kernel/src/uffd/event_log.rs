//! What the kernel told of the program's mappings, in the order it told it, and the order it must
//! be acted on.
//!
//! The kernel changes the address space first and tells of it when it has let go of it. Where one
//! thread unmaps or moves memory away, and another moves some to the same place, the second may be
//! heard of first. So the log looks for the event of the first and acts on it before its turn, and
//! holds an unmapping in doubt that may be of what was at the place before, until no event is under
//! way and the kernel can be asked what is there (docs/decisions/0013).
//!
//! This is bookkeeping alone: what the log asks and does is behind [`Memory`].
use std::collections::VecDeque;
use std::os::fd::RawFd;

use super::{Event, Stop};
use crate::page::{PageNumber, PageRange, each_gap};

/// What the log asks and does. In the pager, everything is called with the gate held.
pub trait Memory {
    /// The first part of `range` that is known to be managed.
    fn first_managed_in(&self, range: PageRange) -> Option<PageRange>;
    /// Whether `range` is one registered mapping now, when no event is under way.
    fn is_registered(&self, range: PageRange) -> Result<(), Stop>;
    /// The mappings in `range`, as far as they are in it; none if they cannot be had.
    fn mapped_in(&self, range: PageRange) -> Option<Vec<PageRange>>;
    /// Whether an event is unread, or was until just now.
    fn has_event_pending(&self) -> bool;
    /// Whether the pages of `range` that should be in memory are, but for those in `leaving`;
    /// `None` if none should.
    fn is_in_place(&self, range: PageRange, leaving: &[PageRange]) -> Option<bool>;
    /// Whether the evictor is emptying a page in place that is, or was, in `range`.
    fn is_emptying(&self, range: PageRange) -> bool;
    /// Of a remove event over `range`, what the program emptied, and not the evictor.
    fn emptied_by_program(&mut self, range: PageRange) -> Vec<PageRange>;
    /// Opens the gate for a moment and reads what events there are, which are acted on later; takes
    /// the evictor's own ones out of `events`. What was heard.
    fn read_on(&mut self, events: &mut VecDeque<Event>) -> Heard;
    /// The contents of `range` are given up.
    fn empty(&mut self, range: PageRange);
    /// `range` is no longer managed, and its contents are given up.
    fn unmap(&mut self, range: PageRange);
    /// What is known of the pages of `from` is true of as many at `to` now.
    fn move_pages(&mut self, from: PageRange, to: PageNumber);
    /// The process forked, and `child` serves the child's memory.
    fn forked(&mut self, child: RawFd) {
        let _ = child;
    }
}

/// What reading on brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Messages.
    Some,
    /// None, but an event is under way.
    Pending,
    /// None, and none is under way.
    Nothing,
}

/// How far it is known what memory there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Nothing was to be settled.
    Already,
    /// An event is under way: later.
    Later,
    /// The same, and that has kept the log from settling.
    Kept,
    /// Just now.
    Now,
}

/// Memory that was moved.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    /// How far it was moved, in pages.
    by: u64,
    /// Where it began when it arrived, with what was moved as far and is before it.
    began: PageNumber,
    /// Where there still is something of it, as far as is known.
    place: PageRange,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Read and not yet acted on.
    events: VecDeque<Event>,
    /// Memory that has been moved since no event was under way, where it is.
    arrived: Vec<Arrival>,
    /// What was moved last, whether or not an event has been under way ever since.
    last: Option<Arrival>,
    /// Parts of unmappings that came before something moved to another part of the same place,
    /// among the events.
    older: Vec<PageRange>,
    /// Of that, what has been heard to be unmapped: it, or what was there before.
    doubtful: Vec<PageRange>,
    /// Memory that came under the pager while an event was under way, where it is: what was in it
    /// may have left before it was looked at.
    unlooked: Vec<PageRange>,
}

impl EventLog {
    /// Where events read are put.
    pub fn events(&mut self) -> &mut VecDeque<Event> {
        &mut self.events
    }

    /// Whether nothing has been moved since no event was under way, and what there is is known.
    pub fn is_settled(&self) -> bool {
        self.arrived.is_empty() && self.is_sure()
    }

    /// Whether it is known what memory there is, and which of its pages are present.
    pub fn is_sure(&self) -> bool {
        self.doubtful.is_empty() && self.unlooked.is_empty()
    }

    /// Whether some of the memory in `range` may be gone, and what was there before it with it.
    pub fn is_doubtful(&self, range: PageRange) -> bool {
        overlaps(&self.doubtful, range)
    }

    /// Whether anything is in doubt.
    pub fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// `range` came under the pager: to be looked at.
    pub fn note_unlooked(&mut self, range: PageRange) {
        self.unlooked.push(range);
    }

    /// Memory to be looked at.
    pub fn unlooked(&self) -> Option<PageRange> {
        self.unlooked.last().copied()
    }

    /// What of `range` had not been looked at: it has been, or is not there any more.
    pub fn take_unlooked(&mut self, range: PageRange) -> Vec<PageRange> {
        take_out(&mut self.unlooked, range)
    }

    /// Acts on the events read so far, in their order.
    pub fn act_on_all(&mut self, memory: &mut impl Memory) {
        while let Some(event) = self.events.pop_front() {
            self.act(event, memory);
        }
    }

    fn act(&mut self, event: Event, memory: &mut impl Memory) {
        match event {
            Event::Remove(range) => {
                let parts = memory.emptied_by_program(range);
                parts.into_iter().for_each(|part| memory.empty(part));
            }
            Event::Unmap(range) => self.hear_of_unmapping(range, memory),
            Event::Remap { from, to } => {
                let target = PageRange::of(to, from.pages());
                self.wait_until_vacated(target, memory);
                // The evictor may be waiting for one of its own remove events to be read.
                while memory.is_emptying(from) || memory.is_emptying(target) {
                    memory.read_on(&mut self.events);
                }
                memory.move_pages(from, to);
                for part in self.take_unlooked(from) {
                    let at = to.add(part.start.0 - from.start.0);
                    self.unlooked.push(PageRange::of(at, part.pages()));
                }
                self.left(from);
                self.note_arrival(from, to, memory);
            }
            Event::Fork(child) => memory.forked(child),
            Event::Unknown(_) | Event::Fault { .. } => {}
        }
    }

    fn unmap(&mut self, range: PageRange, memory: &mut impl Memory) {
        memory.unmap(range);
        self.left(range);
        self.take_unlooked(range);
    }

    /// An unmapping was heard of. Where memory has been moved to since events were last settled, it
    /// may be of what was there before. Of that, what is known was waited for, with all that was
    /// unmapped with it; what is not known is the grown end of something.
    fn hear_of_unmapping(&mut self, range: PageRange, memory: &mut impl Memory) {
        let older = self.older.iter().position(|part| *part == range);
        let is_older = older.map(|at| self.older.swap_remove(at)).is_some();
        let begins_known = memory
            .first_managed_in(PageRange::one(range.start))
            .is_some();
        let is_in_doubt = |arrival: &&Arrival| {
            let common = arrival.place.intersection(range);
            !common.is_empty()
                && match memory.is_in_place(common, &self.leaving(common)) {
                    Some(in_place) => in_place,
                    // Not from its own beginning, but from that of something that was there when
                    // it came.
                    None => is_older || range.start < arrival.began && begins_known,
                }
        };
        let in_doubt = self.arrived.iter().filter(is_in_doubt);
        let in_doubt: Vec<PageRange> = in_doubt.map(|arrival| arrival.place).collect();
        let mut rest = vec![range];
        for place in in_doubt {
            self.doubtful.append(&mut take_out(&mut rest, place));
        }
        rest.into_iter().for_each(|part| self.unmap(part, memory));
    }

    /// The parts of `range` that the events not yet acted on take away.
    fn leaving(&self, range: PageRange) -> Vec<PageRange> {
        let leaving = |event: &Event| match event {
            Event::Remove(part) | Event::Unmap(part) | Event::Remap { from: part, .. } => {
                Some(part.intersection(range)).filter(|part| !part.is_empty())
            }
            _ => None,
        };
        self.events.iter().filter_map(leaving).collect()
    }

    /// Memory arrived. What is several mappings to the kernel is moved piece by piece, and of some
    /// pieces nothing is heard. Between two pieces no event need be under way.
    fn note_arrival(&mut self, from: PageRange, to: PageNumber, memory: &impl Memory) {
        let by = to.0.wrapping_sub(from.start.0);
        let is_unknown = |start, end| {
            start <= end && memory.first_managed_in(PageRange { start, end }).is_none()
        };
        let is_one_move = |piece: &&Arrival| piece.by == by && is_unknown(piece.place.end, to);
        let adjoins = |piece: &&Arrival| piece.by == by && piece.place.end == to;
        let piece = self.last.iter().find(is_one_move);
        let piece = piece.or_else(|| self.arrived.iter().find(adjoins));
        let began = piece.map_or(to, |piece| piece.began);
        let place = PageRange::of(to, from.pages());
        let arrival = Arrival { by, began, place };
        self.last = Some(arrival);
        self.arrived.push(arrival);
    }

    /// What arrived in `range` is no longer there.
    fn left(&mut self, range: PageRange) {
        for arrival in std::mem::take(&mut self.arrived) {
            let gone = arrival.place.intersection(range);
            each_gap(arrival.place, std::iter::once(gone), |place| {
                self.arrived.push(Arrival { place, ..arrival })
            });
        }
    }

    /// Waits until what was at `target` before memory was moved there has left it, as far as is
    /// known here: in the kernel it has. Its words would else be emptied with those of what
    /// arrived. So the event of its leaving is looked for, and comes before its turn.
    fn wait_until_vacated(&mut self, target: PageRange, memory: &mut impl Memory) {
        while let Some(old) = self.first_undoubted_in(target, memory) {
            let takes_old = |event: &Event| match event {
                Event::Unmap(range) | Event::Remap { from: range, .. } => meets(*range, old),
                _ => false,
            };
            if let Some(at) = self.events.iter().position(takes_old) {
                self.act_on_part(at, target, memory);
            } else if memory.read_on(&mut self.events) == Heard::Nothing {
                // Nobody says where it went.
                self.unmap(old, memory);
            }
        }
        // Of what is known there still and was heard to be unmapped, that was true.
        for part in take_out(&mut self.doubtful, target) {
            self.unmap(part, memory);
        }
    }

    /// The first part of `range` that is known to be managed and was not heard to be unmapped.
    fn first_undoubted_in(&self, range: PageRange, memory: &impl Memory) -> Option<PageRange> {
        let mut first = None;
        let doubtful = self.doubtful.iter().map(|part| part.intersection(range));
        let mut doubtful: Vec<PageRange> = doubtful.filter(|part| !part.is_empty()).collect();
        doubtful.sort_unstable_by_key(|part| part.start);
        each_gap(range, doubtful.into_iter(), |gap| {
            first = first.or_else(|| memory.first_managed_in(gap));
        });
        first
    }

    /// Acts before its turn on event `at`, which says that memory leaves; on an unmapping as far as
    /// it concerns `part`, so that what it says of other places keeps its turn.
    fn act_on_part(&mut self, at: usize, part: PageRange, memory: &mut impl Memory) {
        match self.events.remove(at) {
            Some(Event::Unmap(range)) => {
                let part = range.intersection(part);
                self.older.retain(|older| *older != range);
                each_gap(range, std::iter::once(part), |rest| {
                    self.events.insert(at, Event::Unmap(rest));
                    self.older.push(rest);
                });
                self.unmap(part, memory);
            }
            Some(event) => self.act(event, memory),
            None => {}
        }
    }

    /// Decides about unmappings in doubt, once no event is under way: is the memory there, what was
    /// unmapped is what was there before. Until then no eviction begins, and the kernel brings no
    /// page in.
    pub fn settle(&mut self, memory: &mut impl Memory) -> Settled {
        if self.is_settled() {
            return Settled::Already;
        }
        while let Some(range) = self.doubtful.last().copied() {
            match memory.is_registered(range) {
                Ok(()) => {}
                Err(Stop::EventPending) => return Settled::Kept,
                // The mappings in it are decided about one by one.
                Err(_) => {
                    let mapped = memory.mapped_in(range).unwrap_or_else(|| halves(range));
                    // What has moved away since it was asked about is to be heard of with its
                    // words.
                    if memory.has_event_pending() {
                        return Settled::Later;
                    }
                    if mapped[..] != [range] {
                        self.doubtful.pop();
                        each_gap(range, mapped.iter().copied(), |gap| self.unmap(gap, memory));
                        self.doubtful.extend(mapped);
                        continue;
                    }
                    self.unmap(range, memory);
                }
            }
            self.doubtful.pop();
        }
        if memory.has_event_pending() {
            return match self.unlooked.is_empty() {
                true => Settled::Later,
                false => Settled::Kept,
            };
        }
        self.arrived.clear();
        Settled::Now
    }
}

fn meets(a: PageRange, b: PageRange) -> bool {
    !a.intersection(b).is_empty()
}

fn overlaps(ranges: &[PageRange], range: PageRange) -> bool {
    ranges.iter().any(|one| meets(*one, range))
}

/// Takes what is in `range` out of `ranges`.
fn take_out(ranges: &mut Vec<PageRange>, range: PageRange) -> Vec<PageRange> {
    let mut taken = Vec::new();
    for one in std::mem::take(ranges) {
        let common = one.intersection(range);
        if !common.is_empty() {
            taken.push(common);
        }
        each_gap(one, std::iter::once(common), |rest| ranges.push(rest));
    }
    taken
}

/// The halves of `range`; a page is not divided.
fn halves(range: PageRange) -> Vec<PageRange> {
    let (first, pages) = (range.pages() / 2, range.pages());
    match pages {
        0 | 1 => vec![range],
        _ => vec![PageRange::of(range.start, first), range.after(first)],
    }
}

/// What the log is tested against, and what its fuzz target calls.
#[cfg(any(test, fuzzing))]
pub mod model;
#[cfg(test)]
mod tests;
