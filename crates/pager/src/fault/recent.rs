//! Which pages were installed last: one that is wanted again so soon shows a budget that is too
//! small for an instruction.
use pagetide_kernel::PageNumber;

/// Recently installed pages that are watched for coming back at once.
const RECENT: usize = 64;

/// The pages installed last for faults.
pub(super) struct Recent {
    pages: [PageNumber; RECENT],
    next: usize,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent {
            pages: [PageNumber(0); RECENT],
            next: 0,
        }
    }
}

impl Recent {
    /// `page` was installed.
    pub(super) fn note(&mut self, page: PageNumber) {
        self.pages[self.next] = page;
        self.next = (self.next + 1) % RECENT;
    }

    /// Whether `page` was installed a moment ago.
    pub(super) fn contains(&self, page: PageNumber) -> bool {
        self.pages.contains(&page)
    }
}
