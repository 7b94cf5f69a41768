//! Accessed bits, by read-write protection that the kernel ends at the first touch (Linux 7.3).
use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};

use crate::handles::Handles;
use crate::page::second_chance::Watcher;

/// Watches a program's pages with the pager's own descriptors.
pub(super) struct AccessedBits<'p>(pub &'p Handles);

/// Each run of neighbours in `pages`, with the index of its first.
fn runs(pages: &[PageNumber]) -> impl Iterator<Item = (usize, PageRange)> {
    let mut first = 0;
    pages.chunk_by(|a, b| a.0 + 1 == b.0).map(move |run| {
        let (index, start) = (first, run[0]);
        first += run.len();
        let end = start.add(run.len() as u64);
        (index, PageRange { start, end })
    })
}

impl Watcher for AccessedBits<'_> {
    /// Memory that the kernel refused to register for it cannot be watched. A page that cannot just
    /// now, as an event is under way, counts as used when its turn comes, and is watched then.
    fn watch(&mut self, pages: &[PageNumber], mut cannot: impl FnMut(usize)) {
        let protect = |range| self.0.uffd.read_write_protect(range, true);
        let fails = |result| !matches!(result, Ok(()) | Err(Stop::EventPending));
        for (first, run) in runs(pages) {
            if fails(protect(run)) {
                // It may cross mappings.
                for (index, page) in run.iter().enumerate() {
                    if fails(protect(PageRange::one(page))) {
                        cannot(first + index);
                    }
                }
            }
        }
    }

    fn each_unused(&mut self, pages: &[PageNumber], mut unused: impl FnMut(usize)) {
        for (first, run) in runs(pages) {
            let report = |found: PageRange| {
                let from = first + (found.start.0 - run.start.0) as usize;
                (from..from + found.pages() as usize).for_each(&mut unused);
            };
            let _ = self.0.pagemap.not_accessed(run, report);
        }
    }
}
