//! Giving up the contents of pages: frames, budget and slots go back, and nothing is stored.
use pagetide_kernel::own::discard;
use pagetide_kernel::{PageNumber, PageRange};

use crate::page::word::{Place, State, Word};
use crate::pager::Pager;

/// Resident pages emptied with one call.
const RUN_PAGES: usize = 64;

/// Gives up the contents of the pages of `range` that are not pinned. One that is written to
/// meanwhile may keep its bytes.
///
/// The fault thread pins a page while it makes it writable, and lets go after the thread that wrote
/// has gone on, which may be the caller. So the first page that is found pinned is looked at again
/// when `pass` has returned: when the fault thread has finished what it was at before this call.
pub(super) fn discard_pages(pager: &Pager, range: PageRange, pass: impl Fn(PageRange)) {
    let mut rest = range;
    let mut has_passed = false;
    while !rest.is_empty() {
        let page = rest.start;
        let done = match is_pinned(pager.table.load(page)) {
            true if !has_passed => {
                pass(PageRange::one(page));
                has_passed = true;
                continue;
            }
            true => 1,
            false => discard_some(pager, rest),
        };
        if done == 0 {
            std::thread::yield_now();
        }
        rest = rest.after(done);
    }
    if pager.budget.fault_thread_waits() {
        pager.ring_fault_thread();
    }
    pager.budget.progress.ring();
}

fn is_pinned(word: Word) -> bool {
    matches!(word.state(), State::Resident | State::Clean) && word.pins() > 0
}

/// Gives up pages at the start of `range`, and returns of how many that is done: none if the first
/// is pinned, or one of the pager's threads is busy with it.
fn discard_some(pager: &Pager, range: PageRange) -> u64 {
    let page = range.start;
    let word = pager.table.load(page);
    match word.state() {
        State::Untouched => 1,
        State::Resident | State::Clean => discard_resident(pager, range),
        State::Stored => {
            let changed = pager.table.change(page, word, word.given_up());
            if changed {
                pager.stores.release(&[word.place()]);
            }
            u64::from(changed)
        }
        // Its frame goes, and is counted, when the evictor is through with it.
        State::Staged => {
            let _gate = pager.gate.lock();
            let staged = |now: Word| now.state() == State::Staged;
            let was = pager.table.update(page, |now| match staged(now) {
                true => now.given_up(),
                false => now,
            });
            u64::from(staged(was))
        }
        // What is lost stays so, until the memory is unmapped.
        State::Poisoned => 1,
        State::Evicting | State::Loading | State::Protecting | State::Dropping => 0,
    }
}

/// Claims the resident pages at the start of `range`, so that nobody installs or evicts them, and
/// empties them.
fn discard_resident(pager: &Pager, range: PageRange) -> u64 {
    let mut places = [None::<Place>; RUN_PAGES];
    let is_claimed = |(page, place): (PageNumber, &mut Option<Place>)| {
        let word = pager.table.load(page);
        let free = matches!(word.state(), State::Resident | State::Clean) && word.pins() == 0;
        *place = (word.state() == State::Clean).then(|| word.place());
        (free && pager.table.change(page, word, word.claimed())).then_some(())
    };
    let claimed = range.iter().zip(&mut places).map_while(is_claimed).count();
    let claimed = PageRange::of(range.start, claimed as u64);
    if claimed.is_empty() {
        return 0;
    }
    // SAFETY: the caller gives up the contents, and nobody else is at work on pages in this
    // thread's hands.
    let emptied = unsafe { discard(claimed) }.is_ok();
    for (page, place) in claimed.iter().zip(places) {
        pager.table.update(page, |now| match (emptied, place) {
            (true, _) => now.filled().given_up(),
            (false, Some(_)) => now.unclaimed(State::Clean),
            (false, None) => now.unclaimed(State::Resident),
        });
        if emptied && let Some(place) = place {
            pager.stores.release(&[place]);
        }
        if !emptied {
            pager.enqueue(page);
        }
    }
    if emptied {
        pager.budget.unreserve(claimed.pages());
    }
    claimed.pages()
}
