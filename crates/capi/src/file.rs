//! `pagetide_locked_file`: a file of which only parts are used, locked as they are.
use std::ffi::{c_char, c_int, c_void};

use pagetide::lock::{Access, LockedFile, Sharing};

use crate::arguments::{Versioned, borrow, handle, options, path, room, take};
use crate::lock::mode;
use crate::status::{Failure, from_io, guard, quietly};

pub struct FileHandle(LockedFile);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct FileOptions {
    size: usize,
    offset: u64,
    length: u64,
    mode: c_int,
    access: c_int,
    private_copy: c_int,
    reserved: c_int,
}

// SAFETY: a size first; zeros are the defaults.
unsafe impl Versioned for FileOptions {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_locked_file_open(
    file: *const c_char,
    given: *const FileOptions,
    out: *mut *mut FileHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, given) = unsafe { (room(out, "out")?, options(given, "options")?) };
        // SAFETY: the same.
        let file = unsafe { path(file, "path") }?;
        let mut builder = LockedFile::builder().access(match given.access {
            0 => Access::Adaptive,
            1 => Access::Random,
            2 => Access::Exact,
            3 => Access::Sequential,
            4 => Access::Normal,
            other => {
                return Err(Failure::invalid(format!(
                    "access is {other}; expected one of PAGETIDE_ACCESS_*"
                )));
            }
        });
        if given.mode != 0 {
            builder = builder.mode(mode(given.mode)?);
        }
        if given.private_copy != 0 {
            builder = builder.sharing(Sharing::Private);
        }
        if given.length > 0 {
            builder = builder.range(given.offset, given.length);
        } else if given.offset > 0 {
            return Err(Failure::invalid(format!(
                "offset is {} and length 0; give the length, or neither for the whole file",
                given.offset
            )));
        }
        *out = handle(FileHandle(builder.open(file)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_locked_file_data(file: *const FileHandle) -> *const c_void {
    // SAFETY: null or a handle, says the header.
    match unsafe { file.as_ref() } {
        Some(FileHandle(file)) => file.as_ptr().cast(),
        None => std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_locked_file_length(file: *const FileHandle) -> usize {
    // SAFETY: null or a handle, says the header.
    unsafe { file.as_ref() }.map_or(0, |FileHandle(file)| file.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_locked_file_load(
    file: *const FileHandle,
    offset: usize,
    length: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of a handle.
        let FileHandle(file) = unsafe { borrow(file, "file") }?;
        let end = offset.checked_add(length).filter(|end| *end <= file.len());
        let end = end.ok_or_else(|| {
            Failure::invalid(format!(
                "{length} bytes at {offset} reach beyond the file's {}",
                file.len()
            ))
        })?;
        let part = offset..end;
        file.load(std::slice::from_ref(&part))
            .map_err(|error| from_io(&error, &error))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_locked_file_close(file: *mut FileHandle) {
    // SAFETY: as the header says of a handle.
    quietly(|| drop(unsafe { take(file) }));
}
