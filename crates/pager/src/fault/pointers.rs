//! Pointers: a page that is fetched may name the pages that are missed next, where its words are
//! addresses: a list of objects, the root of a tree. Reading what a page names is content-directed
//! prefetching (Cooksey, Jourdan and Grunwald, ASPLOS 2002); whether it pays is decided by trials,
//! as for [blocks](super::blocks).
//!
//! A *trial* is a fetched page of whose named pages a few are noted and none is read: which of them
//! are missed soon? An account has the pages gained less those in vain. There are two for each
//! region of naming pages: *dense* pages, of which at least a quarter of the words are addresses,
//! are lists, whatever else the region holds. While an account is open, all stored pages that a
//! fetched page names are read, in their order, some at each turn; one such page in eight is a
//! trial all the same, because pages that were read cause no fault, used or not. A page that is
//! missed before its turn tells that the program walks this list: it is the next to be read, and at
//! once.
//!
//! Looking at a page's words takes a microsecond of the time in which the next fault waits. While
//! no account is open and no trial gains, ever fewer pages are looked at.
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pagetide_kernel::sync::Mutex;
use pagetide_kernel::{PAGE_SIZE, PageNumber};

/// Words of a page.
pub const WORDS: usize = PAGE_SIZE / 8;
/// Most pages that are read at one turn.
pub const AT_ONCE: usize = 16;
/// Regions of naming pages are 32 MiB; those beyond so many share accounts.
const REGION_SHIFT: u32 = 13;
const REGIONS: usize = 1024;
/// So many words of a page are looked at to tell whether it is dense: if a quarter are addresses of
/// stored pages.
const LOOKED_AT: usize = 16;
/// Pages noted of a trial, trials followed at a time, and how long each, in misses.
const NOTED: usize = 16;
const TRIALS: usize = 64;
const SOON: u32 = 512;
/// One page in so many is a trial. Dense ones are few.
const TRIAL: u32 = 8;
/// An account begins with nothing and has this at most; it is open above the half.
const FULL: i32 = 128;
const OPEN: u8 = 64;
/// While no account is open, so many looks without a trial that gains halve the share of pages that
/// are looked at, so many times at most. One that gains undoes it all.
const FRUITLESS: u32 = 256;
const HALVINGS: u32 = 6;
/// Lists of named pages that wait to be read, the newest first. One that was read makes way for a
/// new one, or else the oldest.
const LISTS: usize = 16;
/// Places of noted pages, and of those in lists, by a hash of their number.
const PLACES: usize = 1 << 14;

/// What to do about the pages that wait to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing new waits.
    None,
    /// They are read when no fault waits.
    Later,
    /// The program has overtaken the reading.
    Now,
}

/// A page whose words were looked at, some of the pages it names, and which of them were missed.
#[derive(Clone, Copy, Default)]
struct Trial {
    account: u16,
    since: u32,
    count: u8,
    missed: u16,
    pages: [u64; NOTED],
}

/// Named pages in their order, and how many of them were read.
struct List {
    pages: [u64; WORDS],
    count: usize,
    read: usize,
    /// The miss it is of.
    since: u32,
}

impl List {
    fn is_read(&self) -> bool {
        self.read == self.count
    }

    /// The stored pages that `words` name. Neighbours often name the same one.
    fn fill(&mut self, words: &[u64; WORDS], is_stored: impl Fn(u64) -> bool) {
        (self.count, self.read) = (0, 0);
        let mut last = u64::MAX;
        for named in words.iter().map(|word| word >> PAGE_SIZE.ilog2()) {
            if named != last && is_stored(named) {
                self.pages[self.count] = named;
                self.count += 1;
                last = named;
            }
        }
    }
}

