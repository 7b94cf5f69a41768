//! [`DirtyTracker`]: which pages were written since it was last asked.
use std::fmt;
use std::ops::Range;

use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::uffd::{self, Uffd, feature};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use super::error::{TrackError, system};
use super::faults::register;
use super::handled::HandledTracker;
use super::mapping::Mapping;
use super::memory::Memory;
use super::method::Method;
use super::spans::Spans;

impl Method {
    /// The best that works for private anonymous memory of this process, found by making a tracker
    /// over a scratch page and writing to it.
    pub fn best() -> Option<Method> {
        Method::ALL
            .into_iter()
            .find(|method| method.works().is_ok())
    }

    /// Tries the method on a scratch page.
    pub fn works(self) -> Result<(), TrackError> {
        let mut scratch = Mapping::new(PAGE_SIZE)?;
        let memory = Memory::mapping("scratch", &scratch)?;
        let mut tracker = DirtyTracker::with_method(self, vec![memory])?;
        scratch.as_mut_slice()[0] = std::hint::black_box(1);
        match tracker.take()?.len() {
            1 => Ok(()),
            _ => Err(TrackError::Method(self, Errno::IO)),
        }
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

/// Whole pages that were written, one after the other.
///
/// ```
/// use pagetide::track::DirtyRange;
///
/// /// What changed, to be sent to a copy of the table.
/// fn changed<'t>(table: &'t [u8], written: &DirtyRange) -> &'t [u8] {
///     &table[written.offsets.clone()]
/// }
/// let written = DirtyRange { span: 0, offsets: 0..4096, addresses: 0x7000..0x8000 };
/// assert_eq!(changed(&[0; 8192], &written).len(), written.len());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyRange {
    /// Which of the spans that the tracker was made with, counted from 0.
    pub span: usize,
    /// Bytes from the beginning of that span.
    pub offsets: Range<usize>,
    /// Their addresses.
    pub addresses: Range<usize>,
}

impl DirtyRange {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Never true: what was written is at least a page.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }
}

/// Tells which pages of some memory were written since it was last asked, untouched pages included.
///
/// A write between two takes is reported by the second, by the first if that was under way, or by
/// both; never by none.
///
/// A page that the program empties (`MADV_DONTNEED`) counts as written with [`Method::Async`]. With
/// the others memory must not be emptied while it is tracked: the kernel drops the protection along
/// with the page, and later writes to it would be missed.
///
/// ```
/// use pagetide::track::{DirtyTracker, Mapping, Memory};
///
/// let mut table = Mapping::new(1 << 20)?;
/// let mut tracker = DirtyTracker::new(vec![Memory::mapping("table", &table)?])?;
/// table.as_mut_slice()[5000] = 1;
/// for range in tracker.take()? {
///     println!("to be sent: bytes {:?}", range.offsets); // 4096..8192
/// }
/// assert!(tracker.take()?.is_empty(), "nothing was written since");
/// # Ok::<(), pagetide::track::TrackError>(())
/// ```
pub struct DirtyTracker {
    method: Method,
    way: Way,
    /// Found by a take that failed.
    unreported: Vec<DirtyRange>,
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

    /// What was written since the last take (or since the tracker was made), in the order the
    /// memory was given in.
    ///
    /// # Errors
    /// When the kernel fails; what was found until then is reported by the next take.
    pub fn take(&mut self) -> Result<Vec<DirtyRange>, TrackError> {
        let mut ranges: Vec<DirtyRange> = std::mem::take(&mut self.unreported);
        let result = self.take_each(|run| match ranges.last_mut() {
            Some(last) if (last.span, last.offsets.end) == (run.span, run.offsets.start) => {
                last.offsets.end = run.offsets.end;
                last.addresses.end = run.addresses.end;
            }
            _ => ranges.push(run),
        });
        match result {
            Ok(()) => Ok(ranges),
            Err(error) => {
                self.unreported = ranges;
                Err(error)
            }
        }
    }

    /// Calls `found` with what was written since the last take, in pieces, without allocating.
    ///
    /// # Errors
    /// When the kernel fails.
    pub fn take_each(&mut self, mut found: impl FnMut(DirtyRange)) -> Result<(), TrackError> {
        let in_span = |span: usize, memory: &Memory, run: PageRange| {
            let offset = run.address() - memory.range.address();
            DirtyRange {
                span,
                offsets: offset..offset + run.bytes(),
                addresses: run.address()..run.address() + run.bytes(),
            }
        };
        match &mut self.way {
            Way::Async { pagemap, spans, .. } => {
                for (number, span) in spans.iter().enumerate() {
                    let found = |run| found(in_span(number, span, run));
                    pagemap
                        .written(span.range, true, found)
                        .map_err(system("PAGEMAP_SCAN"))?;
                }
                Ok(())
            }
            Way::Handled(tracker) => {
                tracker.take(|number, span, run| found(in_span(number, span, run)))
            }
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
