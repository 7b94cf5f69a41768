//! Which pages are locked, in which mode, for whom: an interval map, pure, tested without a kernel.
use std::collections::BTreeMap;

use pagetide_kernel::{PageNumber, PageRange};

use super::flags::Mode;

/// Who holds a page locked.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Holders {
    /// The process, by the calls; locking again replaces the mode.
    pub process: Option<Mode>,
    /// Other code, by bare system calls, when the first owner came. Noted only while there are
    /// owners: the last one leaves the lock as it was found.
    pub foreign: Option<Mode>,
    /// Owners that want it faulted in.
    pub full: u32,
    /// Owners that want it locked on fault.
    pub on_fault: u32,
}

impl Holders {
    /// Nobody.
    pub const NONE: Holders = Holders {
        process: None,
        foreign: None,
        full: 0,
        on_fault: 0,
    };

    /// The mode the kernel is asked for: full if anyone wants it full; `None` if nobody holds it.
    pub fn mode(&self) -> Option<Mode> {
        let owners = match (self.full, self.on_fault) {
            (0, 0) => None,
            (0, _) => Some(Mode::OnFault),
            _ => Some(Mode::Full),
        };
        self.process.max(self.foreign).max(owners)
    }

    /// How many hold it, the process counted as one; foreign code not.
    pub fn count(&self) -> u32 {
        u32::from(self.process.is_some()) + self.full + self.on_fault
    }

    /// Whether an owner other than the process holds it.
    pub fn owned(&self) -> bool {
        self.full > 0 || self.on_fault > 0
    }

    /// With the process's lock set to `mode`: the kernel's lock does not nest, so this replaces a
    /// foreign one, too.
    #[must_use]
    pub fn with_process(self, mode: Option<Mode>) -> Holders {
        Holders {
            process: mode,
            foreign: None,
            ..self
        }
    }

    /// With a foreign lock in `mode` that has been found.
    #[must_use]
    pub fn with_foreign(self, mode: Mode) -> Holders {
        Holders {
            foreign: Some(mode),
            ..self
        }
    }

    /// Nobody, where only foreign code is left, which is none of the registry's business.
    #[must_use]
    pub fn settled(self) -> Holders {
        if self.count() == 0 {
            Holders::NONE
        } else {
            self
        }
    }

    /// With one owner more.
    #[must_use]
    pub fn held(mut self, mode: Mode) -> Holders {
        match mode {
            Mode::Full => self.full += 1,
            Mode::OnFault => self.on_fault += 1,
        }
        self
    }

    /// With one owner less. [`Holders::mode`] of the result is what the kernel is to be left with;
    /// [`Holders::settled`] what is to be noted.
    #[must_use]
    pub fn released(mut self, mode: Mode) -> Holders {
        let count = match mode {
            Mode::Full => &mut self.full,
            Mode::OnFault => &mut self.on_fault,
        };
        *count = count.saturating_sub(1);
        self
    }
}

/// A run of pages with the same holders.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its pages.
    pub range: PageRange,
    /// Who holds them.
    pub holders: Holders,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    end: u64,
    holders: Holders,
}

/// The interval map. Neighbours with equal holders are one segment, as the kernel merges its own;
/// pages that nobody holds are in none.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Registry {
    /// By first page; entries are disjoint and not empty.
    segments: BTreeMap<u64, Entry>,
    /// Segments held by an owner other than the process.
    owned: usize,
    /// In all segments.
    pages: u64,
    /// Used by `update`, kept for its memory.
    taken: Vec<(u64, Entry)>,
}

fn range(start: u64, end: u64) -> PageRange {
    PageRange {
        start: PageNumber(start),
        end: PageNumber(end),
    }
}

impl Registry {
    /// An empty one.
    pub const fn new() -> Registry {
        Registry {
            segments: BTreeMap::new(),
            owned: 0,
            pages: 0,
            taken: Vec::new(),
        }
    }

    /// Segments in it.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Pages that anyone holds.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether any owner other than the process holds anything.
    pub fn has_owners(&self) -> bool {
        self.owned > 0
    }

