//! The page word under every interleaving of the fault thread and the evictor (loom): a slot is
//! given back exactly once, bytes are never dropped while the word says resident, and a page is
//! always findable.
//!
//! The transitions are the pager's own functions (`pager::page::transitions`); memory, staging area
//! and store are reduced to flags that say where the bytes are.
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use loom::thread;
use pagetide_pager::page::word::{Place, State, Word};
use pagetide_store::Slot;
use std::sync::Arc;

const OLD: Place = Place {
    generation: 0,
    slot: Slot(7),
};
const NEW: Place = Place {
    generation: 0,
    slot: Slot(8),
};

struct Page {
    word: AtomicU64,
    gate: Mutex<Staging>,
    /// Frames that hold the page's bytes: in the program (1), in the staging area (2).
    frames: AtomicUsize,
    releases_of_old: AtomicUsize,
    releases_of_new: AtomicUsize,
    /// Whether its content tells if it was written, and what it tells.
    content_tells: Option<Content>,
}

/// What is known of the page's place in the staging area.
#[derive(Default)]
struct Staging {
    /// Its bytes are being read: it is not moved from there.
    packed: bool,
    /// Where the store has the bytes that it was fetched with.
    backing: Option<Place>,
}

/// A page's bytes beside those that it was fetched with.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    Same,
    Other,
}

impl Page {
    fn new(word: Word) -> Arc<Page> {
        Page::with_content(word, None)
    }

    fn with_content(word: Word, content_tells: Option<Content>) -> Arc<Page> {
        Arc::new(Page {
            content_tells,
            word: AtomicU64::new(word.0),
            gate: Mutex::new(Staging::default()),
            frames: AtomicUsize::new(1),
            releases_of_old: AtomicUsize::new(0),
            releases_of_new: AtomicUsize::new(0),
        })
    }

    fn load(&self) -> Word {
        Word(self.word.load(Acquire))
    }

    fn change(&self, from: Word, to: Word) -> bool {
        self.word
            .compare_exchange(from.0, to.0, AcqRel, Acquire)
            .is_ok()
    }

    fn update(&self, f: impl Fn(Word) -> Word) -> Word {
        update(&self.word, f)
    }

    fn release(&self, place: Place) {
        let counter = if place == OLD {
            &self.releases_of_old
        } else {
            &self.releases_of_new
        };
        counter.fetch_add(1, AcqRel);
    }

    /// The fault thread, told of a write to a protected page.
    fn write_fault(&self) {
        loop {
            let word = self.load();
            match word.state() {
                State::Clean => {
                    if self.change(word, word.written()) {
                        self.release(word.place());
                        return;
                    }
                }
                State::Evicting => drop(self.gate.lock().unwrap()),
                // Gone meanwhile: the thread faults again, as missing.
                _ => return,
            }
        }
    }

    /// The fault thread, told of an access to a missing page.
    fn missing_fault(&self) {
        let word = self.load();
        if word.state() == State::Staged {
            let mut gate = self.gate.lock().unwrap();
            let word = self.load();
            if word.state() == State::Staged {
                assert_eq!(
                    self.frames.load(Acquire) & 2,
                    2,
                    "taken back from a staging area that no longer holds the page"
                );
                // Copied while it is being packed, and else moved.
                let backing = match gate.packed {
                    true => {
                        self.frames.fetch_or(1, AcqRel);
                        None
                    }
                    false => {
                        self.frames.store(1, Release);
                        gate.backing.take()
                    }
                };
                self.update(|word| word.taken_back(backing));
            }
        }
    }

    /// A guard's pin, and what the fault thread does for it where that alone does not hold the page.
    fn pin(&self) {
        if !take_pin(&self.word) {
            loop {
                let word = self.load();
                match word.state() {
                    State::Resident | State::Clean => break,
                    State::Evicting => drop(self.gate.lock().unwrap()),
                    State::Staged => self.missing_fault(),
                    State::Stored if self.change(word, word.claimed()) => {
                        self.frames.fetch_or(1, AcqRel);
                        self.update(Word::fetched_clean);
                    }
                    _ => thread::yield_now(),
                }
            }
        }
        let there = self.frames.load(Acquire) & 1;
        assert_eq!(there, 1, "{:?}: pinned, and not there", self.load());
    }

    /// The fault thread, told that the program empties the page.
    fn remove_event(&self) {
        let _gate = self.gate.lock().unwrap();
        // It panics if the event is acted on in the middle of a move.
        let was = self.update(Word::given_up);
        if matches!(was.state(), State::Clean | State::Stored) {
            self.release(was.place());
        }
    }

