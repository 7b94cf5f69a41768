//! The calls of the contract, for the process.
use pagetide_kernel::limits::LockLimits;
use pagetide_kernel::smaps::Area;
use pagetide_kernel::{PageRange, mlock as kernel, smaps};
use rustix::io::Errno;

use super::error::LockError;
use super::flags::{AllFlags, LockFlags, Mode};
use super::fork::state;
use super::registry::{Holders, Segment};
use super::state::{Guard, State, errno_of, everything, gaps, mode_of, pages};

/// Locks the pages that hold any byte of `address..address + len` in exactly one mode; a lock in
/// the other mode is replaced. The whole range is charged to the lock limit at once.
///
/// # Errors
/// `EINVAL` flags are not exactly one mode, or the range wraps around; `EPERM` the limit is 0;
/// `ENOMEM` over the limit (nothing has changed), or a part of the range is not mapped (what comes
/// before it stays locked, as the system call leaves it) or cannot be faulted in (full mode; the
/// range stays locked).
pub fn mlock2(address: *const u8, len: usize, flags: LockFlags) -> Result<(), LockError> {
    const CALL: &str = "mlock2";
    let Some(mode) = flags.mode() else {
        return Err(LockError::flags(
            CALL,
            flags.bits(),
            "LOCKED (1) or ONFAULT (2)",
        ));
    };
    let mut state = state();
    let result = kernel::mlock2(address as usize, len, mode.kernel());
    let range = pages(address as usize, len)
        .map_err(|errno| LockError::of_limit(CALL, result.err().unwrap_or(errno), len as u64))?;
    match result {
        Ok(()) => {
            note_locked(&mut state, range, mode);
            Ok(())
        }
        Err(errno) => {
            let error = LockError::of_limit(CALL, errno, uncharged(&mut state, range));
            // Over the limit nothing is changed. At a hole, or where faulting in failed, the kernel
            // keeps what it did.
            if errno != Errno::INVAL && errno != Errno::PERM && error.report().is_none() {
                adopt(&mut state, range, mode);
            }
            Err(error)
        }
    }
}

/// After the kernel has locked `range` in `mode` for the process.
pub(super) fn note_locked(state: &mut State, range: PageRange, mode: Mode) {
    state.registry.set_process(range, Some(mode));
    if state.registry.has_owners() {
        restore_modes(state, range, mode);
    }
}

/// The kernel has all of `range` in `mode`; puts back the mode of pages that an owner wants full.
fn restore_modes(state: &mut State, range: PageRange, mode: Mode) {
    for Segment { range, holders } in state.registry.now().within(range) {
        if let Some(wanted) = holders.mode().filter(|wanted| *wanted != mode) {
            // Charged already, and pages of full ones are present. Refused only where the limit
            // has been lowered below what is locked: then they stay as they are, locked.
            let _ = wanted.lock(range);
        }
    }
}

/// Bytes of `range` that are not charged to the lock limit yet: what a lock of it needs. Where the
/// kernel's list cannot be read, by the registry.
pub(super) fn uncharged(state: &mut State, range: PageRange) -> u64 {
    let bytes = |part: PageRange| part.intersection(range).bytes() as u64;
    let charged: u64 = match smaps::locked(None) {
        Ok(areas) => areas.iter().map(|area| bytes(area.range())).sum(),
        Err(_) => {
            let known = state.registry.now().within(range);
            known.map(|segment| bytes(segment.range)).sum()
        }
    };
    (range.bytes() as u64).saturating_sub(charged)
}

/// Registers what the kernel has locked of `range` although the call failed: what comes before a
/// hole, or all of it where faulting in failed.
fn adopt(state: &mut State, range: PageRange, mode: Mode) {
    let head = kernel::mapped_head(range);
    let parts = match smaps::locked(None) {
        Ok(areas) => areas
            .iter()
            .filter(|area| !area.is_secret())
            .map(|area| area.range().intersection(head))
            .collect(),
        // No descriptor left, say. Should it be more than the kernel locked: that is found out when
        // the two are compared, where an entry too few would not be.
        Err(_) if head != range || mode == Mode::Full => vec![head],
        Err(_) => Vec::new(),
    };
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        note_locked(state, part, mode);
    }
}

