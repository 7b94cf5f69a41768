//! Deferred registration: while a program is far from its budget the kernel fills its memory, huge
//! pages included, and the scanner only counts. Shortly before the budget is used up all of it is
//! put under the pager, for good.
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_pager::Pager;
use pagetide_pager::budget::Budget;

/// What one processor is expected to fill in a millisecond: 8 MiB. Where nothing but one byte of
/// each page is written, and pages are huge, it is up to 20 MiB.
const FILLED_PAGES_PER_MS: u64 = 2048;
/// How long filling at that speed is to stay within the budget while memory is registered, which
/// begins late where other processes keep the processors busy.
const REGISTERING_MS: u64 = 8;
/// How often the scanner counts.
const TICKS_MS: std::ops::RangeInclusive<u64> = 1..=40;

/// Registration is deferred. A forked child goes on as its parent was.
static DEFERRED: AtomicBool = AtomicBool::new(false);
/// Pages that may be filled before memory is registered, when it was counted last.
static ROOM: AtomicU64 = AtomicU64::new(0);
/// The budget was changed and nothing counted since.
static STALE: AtomicBool = AtomicBool::new(false);

/// Memory is to be registered whatever there is.
static UNWANTED: AtomicBool = AtomicBool::new(false);

/// Pages that all processors fill in a millisecond, asked once: the answer takes files to be read.
static FILLED_PER_MS: AtomicU64 = AtomicU64::new(FILLED_PAGES_PER_MS);

fn filled_per_ms() -> u64 {
    FILLED_PER_MS.load(Relaxed)
}

/// The resident pages at which memory is registered; 0 with a budget that is soon used up.
fn threshold(budget: u64, filled_per_ms: u64) -> u64 {
    let margin = (budget / 8).max(filled_per_ms * REGISTERING_MS);
    match budget >= 2 * margin {
        true => budget - margin,
        false => 0,
    }
}

/// Defers registration if the budget is large enough for that; whether it is.
pub fn begin(budget: &Budget) -> bool {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    FILLED_PER_MS.store(processors as u64 * FILLED_PAGES_PER_MS, Relaxed);
    let deferred = threshold(budget.get(), filled_per_ms()) > 0;
    DEFERRED.store(deferred, SeqCst);
    deferred
}

/// Anonymous memory under userfaultfd gets 4 KiB pages; new huge pages would only have to be split.
pub fn disable_huge_pages() {
    // SAFETY: prctl(PR_SET_THP_DISABLE) takes plain numbers.
    unsafe { libc::prctl(41, 1, 0, 0, 0) };
}

/// Whether registration is deferred.
pub fn is_on() -> bool {
    DEFERRED.load(SeqCst)
}

/// On the scanner: memory is registered, and its pages are counted.
pub fn end(pager: &Pager) {
    pager.budget.set_awaited(0);
    DEFERRED.store(false, SeqCst);
}

/// On the scanner: so many pages are resident. Whether memory can stay unregistered.
pub fn count(pager: &Pager, resident: u64) -> bool {
    let at = match UNWANTED.load(SeqCst) {
        true => 0,
        false => threshold(pager.budget.get(), filled_per_ms()),
    };
    ROOM.store(at.saturating_sub(resident), Relaxed);
    pager.budget.set_awaited(resident);
    STALE.store(false, SeqCst);
    resident < at
}

/// How long nothing needs to be counted.
pub fn tick() -> Duration {
    let ms = ROOM.load(Relaxed) / filled_per_ms();
    Duration::from_millis(ms.clamp(*TICKS_MS.start(), *TICKS_MS.end()))
}

/// Whether `bytes` may be filled at once before memory is registered.
pub fn has_room_for(bytes: usize) -> bool {
    is_on() && (bytes / PAGE_SIZE) as u64 <= ROOM.load(Relaxed) / 2
}

/// The budget was changed: the scanner is to count before anybody believes that it is kept.
pub fn note_limit() {
    STALE.store(is_on(), SeqCst);
}

/// Memory is to be registered when the scanner counts next.
pub fn give_up() {
    UNWANTED.store(true, SeqCst);
}

/// Whether what was counted tells if the budget is kept.
pub fn is_counted() -> bool {
    !STALE.load(SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_budgets_are_registered_at_once_and_large_ones_with_an_eighth_left() {
        let mib = 256;
        assert_eq!(threshold(200 * mib, 2 * FILLED_PAGES_PER_MS), 0);
        assert_eq!(threshold(256 * mib, 2 * FILLED_PAGES_PER_MS), 128 * mib);
        assert_eq!(threshold(8192 * mib, 2 * FILLED_PAGES_PER_MS), 7168 * mib);
        assert_eq!(threshold(2048 * mib, 64 * FILLED_PAGES_PER_MS), 0);
    }
}
