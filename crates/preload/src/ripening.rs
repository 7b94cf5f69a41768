//! Memory that is left to the kernel until it has been there for a while: what is new is filled
//! without a fault of the pager's, and what lives shortly is never under it.
use pagetide_kernel::{PageNumber, PageRange, each_gap};

/// How long memory has been there when it is put under the pager.
const RIPE_NS: u64 = 300_000_000;
/// How often all mappings are looked at.
const LOOK_NS: u64 = 100_000_000;
/// Memory ripens in aligned blocks of so many pages, 2 MiB, and only where most of one is filled:
/// the first touch of the rest would cost a fault.
const BLOCK_PAGES: u64 = 512;
/// Most of a block: one page in so many may be missing.
const MISSING_PART: u64 = 4;

/// What was found when it was looked last, in address order, and since when it has been there.
#[derive(Default)]
pub struct Ripening {
    seen: Vec<(PageRange, u64)>,
    looked_ns: u64,
}

impl Ripening {
    /// Whether it is time for the next look.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) >= LOOK_NS
    }

    /// What is ripe of the ranges `found` at `now_ns`, which are in address order and not under
    /// the pager; in pieces that are as long as can be. `populated` calls its second argument with
    /// each run of pages of a range that is filled.
    pub fn look(
        &mut self,
        found: &[PageRange],
        now_ns: u64,
        populated: impl Fn(PageRange, &mut dyn FnMut(PageRange)),
    ) -> Vec<PageRange> {
        self.looked_ns = now_ns;
        let before = std::mem::take(&mut self.seen);
        let mut ripe: Vec<PageRange> = Vec::new();
        let mut at = 0;
        for range in found {
            let mut rest = *range;
            while !rest.is_empty() {
                while before.get(at).is_some_and(|(old, _)| old.end <= rest.start) {
                    at += 1;
                }
                let (end, since_ns) = match before.get(at) {
                    Some((old, since_ns)) if old.start <= rest.start => (old.end, *since_ns),
                    Some((old, _)) => (old.start, now_ns),
                    None => (rest.end, now_ns),
                };
                let piece = PageRange {
                    end: end.min(rest.end),
                    ..rest
                };
                match now_ns.saturating_sub(since_ns) >= RIPE_NS {
                    true => push(&mut ripe, piece),
                    false => self.note(piece, since_ns),
                }
                rest.start = piece.end;
            }
        }
        let (filled, unfilled) = split(&ripe, populated);
        // Looking at what hardly holds anything costs time too: not at each look.
        for piece in unfilled {
            self.note(piece, now_ns);
        }
        self.seen.sort_unstable_by_key(|(piece, _)| piece.start);
        filled
    }

    fn note(&mut self, piece: PageRange, since_ns: u64) {
        match self.seen.last_mut() {
            Some((last, since)) if last.end == piece.start && *since == since_ns => {
                last.end = piece.end;
            }
            _ => self.seen.push((piece, since_ns)),
        }
    }
}

/// Adds a piece to those before it.
fn push(pieces: &mut Vec<PageRange>, piece: PageRange) {
    match pieces.last_mut() {
        Some(last) if last.end == piece.start => last.end = piece.end,
        _ => pieces.push(piece),
    }
}

/// The blocks of `pieces` that are filled for the most part, and what is left of them.
fn split(
    pieces: &[PageRange],
    populated: impl Fn(PageRange, &mut dyn FnMut(PageRange)),
) -> (Vec<PageRange>, Vec<PageRange>) {
    let (mut filled, mut unfilled) = (Vec::new(), Vec::new());
    for piece in pieces {
        // Blocks that hold something, and how many pages.
        let mut blocks: Vec<(PageRange, u64)> = Vec::new();
        populated(*piece, &mut |run| {
            let mut rest = run;
            while !rest.is_empty() {
                let block = block_of(*piece, rest.start);
                let end = rest.end.min(block.end);
                let pages = end.0 - rest.start.0;
                match blocks.last_mut() {
                    Some((last, held)) if *last == block => *held += pages,
                    _ => blocks.push((block, pages)),
                }
                rest.start = end;
            }
        });
        let is_filled = |(block, pages): &(PageRange, u64)| {
            pages * MISSING_PART >= block.pages() * (MISSING_PART - 1)
        };
        let first = filled.len();
        for (block, _) in blocks.into_iter().filter(is_filled) {
            match filled[first..].last_mut() {
                Some(PageRange { end, .. }) if *end == block.start => *end = block.end,
                _ => filled.push(block),
            }
        }
        each_gap(*piece, filled[first..].iter().copied(), |gap| {
            unfilled.push(gap)
        });
    }
    (filled, unfilled)
}

