//! Which memory is attached: ranges in address order that do not overlap.
use pagetide_kernel::sync::Mutex;
use pagetide_kernel::{PageNumber, PageRange};

/// The managed ranges.
pub(crate) struct ManagedRanges(Mutex<Vec<PageRange>>);

impl Default for ManagedRanges {
    fn default() -> ManagedRanges {
        ManagedRanges(Mutex::new(Vec::with_capacity(1024)))
    }
}

fn total(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.pages()).sum()
}

impl ManagedRanges {
    /// In a forked child: a thread of the parent's may have been looking at them.
    pub(crate) fn reset_after_fork(&self) {
        // SAFETY: whoever changes them held still at the fork, and no guard lives in the child.
        unsafe { self.0.open_in_child() };
    }

    /// Calls `each` with every range, while nobody adds or removes any. Does not allocate.
    pub(crate) fn each(&self, each: impl FnMut(PageRange)) {
        self.0.lock().iter().copied().for_each(each);
    }

    /// A copy of them.
    pub(crate) fn all(&self) -> Vec<PageRange> {
        self.0.lock().clone()
    }

    /// Adds `range`, joined with its neighbours; the pages managed then.
    pub(crate) fn add(&self, range: PageRange) -> u64 {
        let mut ranges = self.0.lock();
        let first = ranges.partition_point(|r| r.end < range.start);
        let last = ranges.partition_point(|r| r.start <= range.end);
        let merged = ranges[first..last].iter().fold(range, |a, b| PageRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        });
        ranges.splice(first..last, [merged]);
        total(&ranges)
    }

    /// The first part of `range` that is in.
    pub(crate) fn first_in(&self, range: PageRange) -> Option<PageRange> {
        let ranges = self.0.lock();
        let first = ranges.partition_point(|r| r.end <= range.start);
        let part = ranges.get(first)?.intersection(range);
        (!part.is_empty()).then_some(part)
    }

    /// The part of `range` around `page` that is in; none also if somebody is changing them. For
    /// signal handlers too.
    pub(crate) fn part_around(&self, page: PageNumber, range: PageRange) -> Option<PageRange> {
        let ranges = self.0.try_lock()?;
        let first = ranges.partition_point(|r| r.end <= page);
        let part = ranges.get(first).filter(|part| part.contains(page))?;
        Some(part.intersection(range))
    }

    /// Takes `range` out, as far as it is in; the pages managed then.
    pub(crate) fn remove(&self, range: PageRange) -> u64 {
        let mut ranges = self.0.lock();
        let first = ranges.partition_point(|r| r.end <= range.start);
        let last = ranges.partition_point(|r| r.start < range.end);
        if first < last {
            let (start, end) = (ranges[first].start, ranges[last - 1].end);
            let head = PageRange {
                start,
                end: range.start.max(start),
            };
            let tail = PageRange {
                start: range.end.min(end),
                end,
            };
            let rest = [head, tail].into_iter().filter(|r| !r.is_empty());
            ranges.splice(first..last, rest);
        }
        total(&ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_pages(
            calls in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40)
        ) {
            let (ranges, mut model) = (ManagedRanges::default(), BTreeSet::new());
            for (adds, start, pages) in calls {
                let range = PageRange::of(PageNumber(start), pages + 1);
                let total = match adds {
                    true => {
                        model.extend(range.iter());
                        ranges.add(range)
                    }
                    false => {
                        model.retain(|page| !range.contains(*page));
                        ranges.remove(range)
                    }
                };
                prop_assert_eq!(total, model.len() as u64);
                let all = ranges.all();
                prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
                let pages: BTreeSet<_> = all.iter().flat_map(|range| range.iter()).collect();
                prop_assert_eq!(&pages, &model);
                let first = ranges.first_in(PageRange::of(PageNumber(10), 10)).map(|r| r.start);
                prop_assert_eq!(first, model.range(PageNumber(10)..PageNumber(20)).next().copied());
                let around = ranges.part_around(PageNumber(15), PageRange::of(PageNumber(10), 10));
                prop_assert_eq!(around.is_some(), model.contains(&PageNumber(15)));
                if let Some(part) = around {
                    prop_assert!(part.contains(PageNumber(15)));
                    prop_assert!(part.iter().all(|page| model.contains(&page)));
                    let beside = [part.start.0 - 1, part.end.0].into_iter();
                    let goes_on = |page: u64| {
                        (10..20).contains(&page) && model.contains(&PageNumber(page))
                    };
                    prop_assert!(!beside.into_iter().any(goes_on));
                }
            }
        }
    }
}
