//! Arguments as C gives them: texts, handles, and structures that know their own size.
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::status::Failure;

/// What `pointer` points to.
///
/// # Safety
/// It is null, or a live handle or value of this type for as long as the result is used.
pub unsafe fn borrow<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{name} is NULL")))
}

/// The same, to be changed.
///
/// # Safety
/// As [`borrow`], and nobody else uses it meanwhile.
pub unsafe fn borrow_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::invalid(format!("{name} is NULL")))
}

/// Room for a handle, emptied: what a call that fails leaves there is null.
///
/// # Safety
/// It is null, or may be written.
pub unsafe fn room<'a, T>(out: *mut *mut T, name: &str) -> Result<&'a mut *mut T, Failure> {
    // SAFETY: the caller's promise.
    let out = unsafe { borrow_mut(out, name) }?;
    *out = std::ptr::null_mut();
    Ok(out)
}

/// A handle that the caller frees.
pub fn handle<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a handle back; none if it is null.
///
/// # Safety
/// It is null, or came from [`handle`] and was not taken back.
pub unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// A text of the caller's.
///
/// # Safety
/// It is null, or ends with a zero byte.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(text, name) }?;
    let wrong = |_| Failure::invalid(format!("{name} is not UTF-8"));
    std::str::from_utf8(bytes).map_err(wrong)
}

/// A path of the caller's, of whatever bytes.
///
/// # Safety
/// As [`text`].
pub unsafe fn path<'a>(path: *const c_char, name: &str) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(path, name) }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

unsafe fn bytes<'a>(text: *const c_char, name: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// `count` values of the caller's.
///
/// # Safety
/// `first` is null, or so many values are there.
pub unsafe fn slice<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    check_extent(first, count, name)?;
    match count {
        0 => Ok(&[]),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// The same, to be written.
///
/// # Safety
/// As [`slice`], and nobody else uses them meanwhile.
pub unsafe fn slice_mut<'a, T>(
    first: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [T], Failure> {
    check_extent(first, count, name)?;
    match count {
        0 => Ok(&mut []),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(first, count) }),
    }
}

/// There are as many as an object can have, and somewhere.
fn check_extent<T>(first: *const T, count: usize, name: &str) -> Result<(), Failure> {
    match count.checked_mul(size_of::<T>()) {
        Some(1..) if first.is_null() => Err(Failure::invalid(format!("{name} is NULL"))),
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::invalid(format!(
            "{count} of {name} are more than memory can hold"
        ))),
    }
}

/// A structure whose first member is its size in bytes, so that a program and a library of other
/// versions understand each other: what the caller's lacks is at its default, 0.
///
/// # Safety
/// `repr(C)`, a `usize` first, valid when all its bytes are 0.
pub unsafe trait Versioned: Copy {}

/// The options at `given`; the defaults if it is null.
///
/// # Safety
/// It is null, or begins with the size of what is readable there.
pub unsafe fn options<T: Versioned>(given: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: zeros are valid, by the trait's contract.
    let mut options: T = unsafe { std::mem::zeroed() };
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: a size is the first member.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    check(size, name)?;
    let (known, at) = (size.min(size_of::<T>()), given.cast::<u8>());
    // SAFETY: so much is readable there.
    let beyond = unsafe { std::slice::from_raw_parts(at.add(known), size - known) };
    if beyond.iter().any(|byte| *byte != 0) {
        return Err(Failure::invalid(format!(
            "{name} has members that this version does not know: it was compiled with a newer \
             pagetide.h than this library, {}",
            env!("CARGO_PKG_VERSION")
        )));
    }
    // SAFETY: both are so long, and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(at, (&raw mut options).cast(), known) };
    Ok(options)
}

/// Fills `out` with as much of `value` as the caller's version has.
///
/// # Safety
/// It is null, or begins with the size of what is writable there.
pub unsafe fn fill<T: Versioned>(out: *mut T, value: &T, name: &str) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: a size is the first member.
    let size = unsafe { out.cast::<usize>().read_unaligned() };
    check(size, name)?;
    let first = size_of::<usize>();
    let known = size.min(size_of::<T>()) - first;
    let from = (&raw const *value).cast::<u8>();
    // SAFETY: so much is writable there, and `value` is as long; its size stays the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(first), out.cast::<u8>().add(first), known);
        let beyond = first + known;
        std::ptr::write_bytes(out.cast::<u8>().add(beyond), 0, size - beyond);
    }
    Ok(())
}

/// A size that was not set is a mistake that would go unnoticed.
fn check(size: usize, name: &str) -> Result<(), Failure> {
    match (size_of::<usize>()..=4096).contains(&size) {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "{name}: its size is {size}; set its first member to sizeof of the structure"
        ))),
    }
}