    /// The evictor's round for this page.
    fn evict(&self) {
        let dirty = {
            let mut gate = self.gate.lock().unwrap();
            let word = self.load();
            let evicting = word.evicting();
            if !evicting.is_some_and(|evicting| self.change(word, evicting)) {
                return;
            }
            // UFFDIO_MOVE.
            self.frames.store(2, Release);
            let clean = word.state() == State::Clean;
            let content_tells = self.content_tells.is_some();
            gate.backing = (clean && content_tells).then(|| word.place());
            let dirty = !clean || content_tells;
            self.update(|now| match dirty {
                true => now.staged(0),
                false => now.moved_out(),
            });
            dirty
        };
        // It is held there for a while, and then packed.
        let packed = {
            let mut gate = self.gate.lock().unwrap();
            gate.packed = true;
            let staged = dirty && self.load().state() == State::Staged;
            if !staged {
                gate.backing
                    .take()
                    .into_iter()
                    .for_each(|p| self.release(p));
            }
            staged
        };
        if packed {
            let read = self.frames.load(Acquire) & 2;
            assert_eq!(read, 2, "moved away while its bytes were read");
            let put = (self.content_tells != Some(Content::Same)).then_some(NEW);
            let mut gate = self.gate.lock().unwrap();
            let backing = gate.backing.take();
            let place = put.or(backing).expect("put, or backed");
            // Only pins can change under it.
            let was = self.update(|word| match word.state() {
                State::Staged => word.written_back(place, put.is_some()),
                _ => word,
            });
            let used = (was.state() == State::Staged).then_some(place);
            let unused = [backing, put].into_iter().flatten();
            unused
                .filter(|place| Some(*place) != used)
                .for_each(|place| self.release(place));
        }
        // The frame is dropped: whatever the word says now, it must not be that the bytes are only
        // here.
        let mut gate = self.gate.lock().unwrap();
        assert_ne!(self.load().state(), State::Staged);
        self.frames.fetch_and(!2, AcqRel);
        gate.packed = false;
    }

    fn check(&self) {
        let word = self.load();
        let old = usize::from(word.owns_slot() && word.place() == OLD);
        if word.is_resident() {
            assert_eq!(
                self.frames.load(Acquire) & 1,
                1,
                "{word:?} but the bytes are gone"
            );
        }
        assert!(
            old + self.releases_of_old.load(Acquire) <= 1,
            "a slot given back twice, or given back and still in use: {word:?}"
        );
        assert!(self.releases_of_new.load(Acquire) <= 1);
        assert!(
            !(word.owns_slot() && word.place() == NEW && self.releases_of_new.load(Acquire) == 1),
            "{word:?} refers to a slot given back"
        );
    }
}

/// Both at the same time. Each is a thread of its own: what the model's first thread does is not
/// tried in every order with the others.
fn beside<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    one: impl Fn(&T) + Send + 'static,
    other: impl Fn(&T) + Send + 'static,
) {
    let (first, second) = (Arc::clone(shared), Arc::clone(shared));
    let threads = [
        thread::spawn(move || one(&first)),
        thread::spawn(move || other(&second)),
    ];
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// Changes the word by `f` until it holds; what it was.
fn update(word: &AtomicU64, f: impl Fn(Word) -> Word) -> Word {
    loop {
        let now = Word(word.load(Acquire));
        if (word.compare_exchange(now.0, f(now).0, AcqRel, Acquire)).is_ok() {
            return now;
        }
    }
}

/// Takes a guard's pin; whether that alone holds the page.
fn take_pin(word: &AtomicU64) -> bool {
    loop {
        let now = Word(word.load(Acquire));
        let held = now.held();
        let pinned = held.or_else(|| now.guarded()).expect("a pin or two");
        if (word.compare_exchange(now.0, pinned.0, AcqRel, Acquire)).is_ok() {
            return held.is_some();
        }
    }
}

fn race(start: Word, fault_thread: impl Fn(&Page) + Send + Sync + Copy + 'static) {
    loom::model(move || {
        let page = Page::new(start);
        beside(&page, Page::evict, fault_thread);
        page.check();
    });
}

fn dirty() -> Word {
    Word::default().claimed().filled()
}

fn clean() -> Word {
    let evicted = dirty().evicting().expect("nobody else is at work on it");
    (evicted.staged(0).written_back(OLD, false))
        .claimed()
        .fetched_clean()
}

#[test]
fn a_write_to_a_clean_page_races_its_eviction() {
    race(clean(), Page::write_fault);
}

#[test]
fn an_access_races_the_eviction_of_a_dirty_page() {
    race(dirty(), Page::missing_fault);
}

#[test]
fn emptying_races_the_eviction_of_a_dirty_page() {
    race(dirty(), Page::remove_event);
}

#[test]
fn emptying_races_the_eviction_of_a_clean_page() {
    race(clean(), Page::remove_event);
    // Exactly once, not at most once: the slot must not leak either.
    loom::model(|| {
        let page = Page::new(clean());
        beside(&page, Page::evict, Page::remove_event);
        assert_eq!(page.releases_of_old.load(Acquire), 1);
    });
}

/// A page that is pinned is there when the pin has returned, and stays. With as many switches from a
/// thread that could go on as are tried in seconds.
#[test]
fn a_pin_races_the_eviction_of_a_page() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    let same_or_other = [Content::Same, Content::Other].map(|content| (clean(), Some(content)));
    let by_state = [(dirty(), None), (clean(), None)];
    for (start, content) in by_state.into_iter().chain(same_or_other) {
        model.check(move || {
            let page = Page::with_content(start, content);
            beside(&page, Page::evict, Page::pin);
            page.check();
            let word = page.load();
            assert!(word.is_resident() && word.pins() == 1, "{word:?}");
        });
    }
}