/// The part of `piece` that is in the block of `page`.
fn block_of(piece: PageRange, page: PageNumber) -> PageRange {
    let start = PageNumber(page.0 / BLOCK_PAGES * BLOCK_PAGES);
    PageRange {
        start: start.max(piece.start),
        end: start.add(BLOCK_PAGES).min(piece.end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange {
            start: PageNumber(start),
            end: PageNumber(end),
        }
    }

    /// Looks while the pages of `filled` are.
    fn look(
        ripening: &mut Ripening,
        found: &[PageRange],
        at: u64,
        filled: &[PageRange],
    ) -> Vec<PageRange> {
        let populated = |range: PageRange, each: &mut dyn FnMut(PageRange)| {
            let parts = filled.iter().map(|part| part.intersection(range));
            parts.filter(|part| !part.is_empty()).for_each(each);
        };
        assert!(ripening.is_due(at));
        ripening.look(found, at, populated)
    }

    #[test]
    fn memory_is_ripe_when_it_has_been_there_for_a_while_and_what_grew_later_is() {
        let mut ripening = Ripening::default();
        let all = [range(0, 1 << 20)];
        assert_eq!(look(&mut ripening, &[range(100, 200)], LOOK_NS, &all), []);
        // It has grown at both ends, and something else came.
        let later = [range(50, 300), range(1000, 1010)];
        assert_eq!(look(&mut ripening, &later, 2 * LOOK_NS, &all), []);
        let ripe = look(&mut ripening, &later, LOOK_NS + RIPE_NS, &all);
        assert_eq!(ripe, [range(100, 200)]);
        let rest = [range(50, 100), range(200, 300), range(1000, 1010)];
        let ripe = look(&mut ripening, &rest, 2 * LOOK_NS + RIPE_NS, &all);
        assert_eq!(ripe, rest);
        // What was given up meanwhile begins anew.
        let mut ripening = Ripening::default();
        look(&mut ripening, &later, LOOK_NS, &all);
        look(&mut ripening, &[], 2 * LOOK_NS, &all);
        assert_eq!(look(&mut ripening, &later, LOOK_NS + RIPE_NS, &all), []);
    }

    #[test]
    fn what_is_hardly_filled_stays_the_kernel_s_block_by_block() {
        let mut ripening = Ripening::default();
        let found = [range(100, 8 * BLOCK_PAGES)];
        // The part of the first block, the second but for a few, half of the third, and the sixth.
        let filled = [
            range(100, 2 * BLOCK_PAGES - 10),
            range(2 * BLOCK_PAGES, 2 * BLOCK_PAGES + BLOCK_PAGES / 2),
            range(5 * BLOCK_PAGES, 6 * BLOCK_PAGES),
        ];
        look(&mut ripening, &found, LOOK_NS, &filled);
        let ripe = look(&mut ripening, &found, LOOK_NS + RIPE_NS, &filled);
        let sixth = range(5 * BLOCK_PAGES, 6 * BLOCK_PAGES);
        assert_eq!(ripe, [range(100, 2 * BLOCK_PAGES), sixth]);
        // The rest is looked at again a while later.
        let rest = [
            range(2 * BLOCK_PAGES, 5 * BLOCK_PAGES),
            range(6 * BLOCK_PAGES, 8 * BLOCK_PAGES),
        ];
        let ripe = look(
            &mut ripening,
            &rest,
            LOOK_NS + 2 * RIPE_NS,
            &[range(0, 3 * BLOCK_PAGES)],
        );
        assert_eq!(ripe, [range(2 * BLOCK_PAGES, 3 * BLOCK_PAGES)]);
    }
}
