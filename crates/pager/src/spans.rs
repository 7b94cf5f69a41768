//! Which memory is attached: ranges in address order that do not overlap.
use super::Pager;
use pagetide_kernel::PageRange;

impl Pager {
    /// Adds `range`, joined with its neighbours.
    pub(super) fn add_span(&self, range: PageRange) {
        let mut spans = self
            .spans
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let first = spans.partition_point(|s| s.end < range.start);
        let last = spans.partition_point(|s| s.start <= range.end);
        let merged = spans[first..last].iter().fold(range, |a, b| PageRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        });
        spans.splice(first..last, [merged]);
        self.note_managed(&spans);
    }

    /// The first part of `range` that is in.
    pub fn first_span_in(&self, range: PageRange) -> Option<PageRange> {
        let spans = self
            .spans
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let first = spans.partition_point(|s| s.end <= range.start);
        let part = spans.get(first)?.intersection(range);
        (!part.is_empty()).then_some(part)
    }

    /// Takes `range` out, as far as it is in. The pages' words stay as they are.
    pub fn remove_span(&self, range: PageRange) {
        let mut spans = self
            .spans
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let first = spans.partition_point(|s| s.end <= range.start);
        let last = spans.partition_point(|s| s.start < range.end);
        if first >= last {
            return;
        }
        let head = PageRange {
            start: spans[first].start,
            end: range.start.max(spans[first].start),
        };
        let tail_end = spans[last - 1].end;
        let tail = PageRange {
            start: range.end.min(tail_end),
            end: tail_end,
        };
        spans.splice(
            first..last,
            [head, tail].into_iter().filter(|s| !s.is_empty()),
        );
        self.note_managed(&spans);
    }
}
