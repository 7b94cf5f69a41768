//! `pagetide_region`, `pagetide_pin`.
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ops::Range;

use pagetide::{Delivery, PinGuard, Policy, Region};

use crate::arguments::{Versioned, borrow, borrow_mut, fill, handle, options, room, take, text};
use crate::here::{Here, process};
use crate::status::{Code, Failure, guard, quietly};

/// The region's handle.
pub struct RegionHandle(Here<Region>);

impl RegionHandle {
    /// The region, in the process that made it.
    pub(crate) fn region(&self) -> Result<&Region, Failure> {
        self.0.get()
    }
}

/// A pin in the caller's memory. The region is not freed while it holds a page.
#[repr(C)]
pub struct Pin {
    /// [`process`] where it was made; 0 while it holds nothing.
    made_by: u64,
    guard: MaybeUninit<PinGuard<'static>>,
}

// `struct pagetide_pin` of the header.
const _: () = assert!(size_of::<Pin>() == 4 * size_of::<u64>() && align_of::<Pin>() == 8);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RegionOptions {
    size: usize,
    resident: u64,
    store: *const c_char,
    delivery: c_int,
    policy: c_int,
}

// SAFETY: a size first; zeros are the defaults.
unsafe impl Versioned for RegionOptions {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_new(
    length: usize,
    given: *const RegionOptions,
    out: *mut *mut RegionHandle,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, given) = unsafe { (room(out, "out")?, options(given, "options")?) };
        let mut builder = Region::builder()
            .length(length)
            .delivery(delivery(given.delivery)?)
            .policy(match given.policy {
                0 => Policy::default(),
                1 => Policy::S3Fifo,
                2 => Policy::Fifo,
                other => {
                    return Err(Failure::invalid(format!(
                        "policy is {other}; expected one of PAGETIDE_POLICY_*"
                    )));
                }
            });
        if given.resident > 0 {
            builder = builder.resident(given.resident);
        }
        if !given.store.is_null() {
            // SAFETY: as the header says of the options.
            builder = builder.store_uri(unsafe { text(given.store, "store") }?);
        }
        *out = handle(RegionHandle(Here::new(builder.build()?)));
        Ok(())
    })
}