/// Unlocks the range, whoever of the process locked it and in whatever mode; foreign locks in it,
/// too. Pages that an owner holds stay.
///
/// # Errors
/// `EINVAL` the range wraps around; `ENOMEM` a part of it is not mapped (what comes before it is
/// unlocked).
pub fn munlock(address: *const u8, len: usize) -> Result<(), LockError> {
    const CALL: &str = "munlock";
    let mut state = state();
    let range = pages(address as usize, len).map_err(|errno| LockError::plain(CALL, errno))?;
    if !state.registry.has_owners() {
        // Nothing to keep: one call, and the kernel's own errors.
        let result = kernel::munlock(address as usize, len);
        if result.is_ok() {
            state.registry.forget(range);
            return Ok(());
        }
        drop_unlocked(&mut state, range);
        return result.map_err(|errno| LockError::of_limit(CALL, errno, 0));
    }
    unlock(&mut state, CALL, range, |_| true, true)
}

/// Unlocks those pages of the range that are locked in one of the modes in `flags`. The others,
/// foreign locks among them, are left as they are: that is success, too.
///
/// # Errors
/// `EINVAL` flags are not one or both modes, or the range wraps around; `ENOMEM` a part of it is
/// not mapped (what comes before it is done).
pub fn munlock2(address: *const u8, len: usize, flags: LockFlags) -> Result<(), LockError> {
    const CALL: &str = "munlock2";
    if !flags.is_subset() {
        return Err(LockError::flags(
            CALL,
            flags.bits(),
            "LOCKED (1), ONFAULT (2) or both (3)",
        ));
    }
    let range = pages(address as usize, len).map_err(|errno| LockError::plain(CALL, errno))?;
    let mut state = state();
    if state.future_ever {
        // Mappings come and go locked without the registry's knowledge then.
        state
            .reconcile()
            .map_err(|errno| LockError::plain(CALL, errno))?;
    }
    unlock(&mut state, CALL, range, |mode| flags.names(mode), false)
}

/// Takes the process's lock from pages of `range` whose mode is `wanted`; with `unknown`, also
/// unlocks what the registry does not know.
fn unlock(
    state: &mut State,
    call: &'static str,
    range: PageRange,
    wanted: impl Fn(Mode) -> bool,
    unknown: bool,
) -> Result<(), LockError> {
    let whole = kernel::is_mapped(range.address(), range.bytes());
    let done = if whole {
        range
    } else {
        kernel::mapped_head(range)
    };
    release(state, done, wanted, unknown).map_err(|errno| LockError::plain(call, errno))?;
    if whole {
        Ok(())
    } else {
        Err(LockError::hole(call))
    }
}

/// As `unlock`, for a range that is mapped throughout.
fn release(
    state: &mut State,
    range: PageRange,
    wanted: impl Fn(Mode) -> bool,
    unknown: bool,
) -> Result<(), Errno> {
    let left = |holders: Holders| match holders.process {
        Some(mode) if wanted(mode) => holders.with_process(None),
        // A foreign lock goes with the process's.
        None if unknown => holders.with_process(None),
        _ => holders,
    };
    let mut kept = Vec::new();
    let mut weakened = Vec::new();
    let mut go = Vec::new();
    for Segment { range, holders } in state.registry.now().within(range) {
        match left(holders).mode() {
            None => go.push(range),
            Some(mode) => {
                kept.push(range);
                if holders.mode() != Some(mode) {
                    weakened.push((range, mode));
                }
            }
        }
    }
    if unknown {
        go = gaps(range, kept);
    }
    merge(&mut go);
    for part in go {
        kernel::munlock(part.address(), part.bytes())?;
    }
    for (part, mode) in weakened {
        // Refused where the limit has been lowered below what is locked: then it stays full, which
        // keeps what its owners were promised.
        let _ = mode.lock(part);
    }
    state.registry.now().update(range, left);
    Ok(())
}

/// Joins ranges that touch: one system call for both.
fn merge(ranges: &mut Vec<PageRange>) {
    ranges.dedup_by(|next, before| {
        let touching = before.end == next.start;
        if touching {
            before.end = next.end;
        }
        touching
    });
}

/// After an unlock that failed half-way: forgets what is not locked any more.
fn drop_unlocked(state: &mut State, range: PageRange) {
    let Ok(areas) = smaps::locked(None) else {
        // What comes before the hole is.
        state.registry.set_process(kernel::mapped_head(range), None);
        return;
    };
    for gap in gaps(range, areas.iter().map(Area::range)) {
        state.registry.forget(gap);
    }
}

