//! `pagetide_restored`: memory that comes back from a snapshot.
use std::ffi::{c_char, c_int, c_void};

use pagetide::track::{
    FileError, Image, LazyPlan, Mapping, Restored, WorkingSet, read_region, restore,
};

use crate::arguments::{
    Versioned, borrow, handle, options, path, room, slice, slice_mut, take, text,
};
use crate::here::Here;
use crate::memory::Span;
use crate::status::{Code, Failure, from_io, guard, quietly};

pub struct RestoredHandle(Here<Restored>);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RestoreOptions {
    size: usize,
    replay: *const c_char,
    record: c_int,
    no_background: c_int,
    places: *const Span,
    place_count: usize,
}

// SAFETY: a size first; zeros are the defaults.
unsafe impl Versioned for RestoreOptions {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_restore(
    file: *const c_char,
    given: *const RestoreOptions,
    out: *mut *mut RestoredHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, given) = unsafe { (room(out, "out")?, options(given, "options")?) };
        // SAFETY: the same.
        let image = Image::open(unsafe { path(file, "path") }?)?;
        let mut plan = LazyPlan::default();
        if given.record != 0 {
            plan = plan.record();
        }
        if given.no_background != 0 {
            plan = plan.without_background();
        }
        // SAFETY: the same.
        for place in unsafe { slice(given.places, given.place_count, "places") }? {
            // SAFETY: the same.
            let (name, address) = unsafe { place.name_and_address() }?;
            plan = plan.at(name, address);
        }
        if !given.replay.is_null() {
            // SAFETY: the same.
            let set = unsafe { path(given.replay, "replay") }?;
            let set = WorkingSet::load(set, image.files()[0].header().id);
            plan = plan.replay(set.map_err(|error| from_io(&error, &error))?);
        }
        *out = handle(RestoredHandle(Here::new(restore(image, plan)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_restored_data(
    restored: *const RestoredHandle,
    name: *const c_char,
    data: *mut *mut c_void,
    length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (data, name) = unsafe { (room(data, "data")?, text(name, "name")?) };
        // SAFETY: as the header says of a handle.
        let restored = unsafe { borrow(restored, "restored") }?.0.get()?;
        let found: &Mapping = restored.region(name).ok_or_else(|| {
            let names = restored.image().regions().iter();
            let names: Vec<&str> = names.map(|region| region.name.as_str()).collect();
            let there = names.join("', '");
            Failure::new(
                Code::NotFound,
                format!("the snapshot has no memory named '{name}'; it has '{there}'"),
            )
        })?;
        *data = found.as_ptr().cast();
        // SAFETY: null or room for a number, says the header.
        if let Some(length) = unsafe { length.as_mut() } {
            *length = found.len();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_restored_wait(restored: *const RestoredHandle) -> c_int {
    // SAFETY: as the header says of a handle.
    guard(|| Ok(unsafe { borrow(restored, "restored") }?.0.get()?.wait()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_restored_save_working_set(
    restored: *const RestoredHandle,
    file: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (restored, file) = unsafe { (borrow(restored, "restored")?, path(file, "path")?) };
        let saved = restored.0.get()?.working_set().save(file);
        saved.map_err(|error| from_io(&error, &error))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_restored_free(restored: *mut RestoredHandle) {
    // SAFETY: as the header says of a handle.
    quietly(|| drop(unsafe { take(restored) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_read_memory(
    file: *const c_char,
    name: *const c_char,
    into: *mut c_void,
    length: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (file, name) = unsafe { (path(file, "path")?, text(name, "name")?) };
        let image = Image::open(file)?;
        // SAFETY: so much may be written there, and nobody else uses it, says the header.
        let into = unsafe { slice_mut(into.cast::<u8>(), length, "into") }?;
        image.region(name)?;
        read_region(&image, name, into).map_err(|error| match error {
            // It is there, so it is the length.
            FileError::Region { .. } => Failure::invalid(error.to_string()),
            error => error.into(),
        })
    })
}
