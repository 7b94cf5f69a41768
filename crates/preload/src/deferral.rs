//! Deferred registration: while a program is far from its budget the kernel fills its memory, huge
//! pages included, and the scanner only counts. Shortly before the budget is used up all of it is
//! put under the pager, for good. Where the run has one budget, it is the run that is far from it.
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::processors;
use pagetide_pager::Pager;
use pagetide_pager::tree::member::Member;

/// What one processor is expected to fill in a millisecond: 8 MiB. Where nothing but one byte of
/// each page is written, and pages are huge, it is up to 20 MiB.
const FILLED_PAGES_PER_MS: u64 = 2048;
/// How long filling at that speed is to stay within the budget while memory is registered, which
/// begins late where other processes keep the processors busy.
const REGISTERING_MS: u64 = 8;
/// How often the scanner counts.
const TICKS_MS: std::ops::RangeInclusive<u64> = 1..=40;
/// The same in a run with one budget, of which others may take at any time: half of the margin is
/// left when all have counted.
const TICKS_SHARED_MS: std::ops::RangeInclusive<u64> = 1..=REGISTERING_MS / 2;
/// What is counted last of others may be as old as a tick, and so may be what they have counted
/// with: a quarter of the room that is seen is there at least.
const SEEN_PER_ROOM: u64 = 4;
/// How long a forked child is not charged for its copy of its parent's memory, whose frames it
/// shares: most execute something within it.
const COPY_GRACE_NS: u64 = 100_000_000;

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

/// Pages that this process had resident when it was forked, and until when they are its parent's.
static COPIED: AtomicU64 = AtomicU64::new(0);
static COPIED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

fn filled_per_ms() -> u64 {
    FILLED_PER_MS.load(Relaxed)
}

/// What is to stay free of a budget of so many pages; none with one that is soon used up.
fn margin(budget: u64, filled_per_ms: u64) -> Option<u64> {
    let margin = (budget / 8).max(filled_per_ms * REGISTERING_MS);
    (budget >= 2 * margin).then_some(margin)
}

/// The resident pages at which memory is registered; 0 with a budget that is soon used up.
fn threshold(budget: u64, filled_per_ms: u64) -> u64 {
    margin(budget, filled_per_ms).map_or(0, |margin| budget - margin)
}

/// For how many milliseconds nothing needs to be counted, with so much room.
fn tick_ms(room: u64, filled_per_ms: u64, is_shared: bool) -> u64 {
    let (part, ticks) = match is_shared {
        true => (SEEN_PER_ROOM, TICKS_SHARED_MS),
        false => (1, TICKS_MS),
    };
    (room / part / filled_per_ms).clamp(*ticks.start(), *ticks.end())
}

/// The part in the run's budget, if it has one.
fn member(pager: &Pager) -> Option<&Member> {
    pager.member.as_ref().filter(|member| !member.is_alone())
}

/// Defers registration if the budget is large enough for that, and, where the run has one, enough
/// of it is left; whether it is. Before the pager's threads run.
pub fn begin(pager: &Pager) -> bool {
    let processors = processors();
    FILLED_PER_MS.store(processors as u64 * FILLED_PAGES_PER_MS, Relaxed);
    let deferred = match member(pager) {
        None => threshold(pager.budget.get(), filled_per_ms()) > 0,
        Some(member) => margin(member.whole(), filled_per_ms())
            .is_some_and(|margin| member.begin_deferral(&pager.budget, 0, margin)),
    };
    DEFERRED.store(deferred, SeqCst);
    deferred
}

/// In a forked child, before it takes its part in the run's budget: what is resident is its
/// parent's still.
pub fn begin_in_child(pager: &Pager) {
    if is_on() && pager.member.is_some() {
        COPIED.store(pager.budget.resident_in_all(), Relaxed);
        COPIED_UNTIL_NS.store(now_ns() + COPY_GRACE_NS, Relaxed);
        pager.budget.set_awaited(0);
    }
}

