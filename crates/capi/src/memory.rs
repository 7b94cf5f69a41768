//! Spans of memory that trackers and snapshotters are made over.
use std::ffi::c_char;

use pagetide::track::Memory;

use crate::arguments::{borrow, slice, text};
use crate::region::RegionHandle;
use crate::status::Failure;

/// A named span: a region, or `length` bytes at `address`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Span {
    name: *const c_char,
    region: *const RegionHandle,
    address: *mut u8,
    length: usize,
}

impl Span {
    /// Where memory of a snapshot is to be; the rest of the span says nothing then.
    ///
    /// # Safety
    /// As the header says of a span.
    pub unsafe fn name_and_address(&self) -> Result<(&str, usize), Failure> {
        // SAFETY: passed on.
        let name = unsafe { text(self.name, "the name of a place") }?;
        Ok((name, self.address as usize))
    }
}

/// The spans of the caller's.
///
/// # Safety
/// As the header says of a span.
pub unsafe fn memory(spans: *const Span, count: usize) -> Result<Vec<Memory>, Failure> {
    // SAFETY: passed on.
    let spans = unsafe { slice(spans, count, "spans") }?;
    spans
        .iter()
        .enumerate()
        .map(|(number, span)| {
            // SAFETY: the same.
            let name = unsafe { text(span.name, &format!("the name of span {number}")) }?;
            let memory = match span.region.is_null() {
                // SAFETY: a handle, says the header.
                false => Memory::region(name, unsafe { borrow(span.region, "region") }?.region()?),
                // SAFETY: it stays mapped, says the header.
                true => unsafe { Memory::from_raw_parts(name, span.address, span.length) },
            };
            Ok(memory?)
        })
        .collect()
}
