//! The spans of memory that are tracked together, and the indexes of their pages.
use std::sync::Arc;

use pagetide_kernel::{PageNumber, PageRange};
use pagetide_pager::region::Served;

use super::error::TrackError;
use super::memory::Memory;

/// Spans laid end to end, so that each page has an index.
#[derive(Debug)]
pub(crate) struct Spans {
    spans: Vec<Memory>,
    /// Index of each span's first page, and the number of pages at the end.
    first: Vec<usize>,
}

impl Spans {
    pub fn new(spans: Vec<Memory>) -> Result<Spans, TrackError> {
        let mut first = vec![0];
        for (number, span) in spans.iter().enumerate() {
            let before = &spans[..number];
            if let Some(other) = before.iter().find(|other| {
                other.name == span.name || !other.range.intersection(span.range).is_empty()
            }) {
                return Err(TrackError::Overlap(other.name.clone(), span.name.clone()));
            }
            first.push(first[number] + span.range.pages() as usize);
        }
        if spans.is_empty() {
            return Err(TrackError::Nothing);
        }
        Ok(Spans { spans, first })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.spans.iter()
    }

    /// Spans that are regions.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.spans.iter().filter_map(|span| span.served.as_ref())
    }

    /// Spans that are not.
    pub fn mappings(&self) -> impl Iterator<Item = &Memory> {
        self.spans.iter().filter(|span| span.served.is_none())
    }

    pub fn pages(&self) -> usize {
        self.first[self.spans.len()]
    }

    /// The index of `page`. Does not allocate.
    pub fn index(&self, page: PageNumber) -> Option<usize> {
        let number = self
            .spans
            .iter()
            .position(|span| span.range.contains(page))?;
        Some(self.first[number] + (page.0 - self.spans[number].range.start.0) as usize)
    }

    /// The span that page `index` is in.
    pub fn span_of(&self, index: usize) -> usize {
        self.first.partition_point(|first| *first <= index) - 1
    }

    pub fn span(&self, number: usize) -> &Memory {
        &self.spans[number]
    }

    /// Indexes of the pages of span `number`.
    pub fn indexes(&self, number: usize) -> std::ops::Range<usize> {
        self.first[number]..self.first[number + 1]
    }

    pub fn page(&self, index: usize) -> PageNumber {
        let span = self.span_of(index);
        self.spans[span]
            .range
            .start
            .add((index - self.first[span]) as u64)
    }

    /// The pages with indexes `from..to`, which lie in one span.
    pub fn range(&self, from: usize, to: usize) -> PageRange {
        let start = self.page(from);
        PageRange {
            start,
            end: start.add((to - from) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Backing;

    fn memory(name: &str, start: u64, pages: u64) -> Memory {
        let start = PageNumber(start);
        Memory {
            name: name.into(),
            range: PageRange {
                start,
                end: start.add(pages),
            },
            backing: Backing::Anonymous,
            served: None,
            _kept: None,
        }
    }

    #[test]
    fn indexes_and_pages_are_each_others_inverse() {
        let spans = Spans::new(vec![
            memory("a", 100, 3),
            memory("b", 50, 2),
            memory("c", 103, 4),
        ])
        .unwrap();
        assert_eq!(spans.pages(), 9);
        for index in 0..9 {
            assert_eq!(spans.index(spans.page(index)), Some(index));
        }
        assert_eq!(
            (spans.span_of(2), spans.span_of(3), spans.span_of(5)),
            (0, 1, 2)
        );
        assert_eq!(spans.index(PageNumber(52)), None);
    }

    #[test]
    fn spans_that_share_pages_or_names_are_refused() {
        assert!(Spans::new(vec![memory("a", 1, 3), memory("b", 3, 2)]).is_err());
        assert!(Spans::new(vec![memory("a", 1, 1), memory("a", 3, 2)]).is_err());
        assert!(Spans::new(vec![]).is_err());
    }
}
