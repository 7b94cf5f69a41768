//! Dirty tracking where the kernel does not resolve write faults itself: each first write to a page
//! is served by a handler.
use std::sync::Arc;

use pagetide_kernel::own::Mapping;
use pagetide_kernel::trap::Signal;
use pagetide_kernel::uffd::{Uffd, feature};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::error::{TrackError, system};
use super::faults::{FaultSource, OnWrite, observe, open_for_writes, register, stop_observing};
use super::guard::{Guard, Protector, runs};
use super::memory::Memory;
use super::method::Method;
use super::presence::read_every_page;
use super::spans::Spans;
use pagetide_pager::region::Delivery;
use pagetide_pager::write_notification::{FirstWrite, WriteObserver};

/// Marks pages as written.
struct Marker(Guard);

impl OnWrite for Marker {
    fn uffd(&self) -> Option<&Uffd> {
        self.0.uffd()
    }

    fn on_write(&self, page: PageNumber) -> bool {
        let Some(index) = self.0.spans.index(page) else {
            return false;
        };
        let _serving = self.0.serving();
        // `mprotect` may be refused for want of mappings (vm.max_map_count): opening everything
        // needs one mapping only, and reports more as written than was, which is allowed.
        let opened = self.0.unprotect(index, index + 1).is_ok();
        if !opened {
            self.0.unprotect_all();
        }
        opened
    }

    fn is_open(&self, page: PageNumber) -> bool {
        let index = self.0.spans.index(page);
        index.is_some_and(|index| !self.0.is_protected(index))
    }
}

impl WriteObserver for Marker {
    fn is_write_protected(&self, page: PageNumber) -> bool {
        let index = self.0.spans.index(page);
        index.is_some_and(|index| self.0.is_protected(index))
    }

    fn before_write(&self, page: PageNumber, unprotect: &mut dyn FnMut()) -> FirstWrite {
        let Some(_serving) = self.0.try_serving() else {
            return FirstWrite::Busy;
        };
        unprotect();
        if let Some(index) = self.0.spans.index(page) {
            self.0.mark_writable(index, index + 1);
        }
        FirstWrite::Allowed
    }

    fn wait_for_room(&self) {}
}

/// See the module's text.
pub(crate) struct HandledTracker {
    marker: Arc<Marker>,
    /// One bit a page: taken and not yet reported. In memory of its own: it is written while faults
    /// are barred.
    taken: Mapping,
    // Dropped after everything is open.
    faults: Option<FaultSource>,
}

impl HandledTracker {
    pub fn new(method: Method, spans: Spans) -> Result<HandledTracker, TrackError> {
        let (regions, mappings) = (spans.regions().count(), spans.mappings().count());
        if regions > 0 && mappings > 0 {
            return Err(TrackError::Mixed);
        }
        if (method == Method::Pager) != (regions > 0) {
            return Err(TrackError::Method(method, Errno::OPNOTSUPP));
        }
        let protector = match method {
            Method::Mprotect => Some(Protector::Mprotect),
            Method::Pager => None,
            _ => {
                let uffd = open_for_writes(Delivery::Thread)?;
                let unpopulated = uffd.features() & feature::WP_UNPOPULATED != 0;
                if method == Method::WriteProtectUnpopulated && !unpopulated {
                    return Err(TrackError::Feature("WP_UNPOPULATED (Linux 6.4)"));
                }
                register(&uffd, &spans)?;
                Some(Protector::Uffd(uffd))
            }
        };
        let marker = Arc::new(Marker(Guard::new(spans, protector)));
        let faults = match method {
            Method::Mprotect => FaultSource::by_signal(&marker, Signal::Segv, &marker.0.spans)?,
            Method::Pager => FaultSource::none(),
            _ => FaultSource::by_thread(&marker)?,
        };
        if method == Method::PreRead {
            for span in marker.0.spans.iter() {
                read_every_page(span.range)?;
            }
        }
        let words = marker.0.spans.pages().div_ceil(64);
        let taken = Mapping::new(words * size_of::<u64>()).map_err(system("mmap"))?;
        observe(&marker.0.spans, &marker)?;
        let mut tracker = HandledTracker {
            taken,
            marker,
            faults: Some(faults),
        };
        tracker.take(|_, _, _| {})?;
        Ok(tracker)
    }

    /// Reports the pages written since, each run with its span and the span's number, and protects
    /// them again. What could not be reported, because of an error or because `found` panicked, is
    /// reported by the next take.
    pub fn take(
        &mut self,
        mut found: impl FnMut(usize, &Memory, PageRange),
    ) -> Result<(), TrackError> {
        let guard = &self.marker.0;
        let words = guard.spans.pages().div_ceil(64);
        // SAFETY: the mapping holds so many words, zeros at first, and is this tracker's, which is
        // borrowed mutably.
        let taken =
            unsafe { std::slice::from_raw_parts_mut(self.taken.as_ptr().cast::<u64>(), words) };
        // Faults wait meanwhile: a page opened and written while its mark is not set yet would be
        // reported one take late.
        guard
            .barred(|| {
                guard.protecting(|| guard.protect_writable(|number, marks| taken[number] |= marks))
            })
            .map_err(system("protecting memory"))?;
        for (number, word) in taken.iter_mut().enumerate() {
            for (first, count) in runs(*word) {
                let (mut index, end) = (number * 64 + first, number * 64 + first + count);
                while index < end {
                    let span = guard.spans.span_of(index);
                    let to = guard.spans.indexes(span).end.min(end);
                    found(span, guard.spans.span(span), guard.spans.range(index, to));
                    index = to;
                }
            }
            *word = 0;
        }
        Ok(())
    }
}

impl Drop for HandledTracker {
    fn drop(&mut self) {
        self.marker.0.unprotect_all();
        stop_observing(&self.marker.0.spans);
        drop(self.faults.take());
    }
}