    /// Every segment in address order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        self.segments.iter().map(|(start, entry)| Segment {
            range: range(*start, entry.end),
            holders: entry.holders,
        })
    }

    /// Who holds `page`.
    pub fn holders(&self, page: PageNumber) -> Holders {
        match self.segments.range(..=page.0).next_back() {
            Some((_, entry)) if entry.end > page.0 => entry.holders,
            _ => Holders::NONE,
        }
    }

    /// Each segment's part in `within`, in order; pages that nobody holds are in none.
    pub fn within(&self, within: PageRange) -> impl Iterator<Item = Segment> {
        let first = self.segments.range(..within.start.0).next_back();
        let rest = self
            .segments
            .range(within.start.0..within.end.0.max(within.start.0));
        first
            .into_iter()
            .chain(rest)
            .filter_map(move |(start, entry)| {
                let part = range(*start, entry.end).intersection(within);
                (!part.is_empty()).then_some(Segment {
                    range: part,
                    holders: entry.holders,
                })
            })
    }

    /// Replaces the holders of every page of `within` by what `change` makes of them, splitting and
    /// merging as needed.
    pub fn update(&mut self, within: PageRange, mut change: impl FnMut(Holders) -> Holders) {
        let (start, end) = (within.start.0, within.end.0);
        if start >= end {
            return;
        }
        if self.update_alone(start, end, &mut change) {
            return;
        }
        // Everything that overlaps, and the neighbours that touch: those may merge.
        let mut taken = std::mem::take(&mut self.taken);
        taken.clear();
        if let Some((before, entry)) = self.segments.range(..start).next_back()
            && entry.end >= start
        {
            taken.push((*before, *entry));
        }
        taken.extend(self.segments.range(start..=end).map(|(s, e)| (*s, *e)));

        let mut builder = Builder {
            registry: self,
            taken: &taken,
            next: None,
        };
        let mut at = start;
        for (first, entry) in &taken {
            if *first < start {
                builder.push(*first, entry.end.min(start), entry.holders);
            }
            let (inner, inner_end) = ((*first).max(start), entry.end.min(end));
            if inner < inner_end {
                builder.push(at, inner, change(Holders::NONE));
                builder.push(inner, inner_end, change(entry.holders));
                at = inner_end;
            }
            if entry.end > end {
                if at < end {
                    builder.push(at, end, change(Holders::NONE));
                    at = end;
                }
                builder.push((*first).max(end), entry.end, entry.holders);
            }
        }
        builder.push(at, end, change(Holders::NONE));
        builder.finish();
        self.taken = taken;
    }

    /// The two common cases, at the least cost: pages of which nobody knows and that touch no
    /// segment, and exactly one segment that is given up.
    fn update_alone(
        &mut self,
        start: u64,
        end: u64,
        change: &mut impl FnMut(Holders) -> Holders,
    ) -> bool {
        match self.segments.range(..=end).next_back() {
            Some((first, entry)) if entry.end >= start => {
                let given_up = *first == start
                    && entry.end == end
                    && !entry.holders.owned()
                    && change(entry.holders) == Holders::NONE;
                if given_up {
                    self.segments.remove(&start);
                    self.pages -= end - start;
                }
                given_up
            }
            _ => {
                let holders = change(Holders::NONE);
                if holders != Holders::NONE {
                    self.owned += usize::from(holders.owned());
                    self.pages += end - start;
                    self.segments.insert(start, Entry { end, holders });
                }
                true
            }
        }
    }

    fn uncount(&mut self, start: u64, entry: &Entry) {
        self.owned -= usize::from(entry.holders.owned());
        self.pages -= entry.end - start;
    }

    /// Forgets who held `within`.
    pub fn forget(&mut self, within: PageRange) {
        self.update(within, |_| Holders::NONE);
    }

    /// Pages moved: what was held at `from` is held at `to`, which has at least as many pages as
    /// matter; what was at `to` before is forgotten. `from` is forgotten. Where `to` is longer, its
    /// tail is held as the last page of `from` was by the process; where shorter, the rest is gone.
    pub fn relocate(&mut self, from: PageRange, to: PageRange) {
        let moved: Vec<Segment> = self.within(from).collect();
        let grown = from
            .pages()
            .checked_sub(1)
            .map(|last| self.holders(from.start.add(last)))
            .and_then(|holders| holders.mode());
        self.forget(from);
        self.forget(to);
        for segment in moved {
            let place = |page: PageNumber| to.start.0 + (page.0 - from.start.0);
            let part = range(place(segment.range.start), place(segment.range.end)).intersection(to);
            self.update(part, |_| segment.holders);
        }
        if to.pages() > from.pages() && grown.is_some() {
            let tail = range(to.start.0 + from.pages(), to.end.0);
            self.update(tail, |holders| holders.with_process(grown));
        }
    }
}

/// Puts segments back in order, merged; writes to the tree only what differs from what was taken.
struct Builder<'a> {
    registry: &'a mut Registry,
    taken: &'a [(u64, Entry)],
    next: Option<(u64, Entry)>,
}

impl Builder<'_> {
    fn push(&mut self, start: u64, end: u64, holders: Holders) {
        if start >= end || holders == Holders::NONE {
            return;
        }
        match &mut self.next {
            Some((_, entry)) if entry.end == start && entry.holders == holders => entry.end = end,
            _ => {
                let done = self.next.replace((start, Entry { end, holders }));
                self.put(done);
            }
        }
    }

    /// Entries that were there before `start` and are not any more go first: what is put later may
    /// begin where one of them did.
    fn put(&mut self, entry: Option<(u64, Entry)>) {
        let Some((start, entry)) = entry else { return };
        while let Some(((old, old_entry), rest)) = self.taken.split_first() {
            if *old > start {
                break;
            }
            self.taken = rest;
            self.registry.uncount(*old, old_entry);
            if *old < start {
                self.registry.segments.remove(old);
            }
        }
        self.registry.owned += usize::from(entry.holders.owned());
        self.registry.pages += entry.end - start;
        self.registry.segments.insert(start, entry);
    }

    fn finish(mut self) {
        let last = self.next.take();
        self.put(last);
        for (old, entry) in self.taken {
            self.registry.uncount(*old, entry);
            self.registry.segments.remove(old);
        }
    }
}