/// Forgets the range: it has been unmapped otherwise than by [`munmap`](super::munmap). What is
/// there now is left as it is.
pub fn forget(address: *const u8, len: usize) {
    if let Ok(range) = pages(address as usize, len) {
        state().forget(range);
    }
}

/// Locks what is mapped now (`CURRENT`), what will be mapped (`FUTURE`), or both; with `ONFAULT` as
/// pages are touched. Each call replaces what was said about the future before.
///
/// With future locking, what is mapped beyond the lock limit fails with `EAGAIN`, address space
/// without access included.
///
/// # Errors
/// `EINVAL` flags are empty, `ONFAULT` alone, or unknown; `EPERM` the limit is 0; `ENOMEM` all that
/// is mapped, touched or not, is more than the limit; with `CURRENT`, what opening
/// `/proc/self/smaps` says (`EMFILE`): then nothing has changed.
pub fn mlockall(flags: AllFlags) -> Result<(), LockError> {
    const CALL: &str = "mlockall";
    let mut state = state();
    let mode = if flags.contains(AllFlags::ONFAULT) {
        Mode::OnFault
    } else {
        Mode::Full
    };
    let unreadable = |error| LockError::plain("mlockall: /proc/self/smaps", errno_of(error));
    let current = flags.contains(AllFlags::CURRENT);
    let future = flags.contains(AllFlags::FUTURE);
    // Opened before anything is locked: what cannot be registered is not to be locked.
    let listing = current.then(|| smaps::Listing::open(None));
    let listing = listing.transpose().map_err(unreadable)?;
    let mut foreign = Vec::new();
    if future && !current && !state.future_ever {
        // From now on what the registry does not know is the process's, but not this.
        for area in smaps::locked(None).map_err(unreadable)? {
            let known = state.registry.now().within(area.range());
            // Owners leave a foreign lock behind.
            let known = known.filter(|segment| segment.holders.foreign.is_none());
            foreign.extend(gaps(area.range(), known.map(|segment| segment.range)));
        }
    }
    kernel::mlockall(flags.bits()).map_err(|errno| match errno {
        Errno::INVAL => LockError::flags(
            CALL,
            flags.bits(),
            "CURRENT (1), FUTURE (2) or both, with or without ONFAULT (4)",
        ),
        _ => LockError::of_limit(CALL, errno, address_space_bytes()),
    })?;
    state.future = future.then_some(mode);
    state.future_ever |= future;
    state.foreign_before.extend(foreign);
    if let Some(listing) = listing {
        state.foreign_before.clear();
        for area in &listing.locked().map_err(unreadable)? {
            note_locked(&mut state, area.range(), mode);
        }
    }
    Ok(())
}

/// Bytes of address space, which is what `mlockall` charges.
fn address_space_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|text| text.parse().ok());
    pages.unwrap_or(0u64) * pagetide_kernel::PAGE_SIZE as u64
}

/// Unlocks everything, foreign locks included, and ends future locking. Pages that an owner holds
/// stay locked, without a gap unless future locking is to be ended where the limit is short (see
/// [`munlockall2`]).
///
/// # Errors
/// With owners only: what opening `/proc/self/smaps` says; `ENOMEM` if future locking cannot be
/// ended without losing an owner's lock, because the limit has been lowered below what owners hold:
/// the rest is unlocked then.
pub fn munlockall() -> Result<(), LockError> {
    const CALL: &str = "munlockall";
    let mut state = state();
    let result = if state.registry.has_owners() {
        all_but_owned(&mut state)
    } else {
        kernel::munlockall()
    };
    result.map_err(|errno| LockError::of_limit(CALL, errno, 0))?;
    state.registry.set_process(everything(), None);
    state.future = None;
    state.future_ever = false;
    state.foreign_before.clear();
    Ok(())
}

fn all_but_owned(state: &mut Guard) -> Result<(), Errno> {
    // Opened before anything is unlocked, to be read when nothing more is locked by itself.
    let listing = smaps::Listing::open(None).map_err(errno_of)?;
    if state.future.is_some() {
        // The less is locked, the less must be locked again.
        for area in smaps::locked(None).map_err(errno_of)? {
            unlock_mapped(state, area.range(), |_| true, true)?;
        }
        end_future(state)?;
    }
    for area in listing.locked().map_err(errno_of)? {
        unlock_mapped(state, area.range(), |_| true, true)?;
    }
    Ok(())
}

