//! The page word under every interleaving of the fault thread and the evictor (loom): a slot is given back exactly once, bytes are never
//! dropped while the word says resident, and a page is always findable.
//!
//! The transitions are the ones the pager makes, by the same [`Word`] functions; memory, staging area and store are reduced to flags that
//! say where the bytes are.
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use loom::thread;
use pagetide::pager::word::{Place, REWRITTEN, State, Word};
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
    gate: Mutex<()>,
    /// Frames that hold the page's bytes: in the program (1), in the staging area (2).
    frames: AtomicUsize,
    releases_of_old: AtomicUsize,
    releases_of_new: AtomicUsize,
}

impl Page {
    fn new(word: Word) -> Arc<Page> {
        Arc::new(Page {
            word: AtomicU64::new(word.0),
            gate: Mutex::new(()),
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
                    if self.change(
                        word,
                        word.without_place()
                            .with_state(State::Resident)
                            .with(REWRITTEN),
                    ) {
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
            let _gate = self.gate.lock().unwrap();
            let word = self.load();
            if word.state() == State::Staged {
                assert_eq!(
                    self.frames.load(Acquire) & 2,
                    2,
                    "taken back from a staging area that no longer holds the page"
                );
                self.frames.fetch_or(1, AcqRel);
                self.word
                    .store(word.without_place().with_state(State::Resident).0, Release);
            }
        }
    }

    /// The fault thread, told that the program empties the page.
    fn remove_event(&self) {
        let _gate = self.gate.lock().unwrap();
        loop {
            let word = self.load();
            assert_ne!(
                word.state(),
                State::Evicting,
                "an event was acted on in the middle of a move"
            );
            if self.change(word, word.emptied()) {
                if matches!(word.state(), State::Clean | State::Stored) {
                    self.release(word.place());
                }
                return;
            }
        }
    }

    /// The evictor's round for this page.
    fn evict(&self) {
        let staged = {
            let _gate = self.gate.lock().unwrap();
            let word = self.load();
            if !matches!(word.state(), State::Resident | State::Clean)
                || !self.change(word, word.with_state(State::Evicting))
            {
                return;
            }
            // UFFDIO_MOVE.
            self.frames.store(2, Release);
            let dirty = word.state() == State::Resident;
            self.word.store(
                if dirty {
                    word.staged(0)
                } else {
                    word.with_state(State::Stored)
                }
                .0,
                Release,
            );
            dirty
        };
        if staged {
            let _gate = self.gate.lock().unwrap();
            let word = self.load();
            let ours = word.state() == State::Staged
                && self.change(word, word.with_place(NEW).with_state(State::Stored));
            if !ours {
                self.release(NEW);
            }
        }
        // The frame is dropped: whatever the word says now, it must not be that the bytes are only here.
        let _gate = self.gate.lock().unwrap();
        assert_ne!(self.load().state(), State::Staged);
        self.frames.fetch_and(!2, AcqRel);
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

fn race(start: Word, fault_thread: impl Fn(&Page) + Send + Sync + Copy + 'static) {
    loom::model(move || {
        let page = Page::new(start);
        let other = Arc::clone(&page);
        let evictor = thread::spawn(move || other.evict());
        fault_thread(&page);
        evictor.join().unwrap();
        page.check();
    });
}

fn clean() -> Word {
    Word::default().with_place(OLD).with_state(State::Clean)
}

fn dirty() -> Word {
    Word::default().with_state(State::Resident)
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
        let other = Arc::clone(&page);
        let evictor = thread::spawn(move || other.evict());
        page.remove_event();
        evictor.join().unwrap();
        assert_eq!(page.releases_of_old.load(Acquire), 1);
    });
}

/// A page that is evicted where it is.
struct InPlace {
    word: AtomicU64,
    /// Whether the page is protected, and what is in it.
    memory: Mutex<(bool, u64)>,
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
        if matches!(word.state(), State::Resident | State::Protecting)
            && self.change(word, word.with_state(State::Resident).pinned())
        {
            self.memory.lock().unwrap().0 = false;
            while {
                let word = Word(self.word.load(Acquire));
                !self.change(word, word.unpinned())
            } {}
        }
    }

    fn write(&self) {
        let mut memory = self.memory.lock().unwrap();
        memory.1 += u64::from(!memory.0);
    }

    fn evict(&self) {
        let word = Word(self.word.load(Acquire));
        let is_evictable = word.state() == State::Resident && word.pins() == 0;
        if !is_evictable || !self.change(word, word.with_state(State::Protecting)) {
            return;
        }
        self.memory.lock().unwrap().0 = true;
        let copy = self.memory.lock().unwrap().1;
        let word = Word(self.word.load(Acquire));
        let dropping = word.with_state(State::Dropping);
        if word.state() == State::Protecting && self.change(word, dropping) {
            assert_eq!(self.memory.lock().unwrap().1, copy, "a write was lost");
        }
    }
}

#[test]
fn a_late_write_fault_races_the_eviction_in_place() {
    for start in [dirty(), dirty().with_state(State::Protecting)] {
        loom::model(move || {
            let page = Arc::new(InPlace {
                word: AtomicU64::new(start.0),
                memory: Mutex::new((true, 0)),
            });
            let other = Arc::clone(&page);
            let evictor = thread::spawn(move || other.evict());
            page.write_fault();
            page.write();
            evictor.join().unwrap();
            assert_eq!(Word(page.word.load(Acquire)).pins(), 0);
        });
    }
}
