//! `pagetide_snapshotter`, `pagetide_snapshot`.
use std::ffi::{c_char, c_int, c_void};

use pagetide::track::snapshot::format::SnapshotId;
use pagetide::track::{ParkThreads, Plan, Report, Snapshot, Snapshotter};

use crate::arguments::{Versioned, borrow, fill, handle, options, path, room, take};
use crate::here::Here;
use crate::memory::{Span, memory};
use crate::region::delivery;
use crate::status::{Code, Failure, guard, quietly};

pub struct SnapshotterHandle(Here<Snapshotter>);
pub struct SnapshotHandle(Here<Snapshot>);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SnapshotterOptions {
    size: usize,
    extra_memory: usize,
    delivery: c_int,
    incremental: c_int,
}

// SAFETY: a size first; zeros are the defaults.
unsafe impl Versioned for SnapshotterOptions {}

type Arm = unsafe extern "C" fn(arming: *mut c_void);
type Hold = unsafe extern "C" fn(arm: Arm, arming: *mut c_void, context: *mut c_void);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SnapshotOptions {
    size: usize,
    since: *const u8,
    pre_arm: c_int,
    reserved: c_int,
    hold: Option<Hold>,
    hold_context: *mut c_void,
}

// SAFETY: a size first; zeros are the defaults.
unsafe impl Versioned for SnapshotOptions {}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SnapshotReport {
    size: usize,
    id: [u8; 16],
    pause_ns: u64,
    duration_ns: u64,
    pages: u64,
    zero_pages: u64,
    faults: u64,
    copies_aside: u64,
    waits: u64,
    extra_bytes: u64,
    file_bytes: u64,
}

// SAFETY: a size first; zeros are valid.
unsafe impl Versioned for SnapshotReport {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshotter_new(
    spans: *const Span,
    count: usize,
    given: *const SnapshotterOptions,
    out: *mut *mut SnapshotterHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, given) = unsafe { (room(out, "out")?, options(given, "options")?) };
        let mut builder = Snapshotter::builder()
            .delivery(delivery(given.delivery)?)
            .incremental(given.incremental != 0);
        if given.extra_memory > 0 {
            builder = builder.extra_memory(given.extra_memory);
        }
        // SAFETY: the same.
        for memory in unsafe { memory(spans, count) }? {
            builder = builder.memory(memory);
        }
        *out = handle(SnapshotterHandle(Here::new(builder.build()?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshotter_free(snapshotter: *mut SnapshotterHandle) {
    // SAFETY: as the header says of a handle.
    quietly(|| drop(unsafe { take(snapshotter) }));
}

/// Calls the closure that `arming` points to.
unsafe extern "C" fn arm(arming: *mut c_void) {
    // SAFETY: made so in `pagetide_snapshot_start`, whose frame is still there.
    let arming = unsafe { &mut *arming.cast::<&mut dyn FnMut()>() };
    quietly(arming);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshot_start(
    snapshotter: *const SnapshotterHandle,
    file: *const c_char,
    given: *const SnapshotOptions,
    out: *mut *mut SnapshotHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, given) = unsafe { (room(out, "out")?, options(given, "options")?) };
        // SAFETY: the same.
        let snapshotter = unsafe { borrow(snapshotter, "snapshotter") }?.0.get()?;
        // SAFETY: the same.
        let file = unsafe { path(file, "path") }?;
        let mut plan = match given.since.is_null() {
            true => Plan::full(),
            // SAFETY: 16 bytes, says the header.
            false => Plan::since(SnapshotId(unsafe { *given.since.cast::<[u8; 16]>() })),
        };
        if given.pre_arm != 0 {
            plan = plan.pre_armed();
        }
        let snapshot = match given.hold {
            None => snapshotter.snapshot(file, plan, ParkThreads::default()),
            Some(hold) => snapshotter.snapshot(file, plan, |mut arming: &mut dyn FnMut()| {
                let arming = (&raw mut arming).cast();
                // SAFETY: the caller's function, called as the header says.
                unsafe { hold(arm, arming, given.hold_context) }
            }),
        };
        *out = handle(SnapshotHandle(Here::new(snapshot?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshot_progress(
    snapshot: *const SnapshotHandle,
    done: *mut u64,
    total: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of a handle.
        let progress = unsafe { borrow(snapshot, "snapshot") }?.0.get()?.progress();
        for (out, pages) in [(done, progress.0), (total, progress.1)] {
            // SAFETY: null or room for a number, says the header.
            if let Some(out) = unsafe { out.as_mut() } {
                *out = pages;
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshot_cancel(snapshot: *const SnapshotHandle) -> c_int {
    guard(|| {
        // SAFETY: as the header says of a handle.
        unsafe { borrow(snapshot, "snapshot") }?.0.get()?.cancel();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshot_wait(
    snapshot: *mut SnapshotHandle,
    report: *mut SnapshotReport,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of a handle; this call ends it.
        let snapshot = unsafe { take(snapshot) };
        let snapshot = snapshot.ok_or_else(|| Failure::invalid("snapshot is NULL"))?;
        let told = snapshot.0.take()?.wait()?;
        match report.is_null() {
            true => Ok(()),
            // SAFETY: as the header says of `report`.
            false => unsafe { fill(report, &told.into(), "report") },
        }
    })
}

impl From<Report> for SnapshotReport {
    fn from(report: Report) -> SnapshotReport {
        SnapshotReport {
            size: 0,
            id: report.id.0,
            pause_ns: report.pause.as_nanos() as u64,
            duration_ns: report.duration.as_nanos() as u64,
            pages: report.pages,
            zero_pages: report.zero_pages,
            faults: report.faults,
            copies_aside: report.copies_aside,
            waits: report.waits,
            extra_bytes: report.extra_bytes,
            file_bytes: report.file_bytes,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_snapshot_id(file: *const c_char, id: *mut u8) -> c_int {
    guard(|| {
        if id.is_null() {
            return Err(Failure::new(Code::Invalid, "id is NULL"));
        }
        // SAFETY: as the header says of the arguments.
        let file = unsafe { path(file, "path") }?;
        let image = pagetide::track::Image::open(file)?;
        let found = image.files()[0].header().id.0;
        // SAFETY: room for 16 bytes, says the header.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), id, found.len()) };
        Ok(())
    })
}