/// As `release`; a mapping that has gone since it was listed is no error.
fn unlock_mapped(
    state: &mut State,
    range: PageRange,
    wanted: impl Fn(Mode) -> bool,
    unknown: bool,
) -> Result<(), Errno> {
    match release(state, range, wanted, unknown) {
        Err(Errno::NOMEM) => {
            drop_unlocked(state, range);
            Ok(())
        }
        result => result,
    }
}

/// Unlocks by part: `CURRENT` what is mapped, keeping future locking; `FUTURE` ends future locking,
/// keeping what is locked; `ONFAULT` ranges locked on fault, current and future, leaving full ones.
/// Foreign locks are left as they are, and so are pages that an owner holds.
///
/// Ending the future alone needs two steps, because the kernel has no such call: `mlockall(CURRENT
/// | ONFAULT)`, which ends it and marks everything, then unlocking what was not locked before. What
/// another thread maps or locks in between may end up locked or not. Where the lock limit forbids
/// the first step, everything is unlocked and locked again, and a page can leave memory in that
/// moment.
///
/// # Errors
/// `EINVAL` flags are empty or unknown; what opening `/proc/self/smaps` says; `ENOMEM` if ending
/// the future would lose locks, because the limit has been lowered below what is locked: future
/// locking goes on then.
pub fn munlockall2(flags: AllFlags) -> Result<(), LockError> {
    const CALL: &str = "munlockall2";
    if !flags.is_subset() {
        return Err(LockError::flags(
            CALL,
            flags.bits(),
            "CURRENT (1), FUTURE (2), ONFAULT (4) or any of them together",
        ));
    }
    let failed = |errno| LockError::plain(CALL, errno);
    let mut state = state();
    let areas = state.reconcile().map_err(failed)?;
    let current = flags.contains(AllFlags::CURRENT);
    let on_fault = flags.contains(AllFlags::ONFAULT);
    if current || on_fault {
        let wanted = |mode| current || mode == Mode::OnFault;
        for area in &areas {
            unlock_mapped(&mut state, area.range(), wanted, false).map_err(failed)?;
        }
    }
    let ends = flags.contains(AllFlags::FUTURE) || on_fault && state.future == Some(Mode::OnFault);
    if ends && state.future.is_some() {
        end_future(&mut state).map_err(|errno| LockError::of_limit(CALL, errno, 0))?;
    }
    Ok(())
}

/// Ends future locking and keeps what is locked.
fn end_future(state: &mut Guard) -> Result<(), Errno> {
    let tells = smaps::tells_mode();
    // Opened before anything is marked: what was marked must be found again.
    let listing = smaps::Listing::open(None).map_err(errno_of)?;
    let before = state.reconcile()?;
    match kernel::mlockall(kernel::MCL_CURRENT | kernel::MCL_ONFAULT) {
        Ok(()) => {
            for area in listing.locked().map_err(errno_of)? {
                for gap in gaps(area.range(), before.iter().map(Area::range)) {
                    let _ = kernel::munlock(gap.address(), gap.bytes());
                }
            }
        }
        Err(refused @ (Errno::NOMEM | Errno::PERM)) => {
            let limits = LockLimits::try_read().map_err(errno_of)?;
            let again: u64 = before.iter().map(|area| area.range().bytes() as u64).sum();
            if limits.room().is_some_and(|room| again > room) {
                return Err(refused);
            }
            kernel::munlockall()?;
        }
        Err(other) => return Err(other),
    }
    state.future = None;
    for area in &before {
        let known = state.registry.now().within(area.range());
        let mut parts: Vec<_> = known
            .map(|known| (known.range, known.holders.mode().unwrap_or(Mode::OnFault)))
            .collect();
        // A full lock keeps whatever the other would.
        let mode = mode_of(area, tells).unwrap_or(Mode::Full);
        let unknown = gaps(area.range(), parts.iter().map(|(range, _)| *range));
        parts.extend(unknown.into_iter().map(|gap| (gap, mode)));
        for (part, mode) in parts {
            // Gone since, or not to be faulted in (no access): marked all the same.
            let _ = mode.lock(part);
        }
    }
    Ok(())
}
