//! The transitions of a page: every way in which a word changes its state, and the states each may
//! start from.
//!
//! ```text
//!  transition        from                            to                  by
//!  claimed           Untouched Stored Resident       Loading             a handler, or a reader
//!                    Clean Protecting
//!  unclaimed         Loading Evicting                as before the claim who claimed it
//!  filled            Loading                         Resident            a handler
//!  filled_ahead      Loading                         Resident            a handler
//!  fetched_writable  Loading                         Resident            a handler
//!  fetched_clean     Loading                         Clean               a handler
//!  lost              Loading                         Poisoned            a handler
//!  written           Resident Clean Protecting       Resident            a handler
//!  recalled          Resident Clean Protecting       Resident Clean      a handler
//!  taken_back        Staged                          Resident Clean      handler or evictor *
//!  evicting          Resident Clean                  Evicting            the evictor *
//!  staged, moved_out Evicting                        Staged, Stored      the evictor *
//!  written_back      Staged                          Stored              the evictor *
//!  found_zero        Staged                          Untouched           the evictor *
//!  vanished          Resident Clean                  Untouched           the evictor *
//!  protecting        Resident Clean                  Protecting          the evictor *
//!  kept              Protecting                      Resident Untouched  the evictor
//!  dropping          Clean                           Dropping            the evictor
//!  dropping_stored   Protecting                      Dropping            the evictor *
//!  dropped           Dropping                        Stored Untouched    the evictor
//!  not_dropped       Dropping                        Resident Clean      the evictor
//!                                                    Untouched
//!  given_up          all but Evicting and Loading    Untouched, or as it the fault thread *
//!                                                    is with REMOVED
//!  moved_away        all but those the evictor or a  Untouched           the fault thread *
//!                    handler is at work on
//!  moved_here        Untouched                       that of the other   the fault thread *
//!  adopted           Untouched                       Resident            the fault thread
//!  sourced           Untouched                       Stored              a handler, or a reader
//!  unbacked          Clean                           Resident            a forked child, before it
//!                                                                        runs
//!  held              Resident Clean                  as it is            anybody
//!  * with the gate held
//! ```
//!
//! A *handler* is whoever serves a fault: the fault thread, or a thread that faults, in its signal
//! handler. Handlers and the evictor compete for Resident, Clean and Protecting by
//! compare-and-swap; a page in Loading is its claimer's alone, one in Evicting, Staged or Dropping
//! leaves that state as said above and in no other way. Pins and the queue entry may change at any
//! time, by anybody, and every transition but `held` keeps them.
//!
//! All are pure functions, applied with [`PageTable::change`](super::table::PageTable::change) and
//! `update`; the model checker's tests (`tests/word_loom.rs`) apply the same ones. A transition
//! from a state that it does not start from is a fault of the pager's own and panics: a page that
//! goes on under a wrong idea of where its bytes are would read as something else.
use super::word::{PIN_MASK, Place, QUEUED, REMOVED, REWRITTEN, State, Word};
use State::{
    Clean, Dropping, Evicting, Loading, Poisoned, Protecting, Resident, Staged, Stored, Untouched,
};

/// Panics unless the word is in one of the states.
macro_rules! starts_from {
    ($word:expr, $($state:ident)|+) => {
        assert!(
            matches!($word.state(), $($state)|+),
            "page word {:?}: expected {}", $word, stringify!($($state)|+)
        )
    };
}

/// Serving faults.
impl Word {
    /// In the hands of one handler or reader, who ends this by [`Word::filled`],
    /// `fetched_writable`, `fetched_clean`, `lost` or `unclaimed`. A page believed present is
    /// claimed where a fault says that it is not.
    pub fn claimed(self) -> Word {
        starts_from!(self, Untouched | Stored | Resident | Clean | Protecting);
        self.with_state(Loading)
    }

    /// The claim, of a handler or of an eviction, is given up: in the state `before` it.
    pub fn unclaimed(self, before: State) -> Word {
        starts_from!(self, Loading | Evicting);
        self.with_state(before)
    }

    /// Zeros were installed, or found.
    pub fn filled(self) -> Word {
        starts_from!(self, Loading);
        self.without_place().without(REMOVED).with_state(Resident)
    }

    /// The same, and nobody has asked for it yet.
    pub fn filled_ahead(self) -> Word {
        self.filled().with_filled_ahead()
    }