struct Seen {
    /// Misses, and those of dense pages, so far.
    clock: u32,
    dense: u32,
    /// A ring: those under way are the `under_way` ones before `next_trial`.
    trials: Box<[Trial; TRIALS]>,
    next_trial: usize,
    under_way: usize,
    /// Pages looked at since the last trial that gained.
    fruitless: u32,
    /// Accounts that are open.
    open: usize,
    /// Of the page with this hash that was noted last, the trial and its place in that, from 1 on.
    noted: Box<[u16; PLACES]>,
    /// The same of the lists.
    listed: Box<[u16; PLACES]>,
    /// For each region, that of pages that are not dense, and that of dense ones.
    accounts: Box<[u8; 2 * REGIONS]>,
    lists: Box<[List]>,
}

/// What fetched pages name. Shared by the threads that serve faults; nobody waits: who finds it in
/// use goes without.
pub struct Pointers {
    seen: Mutex<Seen>,
    /// There are pages to be read.
    waiting: AtomicBool,
}

impl Default for Pointers {
    fn default() -> Pointers {
        let empty = || List {
            pages: [0; WORDS],
            count: 0,
            read: 0,
            since: 0,
        };
        let seen = Seen {
            clock: 0,
            dense: 0,
            trials: Box::new([Trial::default(); TRIALS]),
            next_trial: 0,
            under_way: 0,
            fruitless: 0,
            open: 0,
            noted: Box::new([0; PLACES]),
            listed: Box::new([0; PLACES]),
            accounts: Box::new([0; 2 * REGIONS]),
            lists: std::iter::repeat_with(empty).take(LISTS).collect(),
        };
        Pointers {
            seen: Mutex::new(seen),
            waiting: AtomicBool::new(false),
        }
    }
}

impl Pointers {
    /// `page`, whose bytes are `words`, was fetched on demand. `is_stored` says what the store has.
    pub fn fetched(
        &self,
        page: PageNumber,
        words: &[u64; WORDS],
        is_stored: impl Fn(PageNumber) -> bool,
    ) -> Turn {
        let Some(mut seen) = self.seen.try_lock() else {
            return Turn::None;
        };
        seen.note_miss(page.0);
        let is_overtaken = seen.overtaken(page.0);
        let is_stored = |named| named != page.0 && is_stored(PageNumber(named));
        let has_more = seen.fetched(page.0, words, is_stored);
        if !is_overtaken && !has_more {
            return Turn::None;
        }
        self.waiting.store(true, Relaxed);
        if is_overtaken { Turn::Now } else { Turn::Later }
    }

    /// Whether nothing waits to be read.
    pub fn is_idle(&self) -> bool {
        !self.waiting.load(Relaxed)
    }

    /// The next pages to read, and how many.
    pub fn take(&self) -> ([PageNumber; AT_ONCE], usize) {
        let mut taken = [PageNumber(0); AT_ONCE];
        let Some(mut seen) = self.seen.try_lock() else {
            return (taken, 0);
        };
        let count = seen.take(&mut taken);
        self.waiting.store(count == AT_ONCE, Relaxed);
        (taken, count)
    }
}

impl Seen {
    /// Whether there is something to read.
    fn fetched(
        &mut self,
        page: u64,
        words: &[u64; WORDS],
        is_stored: impl Fn(u64) -> bool,
    ) -> bool {
        if self.open == 0 && !self.clock.is_multiple_of(self.looked_at_one_in()) {
            return false;
        }
        self.fruitless = self.fruitless.saturating_add(1);
        let some = words.iter().step_by(WORDS / LOOKED_AT);
        let named = some.filter(|word| is_stored(**word >> PAGE_SIZE.ilog2()));
        let is_dense = named.count() >= LOOKED_AT / 4;
        let account = 2 * ((page >> REGION_SHIFT) as usize % REGIONS) + usize::from(is_dense);
        let is_open = self.accounts[account] > OPEN;
        let count = if is_dense {
            &mut self.dense
        } else {
            &mut self.clock
        };
        let is_trial = count.is_multiple_of(TRIAL) || is_dense && !is_open;
        self.dense = self.dense.wrapping_add(u32::from(is_dense));
        if !is_open && !is_trial {
            return false;
        }
        let clock = self.clock;
        let age = |list: &List| (list.is_read(), clock.wrapping_sub(list.since));
        let (number, list) = (self.lists.iter_mut().enumerate())
            .max_by_key(|(_, list)| age(list))
            .expect("there are lists");
        list.fill(words, is_stored);
        list.since = clock;
        if is_trial {
            self.begin_trial(account, number);
            return false;
        }
        for (index, page) in list.pages[..list.count].iter().enumerate() {
            self.listed[place(*page)] = (number * WORDS + index + 1) as u16;
        }
        !list.is_read()
    }

