//! The process that is measured: maps the file in one way, and reads random bytes of it.
#![allow(unsafe_code)] // maps a file and reads it through raw pointers, as any program does
use std::fs::File;
use std::ops::Range;
use std::time::Instant;

use pagetide::lock::{self, Access, LockFlags, LockedFile};
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::{PageRange, mlock, residency};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::handler;
use super::strategy::Strategy;
use super::task::{Findings, Order, Task};

/// Accesses that are prefetched together.
const PREFETCH: usize = 256;

/// The offsets to read, the same for every strategy.
pub fn offsets(order: Order, size: u64, count: u64) -> impl Iterator<Item = usize> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    (0..count).map(move |index| {
        if order == Order::Sequential {
            return (index * 4096 % size.next_multiple_of(4096)) as usize;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((u128::from(state) * u128::from(size)) >> 64) as usize
    })
}

enum Mapping {
    Plain(*mut u8, usize),
    Locked(LockedFile),
}

impl Mapping {
    fn start(&self) -> *const u8 {
        match self {
            Mapping::Plain(start, _) => *start,
            Mapping::Locked(file) => file.as_ptr(),
        }
    }

    fn range(&self) -> PageRange {
        match self {
            Mapping::Plain(start, len) => PageRange::covering(*start as usize, *len),
            Mapping::Locked(file) => file.pages(),
        }
    }
}

fn map(file: &File, size: usize) -> Result<*mut u8, String> {
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe {
        mmap(
            std::ptr::null_mut(),
            size,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )
    };
    Ok(start.map_err(|error| format!("mmap: {error}"))?.cast())
}

fn set_up(task: &Task, size: usize) -> Result<Mapping, String> {
    let file =
        File::open(&task.file).map_err(|error| format!("{}: {error}", task.file.display()))?;
    let access = match task.strategy {
        Strategy::Adaptive => Some(Access::Adaptive),
        Strategy::Prefetch => Some(Access::Random),
        Strategy::OnFaultExact => Some(Access::Exact),
        _ => None,
    };
    if let Some(access) = access {
        let locked = LockedFile::builder().access(access).map(file);
        return locked
            .map(Mapping::Locked)
            .map_err(|error| error.to_string());
    }
    let start = map(&file, size)?;
    let lock = |flags| lock::mlock2(start, size, flags).map_err(|error| error.to_string());
    match task.strategy {
        Strategy::Whole => lock(LockFlags::LOCKED)?,
        Strategy::OnFault => lock(LockFlags::ONFAULT)?,
        Strategy::OnFaultRandom => {
            mlock::hint(
                PageRange::covering(start as usize, size),
                mlock::Hint::Random,
            )
            .map_err(|error| error.to_string())?;
            lock(LockFlags::ONFAULT)?;
        }
        strategy => {
            if let Some(batch) = strategy.batch() {
                handler::install(start, size, batch)?;
            }
        }
    }
    Ok(Mapping::Plain(start, size))
}

/// Does what `task` asks.
pub fn work(task: &Task) -> Result<Findings, String> {
    let size = std::fs::metadata(&task.file)
        .map_err(|error| format!("{}: {error}", task.file.display()))?
        .len();
    let faults = residency::major_faults();
    let began = Instant::now();
    let mapping = set_up(task, size as usize)?;
    let ready = Instant::now();
    let checksum = process(task, &mapping, size)?;
    let done = Instant::now();
    let major_faults = residency::major_faults() - faults;
    let mut resident_bytes = 0;
    Pagemap::open()
        .populated(mapping.range(), |run, _| {
            resident_bytes += run.bytes() as u64
        })
        .map_err(|error| format!("pagemap: {error}"))?;
    let mut touched = vec![false; size.div_ceil(4096) as usize];
    offsets(task.order, size, task.accesses).for_each(|offset| touched[offset / 4096] = true);
    let touched = touched.into_iter().filter(|touched| *touched).count();
    // Unmapping what is not measured is left to the end of the process.
    std::mem::forget(mapping);
    Ok(Findings {
        setup_ms: (ready - began).as_secs_f64() * 1e3,
        processing_ms: (done - ready).as_secs_f64() * 1e3,
        resident_bytes,
        touched_bytes: touched as u64 * 4096,
        major_faults,
        checksum,
    })
}

/// The accesses, and the sum of what they read.
fn process(task: &Task, mapping: &Mapping, size: u64) -> Result<u64, String> {
    let start = mapping.start();
    let mut checksum = 0u64;
    let mut read = |offset: usize| {
        // SAFETY: `offset` is below the size of the file, all of which is mapped.
        checksum = checksum.wrapping_add(u64::from(unsafe { start.add(offset).read_volatile() }));
    };
    let mut coming = offsets(task.order, size, task.accesses).peekable();
    match mapping {
        Mapping::Locked(file) if task.strategy == Strategy::Prefetch => {
            while coming.peek().is_some() {
                let next: Vec<usize> = coming.by_ref().take(PREFETCH).collect();
                let parts: Vec<Range<usize>> = next.iter().map(|at| *at..at + 1).collect();
                file.prefetch(&parts)
                    .map_err(|error| format!("prefetch: {error}"))?;
                next.into_iter().for_each(&mut read);
            }
        }
        _ if task.strategy == Strategy::EachAccess => {
            for offset in coming {
                mlock::mlock2(start as usize + offset, 1, 0)
                    .map_err(|error| format!("mlock: {error}"))?;
                read(offset);
            }
        }
        _ => coming.for_each(read),
    }
    Ok(checksum)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Mapping::Plain(start, size) = *self {
            // SAFETY: mapped by `map`, used no more.
            let _ = unsafe { rustix::mm::munmap(start.cast(), size) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_spread_over_the_file_and_the_same_each_time() {
        let all: Vec<usize> = offsets(Order::Random, 1 << 20, 4096).collect();
        assert_eq!(
            all,
            offsets(Order::Random, 1 << 20, 4096).collect::<Vec<_>>()
        );
        assert!(all.iter().all(|offset| *offset < 1 << 20));
        let pages: std::collections::HashSet<usize> =
            all.iter().map(|offset| offset / 4096).collect();
        assert_eq!(pages.len(), 256);
    }
}