/// The same once it has its part, and before the pager's threads run. Where it can have none in
/// which registration is deferred, memory is registered when it is counted first.
pub fn go_on_in_child(pager: &Pager) {
    if is_on()
        && let Some(member) = member(pager)
        && let Some(margin) = margin(member.whole(), filled_per_ms())
    {
        member.begin_deferral(&pager.budget, 0, margin);
    }
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

/// On the scanner: memory, of which so many pages are resident, is about to be registered.
pub fn begin_to_end(pager: &Pager, resident: u64) {
    if let Some(member) = member(pager) {
        member.end_deferral(&pager.budget, resident);
    }
}

/// On the scanner: memory is registered, and its pages are counted.
pub fn end(pager: &Pager) {
    pager.budget.set_awaited(0);
    DEFERRED.store(false, SeqCst);
}

/// On the scanner: so many pages are resident. Whether memory can stay unregistered.
pub fn count(pager: &Pager, resident: u64) -> bool {
    let room = match UNWANTED.load(SeqCst) {
        true => 0,
        false => room(pager, resident),
    };
    ROOM.store(room, Relaxed);
    // Where the budget follows the program a part is under its pager already.
    let awaited = resident.saturating_sub(pager.budget.resident());
    pager.budget.set_awaited(awaited);
    STALE.store(false, SeqCst);
    room > 0
}

fn room(pager: &Pager, resident: u64) -> u64 {
    let filled = filled_per_ms();
    let Some(member) = member(pager) else {
        return threshold(pager.budget.get(), filled).saturating_sub(resident);
    };
    let copied = match now_ns() < COPIED_UNTIL_NS.load(Relaxed) {
        true => COPIED.load(Relaxed),
        false => 0,
    };
    let Some(margin) = margin(member.whole(), filled) else {
        return 0;
    };
    let shared = member.count_deferred(&pager.budget, resident.saturating_sub(copied), margin);
    // What its user lets this process have.
    let own = threshold(pager.budget.get(), filled).saturating_sub(resident);
    shared.min(own)
}

/// How long nothing needs to be counted.
pub fn tick(pager: &Pager) -> Duration {
    let is_shared = member(pager).is_some();
    Duration::from_millis(tick_ms(ROOM.load(Relaxed), filled_per_ms(), is_shared))
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

    const MIB: u64 = 256;
    const FILLED: u64 = 2 * FILLED_PAGES_PER_MS;

    #[test]
    fn small_budgets_are_registered_at_once_and_large_ones_with_an_eighth_left() {
        assert_eq!(threshold(200 * MIB, FILLED), 0);
        assert_eq!(threshold(256 * MIB, FILLED), 128 * MIB);
        assert_eq!(threshold(8192 * MIB, FILLED), 7168 * MIB);
        assert_eq!(threshold(2048 * MIB, 64 * FILLED_PAGES_PER_MS), 0);
    }

    /// Processes fill memory, one after another or together, as fast as the processors can. Each
    /// counts as [`tick_ms`] says, and sees what the others have counted. When the last has seen
    /// that the margin is reached, what is filled of it.
    fn filled_of_margin(budget: u64, mut fills: impl FnMut(u64) -> Vec<u64>) -> u64 {
        let processes = fills(0).len();
        let (mut resident, mut counted) = (vec![0; processes], vec![0; processes]);
        // They do not begin at the same time.
        let mut next: Vec<u64> = (0..processes as u64).map(|index| index % 4).collect();
        let mut registered = vec![false; processes];
        let threshold = threshold(budget, FILLED);
        for now in 0..1_000_000 {
            for index in 0..processes {
                if registered[index] || next[index] > now {
                    continue;
                }
                counted[index] = resident[index];
                let room = threshold.saturating_sub(counted.iter().sum());
                registered[index] = room == 0;
                next[index] = now + tick_ms(room, FILLED, true);
            }
            if registered.iter().all(|registered| *registered) {
                return resident.iter().sum::<u64>() - threshold;
            }
            let new = fills(now);
            assert!(new.iter().sum::<u64>() <= FILLED);
            for index in (0..processes).filter(|index| !registered[*index]) {
                resident[index] += new[index];
            }
        }
        panic!("the margin was not reached");
    }

    #[test]
    fn processes_that_fill_a_common_budget_together_leave_half_of_the_margin_at_least() {
        let mut seed = 5u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for processes in [1, 2, 3, 7, 40] {
            for budget in [256 * MIB, 2048 * MIB, 5000 * MIB] {
                let filled = filled_of_margin(budget, |_| {
                    let mut left = FILLED;
                    let each = (0..processes).map(|_| {
                        let part = random(left + 1);
                        left -= part;
                        part
                    });
                    each.collect()
                });
                let in_turns = filled_of_margin(budget, |now| {
                    let turn = now / 7 % processes;
                    (0..processes)
                        .map(|index| FILLED * u64::from(index == turn))
                        .collect()
                });
                let most = REGISTERING_MS / 2 * FILLED;
                assert!(
                    filled <= most && in_turns <= most,
                    "{filled} {in_turns} of {most}"
                );
            }
        }
    }
}
