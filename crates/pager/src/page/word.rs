//! The page word: everything the pager knows of one page, in one `u64`.
//!
//! ```text
//!  bit  0..4   state (see State)
//!       4      QUEUED     the eviction queue holds an entry for the page
//!       5      REMOVED    emptied or unmapped by the program while the evictor held it
//!       6      REWRITTEN  was written after its last fetch: expect that next time
//!       7      MAIN       it was in the policy's main queue when it was evicted last
//!       8..16  pins       guards that keep it resident
//!      16..22  generation which store of this process its slot belongs to (one per fork it
//!              descends from)
//!      22..24  laps       rounds it stays in the main queue beyond the first; 1 for an evicted
//!              page that was read ahead
//!      24..56  slot       the store's handle (Clean, Stored, Loading, Dropping), the staging index
//!              (Staged), or 1 for a page filled before it was asked for (Resident)
//!      56..64  evicted    the policy's epoch when it was evicted last, 0 for none
//! ```
//!
//! This file has the fields. What becomes of a page, and who may do it, is in
//! [`super::transitions`]; nothing else changes a state.
use pagetide_store::Slot;

/// Where a page is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never used, or emptied: the next access finds zeros.
    Untouched = 0,
    /// Present and written, or never stored.
    Resident = 1,
    /// Present, and the store holds the bytes that it was fetched with. It is write-protected, so
    /// that the first write is seen; or, where its content tells
    /// ([`Handles::content_tells`](crate::handles::Handles::content_tells)), it may have been
    /// written since, which is found out when it is evicted.
    Clean = 2,
    /// The evictor is moving it out; ends within the section that holds the gate.
    Evicting = 3,
    /// Its bytes are in the staging area, on their way to the store.
    Staged = 4,
    /// Not present; the store holds its bytes.
    Stored = 5,
    /// In the hands of whoever fills it, or reads it from the store.
    Loading = 6,
    /// The store lost it: accesses get SIGBUS.
    Poisoned = 7,
    /// Present and write-protected while its bytes go to the store (where it cannot be moved out).
    Protecting = 8,
    /// Its bytes are stored and the evictor is dropping it.
    Dropping = 9,
}

/// A page word's value.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(pub u64);

const STATE_MASK: u64 = 0xF;
const PIN_SHIFT: u32 = 8;
pub(super) const PIN_MASK: u64 = 0xFF << PIN_SHIFT;
const GENERATION_SHIFT: u32 = 16;
const GENERATION_MASK: u64 = 0x3F << GENERATION_SHIFT;
const SLOT_SHIFT: u32 = 24;
const SLOT_MASK: u64 = 0xFFFF_FFFF << SLOT_SHIFT;

const MAIN: u64 = 1 << 7;
const LAPS_SHIFT: u32 = 22;
const LAPS_MASK: u64 = 3 << LAPS_SHIFT;
const EVICTED_SHIFT: u32 = 56;
/// What an eviction policy remembers of a page.
const HISTORY: u64 = MAIN | LAPS_MASK | 0xFF << EVICTED_SHIFT;

// Flags: see the module's picture.
pub(super) const QUEUED: u64 = 1 << 4;
pub(super) const REMOVED: u64 = 1 << 5;
pub(super) const REWRITTEN: u64 = 1 << 6;
/// In the place of a handle, of a Resident page, which has none.
const FILLED_AHEAD: Slot = Slot(1);
/// The most pins a page can have.
const PIN_MAX: u64 = 0xFF;
/// The most of them that guards may take: whoever serves a write or reads the page needs one.
pub const GUARDS_MAX: u64 = PIN_MAX - 1;
/// Store generations a word can name.
pub const GENERATIONS: usize = 64;

/// A place in a store: which of the process's stores, and the handle there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the store.
    pub generation: u8,
    /// The store's handle.
    pub slot: Slot,
}

impl Word {
    /// The state.
    pub fn state(self) -> State {
        const STATES: [State; 10] = [
            State::Untouched,
            State::Resident,
            State::Clean,
            State::Evicting,
            State::Staged,
            State::Stored,
            State::Loading,
            State::Poisoned,
            State::Protecting,
            State::Dropping,
        ];
        STATES[(self.0 & STATE_MASK) as usize]
    }

    /// The same page in another state.
    pub(super) fn with_state(self, state: State) -> Word {
        Word(self.0 & !STATE_MASK | state as u64)
    }

    /// Whether `flag` is set.
    pub(super) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// With `flag` set.
    pub(super) fn with(self, flag: u64) -> Word {
        Word(self.0 | flag)
    }

    /// With `flag` cleared.
    pub(super) fn without(self, flag: u64) -> Word {
        Word(self.0 & !flag)
    }

    /// Guards that keep the page resident.
    pub fn pins(self) -> u64 {
        (self.0 & PIN_MASK) >> PIN_SHIFT
    }

    fn with_pins(self, pins: u64) -> Word {
        Word(self.0 & !PIN_MASK | pins << PIN_SHIFT)
    }

    /// With one pin more; none if it has as many as can be counted.
    pub fn pinned(self) -> Option<Word> {
        (self.pins() < PIN_MAX).then(|| self.with_pins(self.pins() + 1))
    }

    /// The same for a guard; none if it has [`GUARDS_MAX`].
    pub fn guarded(self) -> Option<Word> {
        (self.pins() < GUARDS_MAX).then(|| self.with_pins(self.pins() + 1))
    }