/// Where its content tells whether a page is as the store has it, one slot is in use in the end and
/// the other was given back, or both were if the program emptied or took back the page.
#[test]
fn faults_and_emptying_race_the_eviction_of_a_page_whose_content_tells() {
    let others: [fn(&Page); 2] = [Page::missing_fault, Page::remove_event];
    for (content, other) in [Content::Same, Content::Other]
        .into_iter()
        .flat_map(|content| others.map(|other| (content, other)))
    {
        loom::model(move || {
            let page = Page::with_content(clean(), Some(content));
            beside(&page, Page::evict, other);
            page.check();
            let word = page.load();
            let old = usize::from(word.owns_slot() && word.place() == OLD);
            assert_eq!(old + page.releases_of_old.load(Acquire), 1, "{word:?}");
        });
    }
}

/// A page that is evicted where it is.
struct InPlace {
    word: AtomicU64,
    /// Whether the page is protected, and what is in it.
    memory: Mutex<(bool, u64)>,
    /// Frames that hold it.
    frames: AtomicUsize,
}

impl InPlace {
    fn change(&self, from: Word, to: Word) -> bool {
        self.word
            .compare_exchange(from.0, to.0, AcqRel, Acquire)
            .is_ok()
    }

    /// The fault thread, told of a write to the protected page, by now or long ago.
    fn write_fault(&self) {
        let word = Word(self.word.load(Acquire));
        let writable = match word.state() {
            State::Resident | State::Protecting => word.written().pinned(),
            _ => None,
        };
        if writable.is_some_and(|writable| self.change(word, writable)) {
            self.memory.lock().unwrap().0 = false;
            update(&self.word, Word::unpinned);
        }
    }

    /// A guard's pin, and what the fault thread does for it where that alone does not hold the page.
    fn pin(&self) {
        if !take_pin(&self.word) {
            loop {
                let word = Word(self.word.load(Acquire));
                match word.state() {
                    State::Resident | State::Clean => break,
                    State::Protecting => drop(self.change(word, word.recalled())),
                    State::Stored if self.change(word, word.claimed()) => {
                        self.frames.store(1, Release);
                        update(&self.word, Word::fetched_clean);
                    }
                    _ => thread::yield_now(),
                }
            }
        }
        let there = self.frames.load(Acquire);
        assert_eq!(there, 1, "pinned, and not there");
    }

    fn write(&self) {
        let mut memory = self.memory.lock().unwrap();
        memory.1 += u64::from(!memory.0);
    }

    fn evict(&self) {
        let word = Word(self.word.load(Acquire));
        let protecting = word.protecting();
        if !protecting.is_some_and(|protecting| self.change(word, protecting)) {
            return;
        }
        self.memory.lock().unwrap().0 = true;
        let copy = self.memory.lock().unwrap().1;
        let was = update(&self.word, |word| word.dropping_stored(NEW).unwrap_or(word));
        if was.dropping_stored(NEW).is_some() {
            assert_eq!(self.memory.lock().unwrap().1, copy, "a write was lost");
            self.frames.store(0, Release);
            update(&self.word, Word::dropped);
        }
    }
}

/// A page at the start of its eviction, or in the midst of it; it has `pins` in the end.
fn race_in_place(start: Word, pins: u64, other: fn(&InPlace)) {
    loom::model(move || {
        let page = Arc::new(InPlace {
            word: AtomicU64::new(start.0),
            memory: Mutex::new((true, 0)),
            frames: AtomicUsize::new(1),
        });
        beside(&page, InPlace::evict, other);
        let word = Word(page.word.load(Acquire));
        assert_eq!(
            word.is_resident(),
            page.frames.load(Acquire) == 1,
            "{word:?}"
        );
        assert_eq!(word.pins(), pins, "{word:?}");
    });
}

#[test]
fn a_late_write_fault_races_the_eviction_in_place() {
    let protecting = dirty().protecting().expect("nobody else is at work on it");
    for start in [dirty(), protecting] {
        race_in_place(start, 0, |page: &InPlace| {
            page.write_fault();
            page.write();
        });
    }
}

#[test]
fn a_pin_races_the_eviction_in_place() {
    race_in_place(dirty(), 1, InPlace::pin);
    race_in_place(clean(), 1, InPlace::pin);
}