    /// Its bytes were installed, not protected: what the store has is not kept. `rewritten` says
    /// whether it is to be installed so next time too.
    pub fn fetched_writable(self, rewritten: bool) -> Word {
        starts_from!(self, Loading);
        let word = self.without_place().without(REWRITTEN).with_state(Resident);
        if rewritten {
            word.with(REWRITTEN)
        } else {
            word
        }
    }

    /// Its bytes were installed, protected: a write will tell.
    pub fn fetched_clean(self) -> Word {
        starts_from!(self, Loading);
        self.without(REWRITTEN).with_state(Clean)
    }

    /// The store cannot give its bytes.
    pub fn lost(self) -> Word {
        starts_from!(self, Loading);
        self.without_place().with_state(Poisoned)
    }

    /// It is about to be written to. An eviction in place that finds this gives the page up.
    pub fn written(self) -> Word {
        starts_from!(self, Resident | Clean | Protecting);
        match self.state() {
            Clean => (self.without_place().with_state(Resident)).with(REWRITTEN),
            _ => self.recalled(),
        }
    }

    /// Wanted by a handler while it may be on its way out in place: that ends, and nothing else
    /// does.
    pub fn recalled(self) -> Word {
        starts_from!(self, Resident | Clean | Protecting);
        match self.state() {
            Protecting => self.without_place().without(REMOVED).with_state(Resident),
            _ => self,
        }
    }

    /// Back in the program from the staging area. If the store has the bytes that it was fetched
    /// with at `backing`, it keeps them.
    pub fn taken_back(self, backing: Option<Place>) -> Word {
        starts_from!(self, Staged);
        match backing {
            Some(place) => self.with_place(place).with_state(Clean),
            None => self.without_place().with_state(Resident),
        }
    }
}

/// Evicting by moving.
impl Word {
    /// Being moved out, unless it is pinned or somebody else is at work on it.
    pub fn evicting(self) -> Option<Word> {
        let evictable = matches!(self.state(), Resident | Clean) && self.pins() == 0;
        evictable.then(|| self.with_state(Evicting))
    }

    /// Moved to `index` of the staging area, from where its bytes go to the store, unless it has
    /// them.
    pub fn staged(self, index: usize) -> Word {
        starts_from!(self, Evicting);
        self.with_staging_index(index).with_state(Staged)
    }

    /// Moved out, and the store has its bytes: it was clean.
    pub fn moved_out(self) -> Word {
        starts_from!(self, Evicting);
        self.with_state(Stored)
    }

    /// The store has its bytes at `place`. `rewritten` says whether they are others than it was
    /// fetched with.
    pub fn written_back(self, place: Place, rewritten: bool) -> Word {
        starts_from!(self, Staged);
        let word = self.with_place(place).without(REWRITTEN).with_state(Stored);
        match rewritten {
            true => word.with(REWRITTEN),
            false => word,
        }
    }

    /// Its bytes are zeros, which need no store.
    pub fn found_zero(self) -> Word {
        starts_from!(self, Staged);
        self.emptied()
    }

    /// It was not there: the program had emptied it, by a call that tells nobody. It has just left
    /// its queue.
    pub fn vanished(self) -> Word {
        starts_from!(self, Resident | Clean);
        self.emptied().without(QUEUED)
    }
}

/// Evicting in place.
impl Word {
    /// Being protected and put into the store, unless it is pinned or somebody else is at work on
    /// it. The place of one that was clean is the evictor's from now on.
    pub fn protecting(self) -> Option<Word> {
        let evictable = matches!(self.state(), Resident | Clean) && self.pins() == 0;
        evictable.then(|| self.with_state(Protecting))
    }

    /// It stays, if no handler took it; what the program removed meanwhile is gone.
    pub fn kept(self) -> Word {
        match self.state() {
            Protecting if self.has(REMOVED) => self.emptied(),
            Protecting => self.without_place().with_state(Resident),
            _ => self,
        }
    }

    /// A clean page being dropped, unless it is pinned, written, or somebody else is at work on it.
    pub fn dropping(self) -> Option<Word> {
        let droppable = self.state() == Clean && self.pins() == 0;
        droppable.then(|| self.with_state(Dropping))
    }

    /// The store has its bytes at `place`, and it is being dropped, unless a handler took it or the
    /// program removed it.
    pub fn dropping_stored(self, place: Place) -> Option<Word> {
        let ours = self.state() == Protecting && !self.has(REMOVED);
        ours.then(|| self.with_place(place).with_state(Dropping))
    }

