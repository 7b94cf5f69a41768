//! The log against a model of the kernel: threads change an address space, their events are heard
//! of in any order that the kernel allows, and in the end what is known must be what is there.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Pages of the model's address space, and of one block of memory in it.
const PLACES: u64 = 12;
const BLOCK: u64 = 3;

/// What a thread does; places are those of whole blocks.
#[derive(Debug, Clone, Copy)]
enum Call {
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
struct Model {
    /// What is where: the number of the block, and the page in it.
    there: BTreeMap<u64, u64>,
    /// What the pager believes to be where.
    known: BTreeMap<u64, u64>,
    /// Calls that have changed the address space and not told of all of it yet, at most one a
    /// thread: what each tells of one after the other.
    untold: RefCell<Vec<VecDeque<Event>>>,
    /// How far memory was moved so far: moves as far as each other look like pieces of one.
    distances: BTreeSet<u64>,
    /// Which of them is told of next.
    choices: RefCell<Vec<usize>>,
    /// Calls to be made yet.
    calls: VecDeque<Call>,
}

fn block(place: u64) -> PageRange {
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
    /// a time therefore (in `pagetide-pager`, `mapping_lock`), and bare ones are at risk.
    fn is_late(&self, place: u64) -> bool {
        let takes = |event: &Event| match event {
            Event::Unmap(range) | Event::Remap { from: range, .. } => meets(*range, block(place)),
            _ => false,
        };
        self.untold.borrow().iter().flatten().any(takes)
    }

    /// The kernel does `call` for a thread whose event is told of later. False if there is nothing
    /// to do it to.
    fn call(&mut self, call: Call) -> bool {
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
    fn go_on(&mut self) -> bool {
        if self.untold.borrow().len() >= 2 {
            return false;
        }
        match self.calls.pop_front() {
            Some(call) => self.call(call),
            None => false,
        }
    }

    /// One of the events that wait is told of.
    fn tell(&self) -> Option<Event> {
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

fn calls() -> impl Strategy<Value = Call> {
    let place = 0..PLACES;
    prop_oneof![
        2 => (place.clone(), 1..=2 * BLOCK).prop_map(|(place, pages)| Call::Unmap { place, pages }),
        4 => (place.clone(), place.clone(), any::<bool>())
            .prop_map(|(from, to, over)| Call::Move { from, to, over }),
        1 => place.prop_map(|place| Call::Empty { place }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]

    /// Two threads change the address space, each having its event read before it goes on.
    #[test]
    fn what_is_known_in_the_end_is_what_is_there(
        calls in prop::collection::vec(calls(), 1..30),
        choices in prop::collection::vec(0usize..2, 80),
    ) {
        let mut model = Model { choices: RefCell::new(choices), ..Model::default() };
        for place in 0..PLACES / 2 {
            model.there.extend(block(place).iter().map(|page| (page.0, page.0)));
        }
        model.known = model.there.clone();
        let mut log = EventLog::default();
        model.calls = calls.into();
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
        prop_assert!(matches!(log.settle(&mut model), Settled::Already | Settled::Now));
        prop_assert!(log.is_settled());
        prop_assert_eq!(&model.known, &model.there);
    }
}

#[test]
fn memory_that_arrives_before_its_place_is_heard_to_be_left_keeps_its_words() {
    // One thread moves block 1 to place 5; another moves block 0 to place 1, and is heard first.
    let mut model = Model::default();
    for place in 0..2 {
        let pages = block(place).iter().map(|page| (page.0, page.0));
        model.there.extend(pages);
    }
    model.known = model.there.clone();
    let over = false;
    assert!(model.call(Call::Move {
        from: 1,
        to: 5,
        over
    }));
    assert!(model.call(Call::Move {
        from: 0,
        to: 1,
        over
    }));
    model.choices = RefCell::new(vec![0, 1]);
    let mut log = EventLog::default();
    log.events().extend(model.tell());
    log.act_on_all(&mut model);
    assert_eq!(log.settle(&mut model), Settled::Now);
    assert_eq!(model.known, model.there);
}

#[test]
fn what_was_moved_in_pieces_and_shrunk_and_grown_over_both_is_empty_there() {
    // Both pieces are in the store, so the kernel cannot be asked whether their pages are there.
    let (first, second) = (block(1), block(2));
    let mut model = Model::default();
    let contents = |place: PageRange, of: PageRange| {
        place
            .iter()
            .zip(of.iter())
            .map(|(page, old)| (page.0, old.0))
    };
    model.there.extend(contents(first, block(1)));
    model.there.extend(contents(second, block(3)));
    model.known = model.there.clone();
    let mut log = EventLog::default();
    for (from, to) in [(1, 6), (2, 7)] {
        model.distances.clear();
        assert!(model.call(Call::Move {
            from,
            to,
            over: false
        }));
        log.events().extend(model.tell());
        log.act_on_all(&mut model);
        // Between the pieces no event is under way.
        if from == 1 {
            assert_eq!(log.settle(&mut model), Settled::Now);
        }
    }
    // Heard of when the memory has grown again, in place: of that there is no event.
    let (kept, cut) = (block(6).start, block(6).after(1));
    log.events().push_back(Event::Unmap(PageRange {
        end: block(7).end,
        ..cut
    }));
    log.act_on_all(&mut model);
    log.settle(&mut model);
    assert!(log.is_settled());
    assert_eq!(model.known.keys().collect::<Vec<_>>(), [&kept.0]);
}

/// A thread moves memory over other memory that has just arrived, and on, as soon as that was read.
#[test]
fn what_is_moved_over_other_memory_and_on_keeps_its_words() {
    let mut model = Model::default();
    for place in 0..4 {
        // None is in the store: the kernel can be asked whether their pages are there.
        let contents = |page: PageNumber| 1 + place * 2 * BLOCK + page.0 % BLOCK;
        let pages = block(place).iter().map(|page| (page.0, contents(page)));
        model.there.extend(pages);
    }
    model.known = model.there.clone();
    let mut log = EventLog::default();
    let arrives = Call::Move {
        from: 0,
        to: 5,
        over: false,
    };
    let over = Call::Move {
        from: 1,
        to: 5,
        over: true,
    };
    let on = Call::Move {
        from: 5,
        to: 8,
        over: false,
    };
    for call in [arrives, over] {
        assert!(model.call(call));
        model.calls = [on].into();
        // Of the move over the other there are two.
        let told = model.untold.borrow()[0].len();
        for _ in 0..told {
            log.events().extend(model.tell());
            log.act_on_all(&mut model);
        }
    }
    model.go_on();
    while model.has_event_pending() {
        log.events().extend(model.tell());
        log.act_on_all(&mut model);
    }
    assert_eq!(log.settle(&mut model), Settled::Now);
    assert_eq!(model.known, model.there);
}
