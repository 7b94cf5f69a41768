//! `pagetide_tracker`.
use std::ffi::{c_int, c_void};

use pagetide::track::{DirtyRange, DirtyTracker, Method};

use crate::arguments::{borrow, borrow_mut, handle, room, take};
use crate::here::Here;
use crate::memory::{Span, memory};
use crate::status::{Failure, guard, quietly};

pub struct TrackerHandle(Here<DirtyTracker>);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Dirty {
    span: usize,
    offset: usize,
    length: usize,
}

type Found = unsafe extern "C" fn(dirty: *const Dirty, context: *mut c_void);

const METHODS: [Method; 5] = [
    Method::Async,
    Method::WriteProtectUnpopulated,
    Method::PreRead,
    Method::Mprotect,
    Method::Pager,
];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_tracker_new(
    spans: *const Span,
    count: usize,
    method: c_int,
    out: *mut *mut TrackerHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, memory) = unsafe { (room(out, "out")?, memory(spans, count)?) };
        let number = usize::try_from(method).ok();
        let tracker = match number.map(|number| METHODS.get(number.wrapping_sub(1))) {
            Some(Some(method)) => DirtyTracker::with_method(*method, memory)?,
            Some(None) if method == 0 => DirtyTracker::new(memory)?,
            _ => {
                return Err(Failure::invalid(format!(
                    "method is {method}; expected one of PAGETIDE_METHOD_*"
                )));
            }
        };
        *out = handle(TrackerHandle(Here::new(tracker)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_tracker_method(tracker: *const TrackerHandle) -> c_int {
    // SAFETY: null or a handle, says the header.
    match unsafe { borrow(tracker, "tracker") } {
        Ok(TrackerHandle(tracker)) => {
            let number = METHODS
                .iter()
                .position(|method| *method == tracker.anywhere().method());
            number.map_or(0, |number| number as c_int + 1)
        }
        Err(_) => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_tracker_take(
    tracker: *mut TrackerHandle,
    found: Option<Found>,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of a handle.
        let tracker = unsafe { borrow_mut(tracker, "tracker") }?.0.get_mut()?;
        let found = found.ok_or_else(|| Failure::invalid("found is NULL"))?;
        // Neighbours in one piece, without a list of them all.
        let mut last: Option<Dirty> = None;
        let tell = |dirty: Dirty| {
            // SAFETY: the caller's function, called as the header says.
            unsafe { found(&raw const dirty, context) }
        };
        let result = tracker.take_each(|DirtyRange { span, offsets, .. }| match &mut last {
            Some(last) if last.span == span && last.offset + last.length == offsets.start => {
                last.length += offsets.len();
            }
            last => {
                let next = Dirty {
                    span,
                    offset: offsets.start,
                    length: offsets.len(),
                };
                if let Some(ended) = last.replace(next) {
                    tell(ended);
                }
            }
        });
        if let Some(ended) = last {
            tell(ended);
        }
        Ok(result?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_tracker_free(tracker: *mut TrackerHandle) {
    // SAFETY: as the header says of a handle.
    quietly(|| drop(unsafe { take(tracker) }));
}