pub fn delivery(number: c_int) -> Result<Delivery, Failure> {
    match number {
        0 => Ok(Delivery::Thread),
        1 => Ok(Delivery::Signal),
        other => Err(Failure::invalid(format!(
            "delivery is {other}; expected PAGETIDE_DELIVERY_THREAD or PAGETIDE_DELIVERY_SIGNAL"
        ))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_free(region: *mut RegionHandle) -> c_int {
    guard(|| {
        if region.is_null() {
            return Ok(());
        }
        // SAFETY: as the header says of a handle. A forked child has none of its parent's pins.
        let pinned = unsafe { (*region).0.get() }.map_or(0, |here| here.pager().pinned());
        if pinned > 0 {
            return Err(Failure::new(
                Code::Busy,
                format!(
                    "{pinned} pages of the region are pinned; release the pins before it is freed"
                ),
            ));
        }
        // SAFETY: the same; it is not used again, says the header.
        drop(unsafe { take(region) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_data(region: *const RegionHandle) -> *mut u8 {
    // SAFETY: null or a handle, says the header.
    match unsafe { region.as_ref() } {
        Some(RegionHandle(shared)) => shared.anywhere().as_ptr(),
        None => std::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_length(region: *const RegionHandle) -> usize {
    // SAFETY: null or a handle, says the header.
    unsafe { region.as_ref() }.map_or(0, |RegionHandle(shared)| shared.anywhere().len())
}

/// The bytes `offset..offset + length`; the region says whether it has them.
fn range(offset: usize, length: usize) -> Result<Range<usize>, Failure> {
    let end = offset.checked_add(length);
    let end = end
        .ok_or_else(|| Failure::invalid(format!("offset {offset} and length {length} overflow")))?;
    Ok(offset..end)
}

/// Runs `call` with the region.
unsafe fn with(
    region: *const RegionHandle,
    call: impl FnOnce(&Region) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: as the header says of a handle.
    guard(|| call(unsafe { borrow(region, "region") }?.region()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_set_budget(
    region: *const RegionHandle,
    resident: u64,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with(region, |region| Ok(region.set_budget(resident)?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_prefetch(
    region: *const RegionHandle,
    offset: usize,
    length: usize,
) -> c_int {
    let call = |region: &Region| Ok(region.prefetch(range(offset, length)?)?);
    // SAFETY: passed on.
    unsafe { with(region, call) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_evict(
    region: *const RegionHandle,
    offset: usize,
    length: usize,
) -> c_int {
    let call = |region: &Region| Ok(region.evict(range(offset, length)?)?);
    // SAFETY: passed on.
    unsafe { with(region, call) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_pin(
    region: *const RegionHandle,
    offset: usize,
    length: usize,
    out: *mut Pin,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says of the arguments.
        let (out, region) = unsafe { (borrow_mut(out, "out")?, borrow(region, "region")?) };
        out.made_by = 0;
        // Not by `?`, which copies the guard twice more.
        match region.region()?.pin(range(offset, length)?) {
            Ok(guard) if length > 0 => {
                // SAFETY: only the lifetime changes. `pagetide_region_free` refuses a region with
                // pinned pages; in a forked child, which may free the handle, it is not dropped.
                let guard =
                    unsafe { std::mem::transmute::<PinGuard<'_>, PinGuard<'static>>(guard) };
                out.guard.write(guard);
                out.made_by = region.0.made_by();
                Ok(())
            }
            Ok(_of_nothing) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_pin_release(pin: *mut Pin) {
    quietly(|| {
        // SAFETY: null, or a pin, says the header.
        let Some(pin) = (unsafe { pin.as_mut() }) else {
            return;
        };
        if std::mem::take(&mut pin.made_by) == process() {
            // SAFETY: `made_by` is this process only while the guard is there, and 0 from here on.
            unsafe { pin.guard.assume_init_drop() };
        }
    });
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RegionStats {
    size: usize,
    budget_bytes: u64,
    resident_bytes: u64,
    resident_bytes_max: u64,
    store_bytes: u64,
    store_pages: u64,
    faults: u64,
    faults_waited: u64,
    zero_faults: u64,
    fetches: u64,
    fetched_pages: u64,
    prefetched_pages: u64,
    evictions: u64,
    clean_drops: u64,
    writebacks: u64,
    errors: u64,
    fault_mean_ns: u64,
    fault_p50_ns: u64,
    fault_p99_ns: u64,
    fault_max_ns: u64,
}

// SAFETY: a size first; zeros are valid.
unsafe impl Versioned for RegionStats {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_region_stats(
    region: *const RegionHandle,
    out: *mut RegionStats,
) -> c_int {
    let call = |region: &Region| {
        let now = region.stats();
        let stats = RegionStats {
            size: 0,
            budget_bytes: now.budget_bytes,
            resident_bytes: now.resident_bytes,
            resident_bytes_max: now.resident_bytes_max,
            store_bytes: now.store_bytes,
            store_pages: now.store_pages,
            faults: now.faults,
            faults_waited: now.faults_waited,
            zero_faults: now.zero_faults,
            fetches: now.fetches,
            fetched_pages: now.fetched_pages,
            prefetched_pages: now.prefetched_pages,
            evictions: now.evictions,
            clean_drops: now.clean_drops,
            writebacks: now.writebacks,
            errors: now.errors,
            fault_mean_ns: now.fault_latency_ns.mean,
            fault_p50_ns: now.fault_latency_ns.p50,
            fault_p99_ns: now.fault_latency_ns.p99,
            fault_max_ns: now.fault_latency_ns.max,
        };
        // SAFETY: as the header says of `out`.
        unsafe { fill(out, &stats, "stats") }
    };
    // SAFETY: passed on.
    unsafe { with(region, call) }
}