    /// With one pin less, if it has any.
    pub fn unpinned(self) -> Word {
        self.with_pins(self.pins().saturating_sub(1))
    }

    /// Whether the eviction queue holds an entry for it.
    pub fn is_queued(self) -> bool {
        self.has(QUEUED)
    }

    /// With such an entry, and the policy's memory of the page as in `history`.
    pub fn queued(self, history: Word) -> Word {
        self.with(QUEUED).with_history(history)
    }

    /// With no such entry.
    pub fn unqueued(self) -> Word {
        self.without(QUEUED)
    }

    /// Whether the program removed it while the evictor held it.
    pub fn is_removed(self) -> bool {
        self.has(REMOVED)
    }

    /// Whether it was written after its last fetch.
    pub fn is_rewritten(self) -> bool {
        self.has(REWRITTEN)
    }

    /// With the policy's memory of the page as in `other`.
    pub fn with_history(self, other: Word) -> Word {
        Word(self.0 & !HISTORY | other.0 & HISTORY)
    }

    /// With nothing remembered by the policy.
    pub fn without_history(self) -> Word {
        Word(self.0 & !HISTORY)
    }

    /// The policy's epoch when the page was evicted last; 0 for none.
    pub fn evicted_in(self) -> u8 {
        (self.0 >> EVICTED_SHIFT) as u8
    }

    /// Whether the page was in the main queue then.
    pub fn was_in_main(self) -> bool {
        self.0 & MAIN != 0
    }

    /// Evicted in `epoch`, from the main queue or not.
    pub fn evicted(self, epoch: u8, from_main: bool) -> Word {
        let main = if from_main { MAIN } else { 0 };
        Word(self.0 & !HISTORY | main | u64::from(epoch) << EVICTED_SHIFT)
    }

    /// Rounds the page stays in the main queue beyond the first.
    pub fn laps(self) -> u8 {
        ((self.0 & LAPS_MASK) >> LAPS_SHIFT) as u8
    }

    /// With so many such rounds, at most three.
    pub fn with_laps(self, laps: u8) -> Word {
        Word(self.0 & !LAPS_MASK | u64::from(laps & 3) << LAPS_SHIFT)
    }

    /// The place in a store; meaningful where the state says so.
    pub fn place(self) -> Place {
        let generation = ((self.0 & GENERATION_MASK) >> GENERATION_SHIFT) as u8;
        Place {
            generation,
            slot: Slot(((self.0 & SLOT_MASK) >> SLOT_SHIFT) as u32),
        }
    }

    /// With another place.
    pub(super) fn with_place(self, place: Place) -> Word {
        let cleared = self.0 & !(GENERATION_MASK | SLOT_MASK);
        Word(
            cleared
                | (place.generation as u64) << GENERATION_SHIFT
                | (place.slot.0 as u64) << SLOT_SHIFT,
        )
    }

    /// With no place.
    pub(super) fn without_place(self) -> Word {
        Word(self.0 & !(GENERATION_MASK | SLOT_MASK))
    }

    /// Whether zeros were installed before the page was asked for. It is not known whether it was
    /// used since.
    pub fn is_filled_ahead(self) -> bool {
        self.state() == State::Resident && self.place().slot == FILLED_AHEAD
    }

    /// Marked as filled before it was asked for.
    pub(super) fn with_filled_ahead(self) -> Word {
        self.with_place(Place {
            generation: 0,
            slot: FILLED_AHEAD,
        })
    }

    /// The staging index of a Staged page.
    pub fn staging_index(self) -> usize {
        self.place().slot.0 as usize
    }

    /// With a staging index in the place of a handle.
    pub(super) fn with_staging_index(self, index: usize) -> Word {
        self.with_place(Place {
            generation: 0,
            slot: Slot(index as u32),
        })
    }

    /// Whether the store holds bytes for the page that the word alone refers to.
    pub fn owns_slot(self) -> bool {
        matches!(
            self.state(),
            State::Clean | State::Stored | State::Loading | State::Dropping
        )
    }

    /// Whether the page counts as resident (Staged pages do: their frames are still held).
    pub fn is_resident(self) -> bool {
        matches!(
            self.state(),
            State::Resident | State::Clean | State::Evicting | State::Protecting | State::Dropping
        )
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({:#x})", self.state(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_do_not_disturb_each_other(
            raw in any::<u64>(), generation in 0u8..64, slot in any::<u32>()
        ) {
            let word = Word(raw & !STATE_MASK);
            let place = Place { generation, slot: Slot(slot) };
            let changed = word.with_place(place).with_state(State::Stored);
            prop_assert_eq!(changed.place(), place);
            prop_assert_eq!(changed.state(), State::Stored);
            prop_assert_eq!(changed.pins(), word.pins());
            prop_assert_eq!(changed.with_history(Word(0)).with_history(word), changed);
            let evicted = changed.evicted(7, true);
            let seen = (evicted.evicted_in(), evicted.was_in_main(), evicted.laps());
            prop_assert_eq!(seen, (7, true, 0));
            prop_assert_eq!(evicted.with_laps(2).laps(), 2);
            prop_assert_eq!(evicted.with_laps(2).with_history(changed), changed);
            prop_assert_eq!(changed.has(QUEUED), word.has(QUEUED));
            let none = Place { generation: 0, slot: Slot(0) };
            prop_assert_eq!(changed.without_place().place(), none);
        }
    }
}
