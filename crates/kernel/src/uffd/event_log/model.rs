//! A model of the kernel for the log: threads change an address space, and their events are heard
//! of in any order that the kernel allows. In the end what is known must be what is there.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Pages of the model's address space, and of one block of memory in it.
pub(super) const PLACES: u64 = 12;
pub(super) const BLOCK: u64 = 3;

/// What a thread does; places are those of whole blocks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    Unmap {
        place: u64,
        pages: u64,
    },
    /// To where nothing is, or over what is there (`MREMAP_FIXED`).
    Move {
        from: u64,
        to: u64,
        over: bool,
    },
    Empty {
        place: u64,
    },
}

/// The kernel, and what the pager knows.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// What is where: the number of the block, and the page in it.
    pub(super) there: BTreeMap<u64, u64>,
    /// What the pager believes to be where.
    pub(super) known: BTreeMap<u64, u64>,
    /// Calls that have changed the address space and not told of all of it yet, at most one a
    /// thread: what each tells of one after the other.
    pub(super) untold: RefCell<Vec<VecDeque<Event>>>,
    /// How far memory was moved so far: moves as far as each other look like pieces of one.
    pub(super) distances: BTreeSet<u64>,
    /// Which of them is told of next.
    pub(super) choices: RefCell<Vec<usize>>,
    /// Calls to be made yet.
    pub(super) calls: VecDeque<Call>,
}

pub(super) fn block(place: u64) -> PageRange {
    PageRange::of(PageNumber(1 + place * BLOCK), BLOCK)
}

/// Every other block is in the store: its pages are known and not present.
fn is_stored(contents: u64) -> bool {
    (contents - 1) / BLOCK % 2 == 1
}

fn part(map: &BTreeMap<u64, u64>, range: PageRange) -> Vec<u64> {
    let pages = map.range(range.start.0..range.end.0);
    pages.map(|(page, _)| *page).collect()
}

impl Model {
    /// Whether memory has just been moved to `place` by a call that has not returned: nobody else
    /// knows of it yet.
    fn is_arriving(&self, place: u64) -> bool {
        let arrives = |event: &Event| match event {
            Event::Remap { to, .. } => *to == block(place).start,
            _ => false,
        };
        self.untold.borrow().iter().flatten().any(arrives)
    }

    /// Whether a call that took what was at `place` has not been told of. Memory that moved there
    /// and changed again before that can be lost: the calls that the agent stands before go one at
    /// a time therefore (the pager's `mapping_lock`), and bare ones are at risk.
    fn is_late(&self, place: u64) -> bool {
        let takes = |event: &Event| match event {
            Event::Unmap(range) | Event::Remap { from: range, .. } => meets(*range, block(place)),
            _ => false,
        };
        self.untold.borrow().iter().flatten().any(takes)
    }

    /// The kernel does `call` for a thread whose event is told of later. False if there is nothing
    /// to do it to.
    pub(super) fn call(&mut self, call: Call) -> bool {
        let (first, last) = match call {
            Call::Unmap { place, pages } => (place, place + (pages - 1) / BLOCK),
            Call::Empty { place } | Call::Move { from: place, .. } => (place, place),
        };
        if (first..=last).any(|place| self.is_arriving(place) || self.is_late(place)) {
            return false;
        }
        match call {
            Call::Unmap { place, pages } => {
                let range = PageRange::of(block(place).start, pages);
                let gone = part(&self.there, range);
                // One that begins where nothing is, and where memory arrives then, is not told
                // apart from one of what arrived, if that is all in the store.
                if gone.first() != Some(&range.start.0) {
                    return false;
                }
                self.there.retain(|page, _| !gone.contains(page));
                self.untold.get_mut().push([Event::Unmap(range)].into());
                true
            }
            Call::Empty { place } => {
                let range = block(place);
                let whole = part(&self.there, range).len() as u64 == BLOCK;
                // Emptied pages are not believed to be anywhere, as those of zeros are not.
                if whole {
                    self.untold.get_mut().push([Event::Remove(range)].into());
                }
                whole
            }
            Call::Move { from, to, over } => {
                if over && (self.is_arriving(to) || self.is_late(to) || from == to) {
                    return false;
                }
                let (from, to) = (block(from), block(to));
                let distance = to.start.0.wrapping_sub(from.start.0);
                let pages = part(&self.there, from);
                let gone = part(&self.there, to);
                let can_go = if over {
                    gone.len() as u64 == BLOCK
                } else {
                    gone.is_empty()
                };
                if pages.len() as u64 != BLOCK || !can_go || !self.distances.insert(distance) {
                    return false;
                }
                self.there.retain(|page, _| !gone.contains(page));
                for page in pages {
                    let contents = self.there.remove(&page);
                    let at = to.start.0 + page - from.start.0;
                    self.there.extend(contents.map(|contents| (at, contents)));
                }
                let left = over.then_some(Event::Unmap(to));
                let moved = Event::Remap { from, to: to.start };
                let told = left.into_iter().chain([moved]);
                self.untold.get_mut().push(told.collect());
                true
            }
        }
    }

    /// The next call is made by a thread that waits for nothing, if there is one: there are two.
    pub(super) fn go_on(&mut self) -> bool {
        if self.untold.borrow().len() >= 2 {
            return false;
        }
        match self.calls.pop_front() {
            Some(call) => self.call(call),
            None => false,
        }
    }

