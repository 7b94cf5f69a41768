//! What the program does to its mappings, followed in the page words.
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pagetide_kernel::maps::Maps;
use pagetide_kernel::sync::LockGuard;
use pagetide_kernel::uffd::{Event, Stop};
use pagetide_kernel::{PageNumber, PageRange, each_gap};
use rustix::io::Errno;

use super::Pager;
use super::fault::FaultThread;
use super::page::word::{Place, State, Word};

/// Memory that was moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// How far it was moved, in pages.
    by: u64,
    /// Where it began when it arrived, with what was moved as far and is before it.
    began: PageNumber,
    /// Where there still is something of it, as far as is known.
    place: PageRange,
}

/// How long moved memory waits for the tables of its new place. The program waits with it.
const TABLES_WAIT_MAX: Duration = Duration::from_secs(10);

impl FaultThread<'_> {
    /// Acts on the events read so far, in their order, then opens the gate. Returns whether there
    /// were any.
    pub(super) fn process_events(&mut self, gate: LockGuard<'_>) -> bool {
        let mut gate = Some(gate);
        let any = !self.events.is_empty();
        while let Some(event) = self.events.pop_front() {
            gate = self.act(event, gate);
        }
        self.pager
            .renaming
            .store(!self.doubtful.is_empty(), Relaxed);
        any
    }

    /// Decides about unmappings that were heard of after memory had been moved to the same place,
    /// once no event is under way: is the memory there, what was unmapped is what was there before.
    /// Until then no eviction begins, and the kernel brings no page in.
    pub(super) fn settle(&mut self) {
        let pager = self.pager;
        if self.is_settled() {
            return;
        }
        let gate = pager.gate.lock();
        let (uffd, unreadable) = (&pager.handles().uffd, pager.unreadable.range());
        while let Some(range) = self.doubtful.last().copied() {
            match uffd.is_registered(range, unreadable) {
                Ok(()) => {}
                Err(Stop::EventPending) => return pager.turnstile.kept(&mut self.kept_since),
                // The mappings in it are decided about one by one.
                Err(_) => {
                    let mapped = mapped_in(range).unwrap_or_else(|_| halves(range));
                    // What has moved away since it was asked about is to be heard of with its
                    // words.
                    if pager.has_event_pending() {
                        return;
                    }
                    if mapped[..] != [range] {
                        self.doubtful.pop();
                        each_gap(range, mapped.iter().copied(), |gap| self.unmap(gap));
                        self.doubtful.extend(mapped);
                        continue;
                    }
                    self.unmap(range);
                }
            }
            self.doubtful.pop();
        }
        if pager.has_event_pending() {
            if !self.unlooked.is_empty() {
                pager.turnstile.kept(&mut self.kept_since);
            }
            return;
        }
        self.arrived.clear();
        self.kept_since = None;
        pager.renaming.store(false, Relaxed);
        drop(gate);
        self.look_again();
    }

    /// Whether nothing has been moved since no event was under way, and what there is is known.
    pub(super) fn is_settled(&self) -> bool {
        self.arrived.is_empty() && self.is_sure()
    }

    /// Whether it is known what memory there is, and which of its pages are present.
    pub(super) fn is_sure(&self) -> bool {
        self.doubtful.is_empty() && self.unlooked.is_empty()
    }

    /// An unmapping was heard of. Where memory has been moved to since events were last settled, it
    /// may be of what was there before. Of that, what is known was waited for, with all that was
    /// unmapped with it; what is not known is the grown end of something.
    fn hear_of_unmapping(&mut self, range: PageRange) {
        let is_older = match self.older.iter().position(|part| *part == range) {
            Some(at) => {
                self.older.swap_remove(at);
                true
            }
            None => false,
        };
        let begins_known = (self.pager)
            .first_span_in(PageRange::one(range.start))
            .is_some();
        let in_doubt: Vec<PageRange> = (self.arrived.iter())
            .filter(|arrival| {
                let common = arrival.place.intersection(range);
                !common.is_empty()
                    && match self.is_in_place(common) {
                        Some(in_place) => in_place,
                        // Not from its own beginning, but from that of something that was there
                        // when it came.
                        None => is_older || range.start < arrival.began && begins_known,
                    }
            })
            .map(|arrival| arrival.place)
            .collect();
        let mut rest = vec![range];
        for place in in_doubt {
            for part in std::mem::take(&mut rest) {
                let common = part.intersection(place);
                if common.is_empty() {
                    rest.push(part);
                    continue;
                }
                self.doubtful.push(common);
                each_gap(part, std::iter::once(common), |piece| rest.push(piece));
            }
        }
        rest.into_iter().for_each(|part| self.unmap(part));
    }

    /// Whether the pages of `range` that should be in memory are; `None` if none should. An
    /// unmapping takes them all. Some may be there again: the program may be further than what is
    /// heard here, and have put something else in the place.
    fn is_in_place(&self, range: PageRange) -> Option<bool> {
        let pager = self.pager;
        let leaving: Vec<PageRange> = (self.events.iter())
            .filter_map(|event| match event {
                Event::Remove(part) | Event::Unmap(part) | Event::Remap { from: part, .. } => {
                    Some(part.intersection(range)).filter(|part| !part.is_empty())
                }
                _ => None,
            })
            .collect();
        let is_expected = |page| {
            let state = pager.table.load(page).state();
            matches!(state, State::Resident | State::Clean)
                && !leaving.iter().any(|part| part.contains(page))
        };
        let mut expected = 0;
        (pager.table).for_each_used(range, |page, _| expected += u64::from(is_expected(page)));
        if expected == 0 {
            return None;
        }
        let scanned = pager.handles().pagemap.populated(range, |run, _| {
            expected -= run.iter().filter(|page| is_expected(*page)).count() as u64;
        });
        scanned.is_ok().then_some(expected == 0)
    }

    /// Acts on one event, with the gate held.
    fn act<'g>(&mut self, event: Event, mut gate: Option<LockGuard<'g>>) -> Option<LockGuard<'g>>
    where
        Self: 'g,
    {
        match event {
            Event::Remove(range) => {
                let others = self.pager.own_drops.lock().others(range);
                others.into_iter().for_each(|part| self.pager.empty(part));
            }
            Event::Unmap(range) => self.hear_of_unmapping(range),
            Event::Remap { from, to } => {
                gate = self.wait_until_vacated(moved_to(from, to), gate);
                gate = self.wait_for_in_place([from, moved_to(from, to)], gate);
                self.remap(from, to);
                let unlooked = self.take_unlooked(from);
                let moved = |part: PageRange| moved_to(part, to.add(part.start.0 - from.start.0));
                self.unlooked.extend(unlooked.into_iter().map(moved));
                self.left(from);
                self.note_arrival(from, to);
            }
            Event::Fork(_) | Event::Unknown(_) | Event::Fault { .. } => {}
        }
        gate
    }

    fn unmap(&mut self, range: PageRange) {
        // The span first: the program may map the same place anew at once, and the warden must not
        // think it governed.
        self.pager.remove_span(range);
        self.pager.empty(range);
        self.pager.mappings_changed.fetch_add(1, Relaxed);
        self.left(range);
        self.take_unlooked(range);
    }

    /// What of `range` had not been looked at: it is not there any more.
    pub(super) fn take_unlooked(&mut self, range: PageRange) -> Vec<PageRange> {
        let mut taken = Vec::new();
        for unlooked in std::mem::take(&mut self.unlooked) {
            let common = unlooked.intersection(range);
            if !common.is_empty() {
                taken.push(common);
            }
            each_gap(unlooked, std::iter::once(common), |rest| {
                self.unlooked.push(rest)
            });
        }
        taken
    }

    /// Memory arrived. What is several mappings to the kernel is moved piece by piece, and of some
    /// pieces nothing is heard.
    fn note_arrival(&mut self, from: PageRange, to: PageNumber) {
        let by = to.0.wrapping_sub(from.start.0);
        let before = |first: &&Arrival| first.by == by && first.began < to;
        let began = self.arrived.iter().find(before).map_or(to, |a| a.began);
        let place = moved_to(from, to);
        self.arrived.push(Arrival { by, began, place });
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
    /// known here. It has left in the kernel, but the kernel sends an event when it has let go of
    /// the address space already: where one thread unmaps or moves memory away, and another moves
    /// some to the same place, the second may be heard of first. Its words would then be emptied
    /// with those of the first. So the event of the first is looked for, and comes before its turn.
    /// Returns with the gate held.
    fn wait_until_vacated<'g>(
        &mut self,
        target: PageRange,
        mut gate: Option<LockGuard<'g>>,
    ) -> Option<LockGuard<'g>>
    where
        Self: 'g,
    {
        let pager = self.pager;
        while let Some(old) = pager.first_span_in(target) {
            let known = |range: &PageRange| !range.intersection(old).is_empty();
            if let Some(at) = self.doubtful.iter().position(known) {
                let range = self.doubtful.swap_remove(at);
                let gone = range.intersection(target);
                each_gap(range, std::iter::once(gone), |piece| {
                    self.doubtful.push(piece)
                });
                self.unmap(gone);
                continue;
            }
            let is_of_old = |event: &Event| match event {
                Event::Unmap(range) | Event::Remap { from: range, .. } => {
                    !range.intersection(old).is_empty()
                }
                _ => false,
            };
            if let Some(at) = self.events.iter().position(is_of_old) {
                gate = self.act_on_part(at, target, gate);
                continue;
            }
            pager.renaming.store(true, Relaxed);
            drop(gate.take());
            // Asked before the events are read: if none is under way now, all there are can be read
            // now.
            let pending = pager.has_event_pending();
            let read = self.collect_and_skip();
            if !read {
                std::thread::yield_now();
            }
            gate = Some(pager.gate.lock());
            if !read && !pending {
                // Nobody says where it went.
                self.unmap(old);
            }
        }
        gate
    }

    /// Acts before its turn on event `at`, which says that memory leaves; on an unmapping as far as
    /// it concerns `part`, so that what it says of other places keeps its turn.
    fn act_on_part<'g>(
        &mut self,
        at: usize,
        part: PageRange,
        gate: Option<LockGuard<'g>>,
    ) -> Option<LockGuard<'g>>
    where
        Self: 'g,
    {
        match self.events.remove(at) {
            Some(Event::Unmap(range)) => {
                let part = range.intersection(part);
                self.older.retain(|older| *older != range);
                each_gap(range, std::iter::once(part), |rest| {
                    self.events.insert(at, Event::Unmap(rest));
                    self.older.push(rest);
                });
                self.unmap(part);
                gate
            }
            Some(event) => self.act(event, gate),
            None => gate,
        }
    }

    /// Waits until the evictor has finished with pages of `ranges` that it is emptying in place,
    /// which it knows by their old place. It may be waiting for one of its own remove events to be
    /// read. Meanwhile it begins nothing: what is read here is acted on only later. Returns with
    /// the gate held.
    fn wait_for_in_place<'g>(
        &mut self,
        ranges: [PageRange; 2],
        mut gate: Option<LockGuard<'g>>,
    ) -> Option<LockGuard<'g>>
    where
        Self: 'g,
    {
        let pager = self.pager;
        while ranges.iter().any(|range| pager.is_emptying(*range)) {
            pager.renaming.store(true, Relaxed);
            drop(gate.take());
            self.collect_and_skip();
            std::thread::yield_now();
            gate = Some(pager.gate.lock());
        }
        gate
    }

    /// Reads messages, and takes remove events that the evictor caused out of the queue: it waits
    /// for nothing more than that they were read. In one step to it, which looks at the list when a
    /// call has failed. Whether there were messages.
    fn collect_and_skip(&mut self) -> bool {
        let pager = self.pager;
        let mut own = pager.own_drops.lock();
        let read = self.collect_messages();
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Remove(range) => {
                    let others = own.others(range);
                    self.events.extend(others.into_iter().map(Event::Remove));
                }
                other => self.events.push_back(other),
            }
        }
        read
    }

    /// The kernel moved the pages of `from` to `to`: their words follow, and what is staged learns
    /// whose it is. The gate is held.
    fn remap(&mut self, from: PageRange, to: PageNumber) {
        let pager = self.pager;
        let target = moved_to(from, to);
        let began = Instant::now();
        while let Err(errno) = pager.table.ensure(target) {
            // Memory may come back; address space does not.
            if began.elapsed() > TABLES_WAIT_MAX {
                pager.end_process(&format!(
                    "memory was moved (mremap), and no table can be made for its new place \
                     ({errno}): expected 2 MiB of address space for each GiB; raise `ulimit -v`"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut moved = Vec::new();
        pager.table.for_each_used(from, |page, _| {
            let word = pager.table.update(page, Word::moved_away);
            moved.push((to.add(page.0 - from.start.0), word));
        });
        // What was there before has left.
        for (page, word) in moved {
            if word.state() == State::Untouched {
                continue;
            }
            if word.state() == State::Staged {
                pager.staged_owner[word.staging_index()].store(page.0, Relaxed);
            }
            pager.table.update(page, |here| here.moved_here(word));
            if word.is_resident() {
                pager.enqueue(page);
            }
        }
        pager.add_span(target);
    }
}

/// The mappings in `range`, as far as they are in it.
pub(super) fn mapped_in(range: PageRange) -> Result<Vec<PageRange>, Errno> {
    let mut mapped = Vec::new();
    Maps::open()?.for_each(|mapping| {
        let part = mapping.range.intersection(range);
        if !part.is_empty() {
            mapped.push(part);
        }
    })?;
    Ok(mapped)
}

/// The halves of `range`; a page is not divided.
fn halves(range: PageRange) -> Vec<PageRange> {
    let middle = range.start.add(range.pages() / 2);
    let half = |start, end| PageRange { start, end };
    match range.pages() {
        0 | 1 => vec![range],
        _ => vec![half(range.start, middle), half(middle, range.end)],
    }
}

/// Where `from` is when it has been moved to begin at `to`.
fn moved_to(from: PageRange, to: PageNumber) -> PageRange {
    PageRange {
        start: to,
        end: to.add(from.pages()),
    }
}

impl Pager {
    /// Whether the evictor is emptying a page in place that is, or was, in `range`.
    pub(super) fn is_emptying(&self, range: PageRange) -> bool {
        let mut busy = false;
        self.table.for_each_used(range, |_, word| {
            busy |= matches!(word.state(), State::Protecting | State::Dropping)
        });
        busy
    }

    /// Whether a thread of the program has begun to unmap, move or empty memory and its event is
    /// unread, or was until just now: the kernel then refuses this operation, which does nothing.
    pub(super) fn has_event_pending(&self) -> bool {
        let uffd = &self.handles().uffd;
        uffd.write_protect(self.staging.range(), false) == Err(Stop::EventPending)
    }

    /// The program gave up the contents of `range`.
    pub fn empty(&self, range: PageRange) {
        let mut freed: Vec<Place> = Vec::new();
        let mut resident = 0;
        self.table.for_each_used(range, |page, _| {
            let was = self.table.update(page, Word::given_up);
            match was.state() {
                State::Resident => resident += 1,
                State::Clean => {
                    resident += 1;
                    freed.push(was.place());
                }
                State::Stored => freed.push(was.place()),
                // A staged page still counts until the evictor has dropped its frame.
                _ => {}
            }
        });
        self.unreserve(resident);
        self.release(&freed);
    }
}