    /// While no account is open, one page in so many is looked at.
    fn looked_at_one_in(&self) -> u32 {
        1 << (self.fruitless / FRUITLESS).min(HALVINGS)
    }

    /// Whether `page`, which was missed, waits to be read. Its list is the next then.
    fn overtaken(&mut self, page: u64) -> bool {
        let Some(place) = usize::from(self.listed[place(page)]).checked_sub(1) else {
            return false;
        };
        let (list, index) = (&mut self.lists[place / WORDS], place % WORDS);
        let is_there = (list.read..list.count).contains(&index) && list.pages[index] == page;
        if is_there {
            list.since = self.clock;
        }
        is_there
    }

    /// A page of some trial may be missed.
    fn note_miss(&mut self, page: u64) {
        self.clock = self.clock.wrapping_add(1);
        let since = |seen: &Seen| seen.clock.wrapping_sub(seen.trials[seen.oldest()].since);
        if self.under_way > 0 && since(self) >= SOON {
            self.settle();
        }
        let Some(place) = usize::from(self.noted[place(page)]).checked_sub(1) else {
            return;
        };
        let (trial, index) = (&mut self.trials[place / NOTED], place % NOTED);
        if trial.pages[index] == page && index < usize::from(trial.count) {
            trial.missed |= 1 << index;
        }
    }

    /// Notes some of the pages of a list, and leaves none to be read.
    fn begin_trial(&mut self, account: usize, list: usize) {
        if self.lists[list].count == 0 {
            return;
        }
        if self.under_way == TRIALS {
            self.settle();
        }
        let (number, list) = (self.next_trial, &mut self.lists[list]);
        let count = list.count.min(NOTED);
        let trial = &mut self.trials[number];
        *trial = Trial {
            account: account as u16,
            since: self.clock,
            count: count as u8,
            ..Trial::default()
        };
        for (index, noted) in trial.pages[..count].iter_mut().enumerate() {
            *noted = list.pages[index * list.count / count];
            self.noted[place(*noted)] = (number * NOTED + index + 1) as u16;
        }
        list.count = 0;
        self.next_trial = (number + 1) % TRIALS;
        self.under_way += 1;
    }

    /// The oldest trial has ended.
    fn settle(&mut self) {
        let ended = self.trials[self.oldest()];
        let used = ended.missed.count_ones() as i32;
        // A page that is used saves a fault, one in vain costs another page its place.
        let gain = 2 * used - i32::from(ended.count);
        let account = &mut self.accounts[usize::from(ended.account)];
        let was_open = *account > OPEN;
        *account = (i32::from(*account) + gain).clamp(0, FULL) as u8;
        self.open = self.open + usize::from(*account > OPEN) - usize::from(was_open);
        if gain > 0 {
            self.fruitless = 0;
        }
        self.under_way -= 1;
    }

    fn oldest(&self) -> usize {
        (self.next_trial + TRIALS - self.under_way) % TRIALS
    }