    /// One of the events that wait is told of.
    pub(super) fn tell(&self) -> Option<Event> {
        let mut untold = self.untold.borrow_mut();
        let choice = self.choices.borrow_mut().pop().unwrap_or(0);
        let index = choice.checked_rem(untold.len())?;
        let event = untold[index].pop_front();
        untold.retain(|events| !events.is_empty());
        event
    }
}

impl Memory for Model {
    fn first_managed_in(&self, range: PageRange) -> Option<PageRange> {
        let pages = part(&self.known, range);
        let first = *pages.first()?;
        let run = pages.iter().zip(first..).take_while(|(a, b)| **a == *b);
        Some(PageRange::of(PageNumber(first), run.count() as u64))
    }

    fn is_registered(&self, range: PageRange) -> Result<(), Stop> {
        if self.has_event_pending() {
            return Err(Stop::EventPending);
        }
        let whole = part(&self.there, range).len() as u64 == range.pages();
        whole.then_some(()).ok_or(Stop::Absent)
    }

    fn mapped_in(&self, range: PageRange) -> Option<Vec<PageRange>> {
        let pages = part(&self.there, range);
        let runs = pages.chunk_by(|a, b| a + 1 == *b);
        Some(
            runs.map(|run| PageRange::of(PageNumber(run[0]), run.len() as u64))
                .collect(),
        )
    }

    fn has_event_pending(&self) -> bool {
        !self.untold.borrow().is_empty()
    }

    fn is_in_place(&self, range: PageRange, leaving: &[PageRange]) -> Option<bool> {
        let leaves = |page| leaving.iter().any(|part| part.contains(PageNumber(page)));
        let mut expected = part(&self.known, range);
        expected.retain(|page| !is_stored(self.known[page]) && !leaves(*page));
        let is_there = |page: &u64| self.there.contains_key(page);
        (!expected.is_empty()).then(|| expected.iter().all(is_there))
    }

    fn is_emptying(&self, _range: PageRange) -> bool {
        false
    }

    fn emptied_by_program(&mut self, range: PageRange) -> Vec<PageRange> {
        vec![range]
    }

    /// Whoever has been heard goes on meanwhile.
    fn read_on(&mut self, events: &mut VecDeque<Event>) -> Heard {
        let pending = self.go_on() || self.has_event_pending();
        let event = self.tell();
        events.extend(event);
        match (event.is_some(), pending) {
            (true, _) => Heard::Some,
            (false, true) => Heard::Pending,
            (false, false) => Heard::Nothing,
        }
    }

    fn empty(&mut self, _range: PageRange) {}

    fn unmap(&mut self, range: PageRange) {
        self.known
            .retain(|page, _| !range.contains(PageNumber(*page)));
    }

    fn move_pages(&mut self, from: PageRange, to: PageNumber) {
        for page in part(&self.known, from) {
            let contents = self.known.remove(&page);
            let at = to.0 + page - from.start.0;
            assert!(!self.known.contains_key(&at), "page {at} was not vacated");
            self.known.extend(contents.map(|contents| (at, contents)));
        }
    }
}

/// Two threads make `calls`, each having its event read before it goes on; `choices` say of whose
/// is read, from the last.
///
/// # Panics
/// In the end something else is known than is there.
pub(super) fn run(calls: Vec<Call>, choices: Vec<usize>) {
    let mut model = Model {
        choices: RefCell::new(choices),
        calls: calls.into(),
        ..Model::default()
    };
    for place in 0..PLACES / 2 {
        let pages = block(place).iter().map(|page| (page.0, page.0));
        model.there.extend(pages);
    }
    model.known = model.there.clone();
    let mut log = EventLog::default();
    while !model.calls.is_empty() {
        // A third call is one of a thread that has been heard.
        if model.untold.borrow().len() >= 2 {
            let event = model.tell();
            log.events().extend(event);
            log.act_on_all(&mut model);
        }
        model.go_on();
    }
    while model.has_event_pending() {
        log.events().extend(model.tell());
        log.act_on_all(&mut model);
    }
    let settled = log.settle(&mut model);
    assert!(matches!(settled, Settled::Already | Settled::Now));
    assert!(log.is_settled());
    assert_eq!(model.known, model.there);
}

/// Bytes that say in which order events are read, a bit each.
const CHOICE_BYTES: usize = 10;
/// Calls of one run: more find nothing else, and take longer.
const CALLS_MAX: usize = 60;

/// Runs what `bytes` say: [`CHOICE_BYTES`], then three for each call.
///
/// # Panics
/// As [`run`].
pub fn exercise(bytes: &[u8]) {
    let Some((choices, calls)) = bytes.split_first_chunk::<CHOICE_BYTES>() else {
        return;
    };
    let bits = |byte: &u8| {
        (0..8)
            .map(|bit| usize::from(byte >> bit & 1))
            .collect::<Vec<_>>()
    };
    let choices = choices.iter().flat_map(bits).collect();
    let calls = calls.chunks_exact(3).take(CALLS_MAX).map(|bytes| {
        let (kind, place) = (bytes[0], u64::from(bytes[1]) % PLACES);
        let more = u64::from(bytes[2]);
        match kind % 8 {
            0 | 1 => Call::Unmap {
                place,
                pages: 1 + more % (2 * BLOCK),
            },
            2 => Call::Empty { place },
            kind => Call::Move {
                from: place,
                to: more % PLACES,
                over: kind % 2 == 0,
            },
        }
    });
    run(calls.collect(), choices);
}