    /// Its frame is gone. What the program removed meanwhile is not stored either.
    pub fn dropped(self) -> Word {
        starts_from!(self, Dropping);
        match self.has(REMOVED) {
            true => self.emptied(),
            false => self.with_state(Stored),
        }
    }

    /// It could not be dropped: clean as before, or resident if it had just been stored for this.
    pub fn not_dropped(self, was_clean: bool) -> Word {
        starts_from!(self, Dropping);
        match was_clean {
            _ if self.has(REMOVED) => self.emptied(),
            true => self.with_state(Clean),
            false => self.without_place().with_state(Resident),
        }
    }
}

/// Pinning.
impl Word {
    /// With one pin more, which keeps the page where it is from now on: it is present and nobody
    /// takes it out, and an eviction begins with no pinned page. None in any other state, where a
    /// pin holds the page only once a handler has brought it back; and where the guards have all
    /// the pins that they may ([`GUARDS_MAX`](super::word::GUARDS_MAX)).
    pub fn held(self) -> Option<Word> {
        match self.state() {
            Resident | Clean => self.guarded(),
            _ => None,
        }
    }
}

/// Following the program.
impl Word {
    /// The program has emptied or unmapped it. An eviction in place under way finishes first, and
    /// sees the mark.
    pub fn given_up(self) -> Word {
        starts_from!(
            self,
            Untouched | Resident | Clean | Staged | Stored | Poisoned | Protecting | Dropping
        );
        match self.state() {
            Protecting | Dropping => self.with(REMOVED),
            _ => self.emptied(),
        }
    }

    /// Its contents are at another address now; what is left here.
    pub fn moved_away(self) -> Word {
        starts_from!(
            self,
            Untouched | Resident | Clean | Staged | Stored | Poisoned
        );
        self.emptied()
    }

    /// The contents of the page whose word was `from` are here now.
    pub fn moved_here(self, from: Word) -> Word {
        // What was here before has left: if it was not heard of, its bytes are gone all the same.
        debug_assert_eq!(self.state(), Untouched);
        from.keeping(self)
    }

    /// It is present: it was there before the pager was.
    pub fn adopted(self) -> Word {
        starts_from!(self, Untouched);
        self.with_state(Resident)
    }

    /// Its bytes are at `place`: in the source of the memory's first contents.
    pub fn sourced(self, place: Place) -> Word {
        starts_from!(self, Untouched);
        self.with_place(place).with_state(Stored)
    }

    /// A forked child's copy, whose protection did not survive: what the store has is the parent's.
    pub fn unbacked(self) -> Word {
        starts_from!(self, Clean);
        self.without_place().with_state(Resident)
    }
}

impl Word {
    /// With the queue entry and the pins of `now`.
    fn keeping(self, now: Word) -> Word {
        const OTHERS: u64 = QUEUED | PIN_MASK;
        Word(self.0 & !OTHERS | now.0 & OTHERS)
    }