    fn take(&mut self, into: &mut [PageNumber; AT_ONCE]) -> usize {
        let (mut taken, clock) = (0, self.clock);
        while taken < AT_ONCE {
            let waiting = self.lists.iter_mut().filter(|list| !list.is_read());
            let Some(list) = waiting.min_by_key(|list| clock.wrapping_sub(list.since)) else {
                break;
            };
            let next = &list.pages[list.read..list.count];
            let count = next.len().min(AT_ONCE - taken);
            for (room, page) in into[taken..].iter_mut().zip(&next[..count]) {
                *room = PageNumber(*page);
            }
            list.read += count;
            taken += count;
        }
        taken
    }
}

fn place(page: u64) -> usize {
    (page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use super::*;

    /// All pages are stored, but for the 500 that came in last.
    #[derive(Default)]
    struct Program {
        pointers: Pointers,
        present: VecDeque<u64>,
        misses: u64,
        read: u64,
        looked_at: u64,
    }

    impl Program {
        /// Touches `page`, whose words are `words`; what it names is read at once.
        fn touch(&mut self, page: u64, words: &[u64; WORDS]) {
            if self.present.contains(&page) {
                return;
            }
            self.misses += 1;
            self.install(page);
            let present = &self.present;
            let looks = Cell::new(0);
            let is_stored = |page: PageNumber| {
                looks.set(1);
                page.0 > 0 && !present.contains(&page.0)
            };
            self.pointers.fetched(PageNumber(page), words, is_stored);
            self.looked_at += looks.get();
            let (named, count) = self.pointers.take();
            for page in &named[..count] {
                if !self.present.contains(&page.0) {
                    self.install(page.0);
                    self.read += 1;
                }
            }
        }

        fn install(&mut self, page: u64) {
            self.present.push_back(page);
            if self.present.len() > 500 {
                self.present.pop_front();
            }
        }

        /// Touches the pages of a list of `count`, each followed by those that `used` says of what
        /// it names; returns the misses and the pages read.
        fn walk(&mut self, count: u64, used: impl Fn(u64) -> u64) -> (u64, u64) {
            let before = (self.misses, self.read);
            for page in 0..count {
                let named = |index: u64| scattered(page * 1000 + index);
                let mut words = [0; WORDS];
                for (index, word) in words.iter_mut().enumerate() {
                    *word = (named(index as u64 / 4) << PAGE_SIZE.ilog2()) + 16;
                }
                self.touch(HERE + page, &words);
                for index in 0..128 {
                    self.touch(named(used(index)), &[7; WORDS]);
                }
            }
            (self.misses - before.0, self.read - before.1)
        }
    }

    const HERE: u64 = 100 << REGION_SHIFT;

    fn scattered(number: u64) -> u64 {
        (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 34
    }

    #[test]
    fn what_lists_name_is_read_once_it_was_seen_to_be_used() {
        let mut program = Program::default();
        program.walk(40, |index| index);
        let (misses, read) = program.walk(200, |index| index);
        assert!(misses < 200 * 129 / 2, "{misses} misses");
        assert!(read > 200 * 128 / 2, "{read} read");
    }

    #[test]
    fn what_is_not_used_is_not_read() {
        let mut program = Program::default();
        let (_, read) = program.walk(200, |index| 500 + index);
        assert_eq!(read, 0);
        program.walk(100, |index| index);
        program.walk(100, |index| 500 + index);
        let (_, read) = program.walk(200, |index| 500 + index);
        assert_eq!(read, 0, "it was used once, and is not any more");
    }

    #[test]
    fn where_nothing_is_used_few_pages_are_looked_at_until_something_is() {
        let mut program = Program::default();
        program.walk(200, |index| 500 + index);
        let before = (program.misses, program.looked_at);
        program.walk(100, |index| 500 + index);
        let (misses, looks) = (program.misses - before.0, program.looked_at - before.1);
        assert!(
            looks * 32 < misses,
            "{looks} of {misses} pages were looked at"
        );
        program.walk(200, |index| index);
        let (_, read) = program.walk(100, |index| index);
        assert!(read > 100 * 128 / 2, "{read} read");
    }
}
