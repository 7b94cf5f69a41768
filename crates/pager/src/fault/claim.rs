//! Pages in the hands of whoever fills them: put back as they were, unless they were filled.
use pagetide_kernel::{PageNumber, PageRange};

use crate::page::table::PageTable;
use crate::page::word::{State, Word};

/// Why pages are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A fault waits for the one page.
    Demand { write: bool },
    /// A stream may come to them.
    Ahead,
    /// Somebody asked to have them loaded.
    Load,
}

/// Neighbouring pages that were in one state and are Loading now, claimed by this thread alone.
pub(super) struct Claim<'p> {
    table: &'p PageTable,
    /// Those that are not settled.
    pages: PageRange,
    was: State,
    rewritten: bool,
}

impl<'p> Claim<'p> {
    /// The stored pages at the start of `range` that one call to one store gives, and that are to
    /// be installed alike; none if another thread was quicker.
    pub(super) fn stored(table: &'p PageTable, range: PageRange) -> Option<Claim<'p>> {
        let first = table.load(range.start);
        if first.state() != State::Stored {
            return None;
        }
        Claim::of(table, range, first, |word| {
            word.state() == State::Stored
                && word.is_rewritten() == first.is_rewritten()
                && word.place().generation == first.place().generation
        })
    }

    /// The untouched pages at the start of `range`; none if another thread was quicker.
    pub(super) fn untouched(table: &'p PageTable, range: PageRange) -> Option<Claim<'p>> {
        Claim::of(table, range, Word::default(), |word| {
            word.state() == State::Untouched
        })
    }

    /// `page`, which is believed present and is missing, if its word is `word` still.
    pub(super) fn vanished(
        table: &'p PageTable,
        page: PageNumber,
        word: Word,
    ) -> Option<Claim<'p>> {
        Claim::of(table, PageRange::one(page), word, |now| now == word)
    }

    /// The pages at the start of `range` whose words are as `first` in what a claim is about.
    fn of(
        table: &'p PageTable,
        range: PageRange,
        first: Word,
        belongs: impl Fn(Word) -> bool,
    ) -> Option<Claim<'p>> {
        let is_claimed = |page: &PageNumber| {
            let word = table.load(*page);
            belongs(word) && table.change(*page, word, word.claimed())
        };
        let count = range.iter().take_while(is_claimed).count() as u64;
        (count > 0).then(|| Claim {
            table,
            pages: PageRange::of(range.start, count),
            was: first.state(),
            rewritten: first.is_rewritten(),
        })
    }

    /// The pages that are not settled.
    pub(super) fn pages(&self) -> PageRange {
        self.pages
    }

    /// Whether they were written after their last fetch.
    pub(super) fn is_rewritten(&self) -> bool {
        self.rewritten
    }

    /// The word of page `index`, which says what the store has of it.
    pub(super) fn word(&self, index: u64) -> Word {
        self.table.load(self.pages.start.add(index))
    }

    /// Gives up all but the first `pages`.
    pub(super) fn shrink_to(&mut self, pages: u64) {
        let rest = self.pages.after(pages);
        self.pages.end = rest.start;
        put_back(self.table, rest, self.was);
    }

    /// The first `pages` pages are no longer claimed, and changed by `transition`; `each` gets what
    /// their words were before.
    pub(super) fn settle(
        &mut self,
        pages: u64,
        transition: impl Fn(Word) -> Word,
        mut each: impl FnMut(PageNumber, Word),
    ) {
        let settled = PageRange::of(self.pages.start, pages.min(self.pages.pages()));
        self.pages = self.pages.after(pages);
        for page in settled.iter() {
            let was = self.table.update(page, &transition);
            each(page, was);
        }
    }
}

fn put_back(table: &PageTable, pages: PageRange, was: State) {
    for page in pages.iter() {
        table.update(page, |now| match was {
            // An eviction in place that finds the page claimed gives it up. What the program has
            // removed meanwhile was the page before.
            State::Resident | State::Protecting => now.filled(),
            was => now.unclaimed(was),
        });
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        put_back(self.table, self.pages, self.was);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_settled_is_as_it_was() {
        let table = PageTable::new().unwrap();
        let pages = PageRange::of(PageNumber(1000), 6);
        table.ensure(pages).unwrap();
        let clean = Word::default().claimed().fetched_clean();
        let stored = clean.dropping().expect("not pinned").dropped();
        for page in pages.iter().take(5) {
            table.store(page, stored);
        }
        let mut claim = Claim::stored(&table, pages).expect("five are stored");
        assert_eq!(claim.pages().pages(), 5);
        assert!(Claim::stored(&table, pages).is_none(), "claimed already");
        claim.shrink_to(3);
        let mut settled = Vec::new();
        claim.settle(1, Word::fetched_clean, |page, was| {
            settled.push((page, was.state()))
        });
        assert_eq!(settled, [(pages.start, State::Loading)]);
        drop(claim);
        let states: Vec<_> = pages.iter().map(|page| table.load(page).state()).collect();
        use State::{Clean, Stored, Untouched};
        assert_eq!(states, [Clean, Stored, Stored, Stored, Stored, Untouched]);
    }
}
