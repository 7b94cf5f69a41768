//! [`Method`]: the ways of noticing writes.
use std::fmt;

/// How a [`DirtyTracker`](crate::DirtyTracker) notices writes, best first. Costs are those of a
/// first write to a page after a [`take`](crate::DirtyTracker::take).
///
/// ```
/// use pagetide::track::Method;
///
/// let best = Method::best().expect("mprotect works everywhere");
/// println!("writes are noticed by {best}");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `WP_ASYNC` and `PAGEMAP_SCAN` (Linux 6.7): the kernel takes note by itself; under a
    /// microsecond. Any memory, private file mappings too.
    Async,
    /// Write-protect faults served by a thread, absent pages protected with `WP_UNPOPULATED` (6.4).
    WriteProtectUnpopulated,
    /// The same with every page read beforehand, so that none is absent (5.7; shared memory 5.19).
    /// Takes time at the start, and page tables.
    PreRead,
    /// `mprotect` and a SIGSEGV handler: anywhere. A system call that writes to a protected page
    /// gets `EFAULT`. When the process would have more than `vm.max_map_count` mappings, all pages
    /// are reported as written.
    Mprotect,
    /// The pager of a [`Region`](pagetide_pager::region::Region), whose own write-protect faults
    /// they are. For regions, and for nothing else.
    Pager,
}

impl Method {
    /// All for mappings, best first.
    pub const ALL: [Method; 4] = [
        Method::Async,
        Method::WriteProtectUnpopulated,
        Method::PreRead,
        Method::Mprotect,
    ];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Method::Async => "WP_ASYNC and PAGEMAP_SCAN",
            Method::WriteProtectUnpopulated => "WP_UNPOPULATED and handled faults",
            Method::PreRead => "reading every page, then handled faults",
            Method::Mprotect => "mprotect and SIGSEGV",
            Method::Pager => "the region's pager",
        })
    }
}
