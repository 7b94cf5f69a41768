//! Memory that could not be attached, and when to try it again.
use pagetide_kernel::PageRange;

/// How long the first refusal holds. Memory that was unmapped while it was being attached may be
/// there again by then, and nothing else tells: a break that shrinks and grows back leaves no trace
/// that the scanner could see.
const FIRST_NS: u64 = 5_000_000;
/// How many times longer the next one holds.
const LONGER: u64 = 8;
/// The longest: of memory that userfaultfd does not serve, or that another serves, nothing is to be
/// expected.
const LONGEST_NS: u64 = 1_000_000_000;

struct Refused {
    range: PageRange,
    holds_ns: u64,
    again_ns: u64,
}

/// The ranges refused since the mappings changed last.
#[derive(Default)]
pub struct Retry(Vec<Refused>);

impl Retry {
    /// Everything may be different now.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Those not to be tried at `now_ns`.
    pub fn for_now(&self, now_ns: u64) -> impl Iterator<Item = PageRange> {
        let held = self.0.iter().filter(move |r| now_ns < r.again_ns);
        held.map(|refusal| refusal.range)
    }

    /// `range` was refused at `now_ns`.
    pub fn note(&mut self, range: PageRange, now_ns: u64) {
        // Not tried again for so long after it might have been: it is not there any more.
        self.0.retain(|r| now_ns < r.again_ns + LONGEST_NS);
        let known = self.0.iter().position(|r| r.range == range);
        let holds_ns = known.map_or(FIRST_NS, |at| {
            let before = self.0.swap_remove(at);
            (before.holds_ns * LONGER).min(LONGEST_NS)
        });
        self.0.push(Refused {
            range,
            holds_ns,
            again_ns: now_ns + holds_ns,
        });
    }

    /// Whether one refused for the first time is to be tried again soon, whatever else there is to
    /// look at.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        let soon = |r: &Refused| r.holds_ns == FIRST_NS && now_ns < r.again_ns + 4 * FIRST_NS;
        self.0.iter().any(soon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_kernel::PageNumber;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange {
            start: PageNumber(start),
            end: PageNumber(start + pages),
        }
    }

    #[test]
    fn a_refusal_holds_longer_each_time_and_a_second_at_most() {
        let mut retry = Retry::default();
        let mut now = 0;
        let mut held = Vec::new();
        for _ in 0..6 {
            retry.note(range(10, 2), now);
            assert_eq!(retry.for_now(now).collect::<Vec<_>>(), [range(10, 2)]);
            let again = retry.0[0].again_ns;
            assert_eq!(retry.for_now(again).count(), 0);
            held.push((again - now) / 1_000_000);
            now = again;
        }
        assert_eq!(held, [5, 40, 320, 1000, 1000, 1000]);
        assert_eq!(retry.0.len(), 1);
    }

    #[test]
    fn a_first_refusal_is_fresh_for_a_while_unless_it_is_repeated_or_forgotten() {
        let mut retry = Retry::default();
        assert!(!retry.is_fresh(0));
        retry.note(range(1, 1), 0);
        retry.note(range(5, 1), 0);
        retry.note(range(5, 1), 5_000_000);
        assert!(retry.is_fresh(5_000_000));
        retry.note(range(1, 1), 5_000_000);
        assert!(!retry.is_fresh(5_000_000));
        retry.note(range(2, 1), 6_000_000);
        assert!(retry.is_fresh(30_000_000));
        assert!(!retry.is_fresh(40_000_000), "it is gone, or nobody looks");
        retry.clear();
        assert_eq!(retry.for_now(6_000_000).count(), 0);
    }

    #[test]
    fn what_is_never_tried_again_is_forgotten() {
        let mut retry = Retry::default();
        for start in 0..100 {
            retry.note(range(start, 1), start * 100_000_000);
        }
        assert!(retry.0.len() <= 12, "{}", retry.0.len());
    }
}