    /// What is left when the contents are gone: its queue entry and its pins.
    fn emptied(self) -> Word {
        Word(self.0 & (QUEUED | PIN_MASK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_store::Slot;
    use proptest::prelude::*;

    type Transition = (&'static str, fn(Word) -> Option<Word>);

    const PLACE: Place = Place {
        generation: 3,
        slot: Slot(77),
    };

    const TRANSITIONS: [Transition; 30] = [
        ("claimed", |w| Some(w.claimed())),
        ("unclaimed", |w| Some(w.unclaimed(Untouched))),
        ("filled", |w| Some(w.filled())),
        ("filled_ahead", |w| Some(w.filled_ahead())),
        ("fetched_writable", |w| Some(w.fetched_writable(true))),
        ("fetched_clean", |w| Some(w.fetched_clean())),
        ("lost", |w| Some(w.lost())),
        ("written", |w| Some(w.written())),
        ("recalled", |w| Some(w.recalled())),
        ("taken_back", |w| Some(w.taken_back(None))),
        ("taken_back clean", |w| Some(w.taken_back(Some(PLACE)))),
        ("evicting", Word::evicting),
        ("staged", |w| Some(w.staged(5))),
        ("moved_out", |w| Some(w.moved_out())),
        ("written_back", |w| Some(w.written_back(PLACE, true))),
        ("found_zero", |w| Some(w.found_zero())),
        ("vanished", |w| Some(w.vanished())),
        ("protecting", Word::protecting),
        ("kept", |w| Some(w.kept())),
        ("dropping", Word::dropping),
        ("dropping_stored", |w| w.dropping_stored(PLACE)),
        ("dropped", |w| Some(w.dropped())),
        ("not_dropped", |w| Some(w.not_dropped(false))),
        ("given_up", |w| Some(w.given_up())),
        ("moved_away", |w| Some(w.moved_away())),
        ("moved_here", |w| Some(w.moved_here(Word::default()))),
        ("adopted", |w| Some(w.adopted())),
        ("sourced", |w| Some(w.sourced(PLACE))),
        ("unbacked", |w| Some(w.unbacked())),
        ("held", Word::held),
    ];

    const STATES: [State; 10] = [
        Untouched, Resident, Clean, Evicting, Staged, Stored, Loading, Poisoned, Protecting,
        Dropping,
    ];

    /// What `transition` makes of a word in each state; none where it panics or declines.
    fn apply(transition: &Transition, word: Word) -> Option<Word> {
        std::panic::catch_unwind(|| transition.1(word)).ok()?
    }

    /// The table at the head of this file, from the functions themselves.
    #[test]
    fn each_transition_starts_and_ends_where_the_table_says() {
        let mut found = String::new();
        for transition in &TRANSITIONS {
            let ends = STATES.map(|state| {
                let word = Word::default().with_place(PLACE).with_state(state);
                apply(transition, word).map(|after| (state, after.state()))
            });
            let ends: Vec<String> = (ends.iter().flatten())
                .map(|(from, to)| format!("{from:?}>{to:?}"))
                .collect();
            found += &format!("{}: {}\n", transition.0, ends.join(" "));
        }
        let expected = "\
claimed: Untouched>Loading Resident>Loading Clean>Loading Stored>Loading Protecting>Loading
unclaimed: Evicting>Untouched Loading>Untouched
filled: Loading>Resident
filled_ahead: Loading>Resident
fetched_writable: Loading>Resident
fetched_clean: Loading>Clean
lost: Loading>Poisoned
written: Resident>Resident Clean>Resident Protecting>Resident
recalled: Resident>Resident Clean>Clean Protecting>Resident
taken_back: Staged>Resident
taken_back clean: Staged>Clean
evicting: Resident>Evicting Clean>Evicting
staged: Evicting>Staged
moved_out: Evicting>Stored
written_back: Staged>Stored
found_zero: Staged>Untouched
vanished: Resident>Untouched Clean>Untouched
protecting: Resident>Protecting Clean>Protecting
kept: Untouched>Untouched Resident>Resident Clean>Clean Evicting>Evicting Staged>Staged \
    Stored>Stored Loading>Loading Poisoned>Poisoned Protecting>Resident Dropping>Dropping
dropping: Clean>Dropping
dropping_stored: Protecting>Dropping
dropped: Dropping>Stored
not_dropped: Dropping>Resident
given_up: Untouched>Untouched Resident>Untouched Clean>Untouched Staged>Untouched Stored>Untouched \
    Poisoned>Untouched Protecting>Protecting Dropping>Dropping
moved_away: Untouched>Untouched Resident>Untouched Clean>Untouched Staged>Untouched \
    Stored>Untouched Poisoned>Untouched
moved_here: Untouched>Untouched
adopted: Untouched>Resident
sourced: Untouched>Stored
unbacked: Clean>Resident
held: Resident>Resident Clean>Clean
";
        assert_eq!(found, expected);
    }

    proptest! {
        /// Whatever else a word holds: pins and queue entry stay, and a page that owns no slot
        /// names none.
        #[test]
        fn pins_and_queue_entry_survive_and_no_slot_is_named_twice(
            raw in any::<u64>(), state in 0usize..10, transition in 0usize..TRANSITIONS.len()
        ) {
            let word = Word(raw & !0xF).with_state(STATES[state]);
            let (name, function) = TRANSITIONS[transition];
            let after = apply(&(name, function), word);
            if let Some(after) = after {
                let comes_from_elsewhere = name == "moved_here";
                prop_assert_eq!(after.pins(), word.pins() + u64::from(name == "held"));
                prop_assert!(after.has(QUEUED) == word.has(QUEUED) || name == "vanished");
                if after.owns_slot() && !comes_from_elsewhere {
                    prop_assert!(after.place() == word.place() || after.place() == PLACE);
                }
            }
        }
    }
}
