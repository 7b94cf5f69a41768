//! [`DirtyTracker`]: which pages were written since it was last asked.
use std::fmt;
use std::ops::Range;

use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::uffd::{self, Uffd, feature};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use super::faults::register;
use super::handled::HandledTracker;
use super::memory::{Memory, Spans, TrackError, system};

/// How writes are noticed, best first. Costs are those of a first write to a page after a
/// [`DirtyTracker::take`].
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

    /// The best that works for private anonymous memory of this process, found by making a tracker
    /// over a scratch page and writing to it.
    pub fn best() -> Option<Method> {
        Method::ALL
            .into_iter()
            .find(|method| method.works().is_ok())
    }

    /// Tries the method on a scratch page.
    pub fn works(self) -> Result<(), TrackError> {
        let scratch = pagetide_kernel::own::Mapping::new(PAGE_SIZE).map_err(system("mmap"))?;
        // SAFETY: the scratch page outlives the tracker and is known to nobody else.
        let memory = unsafe { Memory::mapping("scratch", scratch.as_ptr(), PAGE_SIZE) }?;
        let mut tracker = DirtyTracker::with_method(self, vec![memory])?;
        // SAFETY: ours, and mapped writable.
        unsafe { scratch.as_ptr().write_volatile(1) };
        match tracker.take()?.len() {
            1 => Ok(()),
            _ => Err(TrackError::Method(self, Errno::IO)),
        }
    }
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

enum Way {
    Async {
        uffd: Uffd,
        pagemap: Pagemap,
        spans: Spans,
    },
    Handled(HandledTracker),
}

/// Tells which pages of some memory were written since it was last asked, untouched pages included.
///
/// A write between two takes is reported by the second, by the first if that was under way, or by
/// both; never by none.
///
/// A page that the program empties (`MADV_DONTNEED`) counts as written with [`Method::Async`]. With
/// the others memory must not be emptied while it is tracked: the kernel drops the protection along
/// with the page, and later writes to it would be missed.
pub struct DirtyTracker {
    method: Method,
    way: Way,
    /// Found by a take that failed.
    unreported: Vec<Range<usize>>,
}

impl DirtyTracker {
    /// Tracks `memory` from now on, by the best method there is for it.
    ///
    /// # Errors
    /// When no method works; the error is that of the best one.
    pub fn new(memory: Vec<Memory>) -> Result<DirtyTracker, TrackError> {
        if memory.iter().any(|memory| memory.served.is_some()) {
            return DirtyTracker::with_method(Method::Pager, memory);
        }
        let mut first = None;
        for method in Method::ALL {
            match DirtyTracker::with_method(method, memory.clone()) {
                Ok(tracker) => return Ok(tracker),
                Err(
                    error @ (TrackError::Taken(..) | TrackError::Overlap(..) | TrackError::Nothing),
                ) => {
                    return Err(error);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.expect("there is more than one method"))
    }

    /// Tracks `memory` from now on, by `method`.
    pub fn with_method(method: Method, memory: Vec<Memory>) -> Result<DirtyTracker, TrackError> {
        let spans = Spans::new(memory)?;
        let way = match method {
            Method::Async if spans.regions().next().is_none() => start_async(spans)?,
            Method::Async => return Err(TrackError::Method(method, Errno::OPNOTSUPP)),
            method => Way::Handled(HandledTracker::new(method, spans)?),
        };
        Ok(DirtyTracker {
            method,
            way,
            unreported: Vec::new(),
        })
    }

    /// How writes are noticed.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The address ranges written since the last take (or since the tracker was made), whole pages,
    /// in the order the memory was given in.
    ///
    /// # Errors
    /// When the kernel fails; what was found until then is reported by the next take.
    pub fn take(&mut self) -> Result<Vec<Range<usize>>, TrackError> {
        let mut ranges = std::mem::take(&mut self.unreported);
        let result = self.take_pages(|run| {
            let run = run.address()..run.address() + run.bytes();
            match ranges.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => ranges.push(run),
            }
        });
        match result {
            Ok(()) => Ok(ranges),
            Err(error) => {
                self.unreported = ranges;
                Err(error)
            }
        }
    }

    /// Calls `found` with each run of pages written since the last take.
    pub fn take_pages(&mut self, mut found: impl FnMut(PageRange)) -> Result<(), TrackError> {
        match &mut self.way {
            Way::Async { pagemap, spans, .. } => {
                for span in spans.iter() {
                    pagemap
                        .written(span.range, true, &mut found)
                        .map_err(system("PAGEMAP_SCAN"))?;
                }
                Ok(())
            }
            Way::Handled(tracker) => tracker.take(found),
        }
    }
}

impl fmt::Debug for DirtyTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirtyTracker")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

fn start_async(spans: Spans) -> Result<Way, TrackError> {
    // The kernel resolves the faults, so even a descriptor for user mode only serves system calls
    // as well.
    let open = uffd::open_for_user_mode;
    let has = Uffd::kernel_features(open()?).map_err(system("UFFDIO_API"))?;
    let needed = feature::WP_ASYNC | feature::WP_UNPOPULATED;
    if has & needed != needed {
        return Err(TrackError::Feature("WP_ASYNC (Linux 6.7)"));
    }
    let wanted = needed | feature::PAGEFAULT_FLAG_WP | has & feature::WP_HUGETLBFS_SHMEM;
    let uffd = Uffd::negotiate(open()?, wanted).map_err(system("UFFDIO_API"))?;
    register(&uffd, &spans)?;
    for span in spans.iter() {
        uffd.write_protect(span.range, true)
            .map_err(|_| TrackError::Method(Method::Async, Errno::INVAL))?;
    }
    let pagemap = Pagemap::open();
    for span in spans.iter() {
        pagemap
            .written(span.range, false, |_| {})
            .map_err(|errno| TrackError::Method(Method::Async, errno))?;
    }
    Ok(Way::Async {
        uffd,
        pagemap,
        spans,
    })
}

impl Drop for DirtyTracker {
    fn drop(&mut self) {
        if let Way::Async { uffd, spans, .. } = &self.way {
            for span in spans.iter() {
                // SAFETY: write-protect mode alone: no page's contents depend on the registration.
                let _ = unsafe { uffd.unregister(span.range) };
            }
        }
    }
}
