//! What other threads ask of the scanner, and how they wait for it.
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::{Doorbell, Lock, now_ns};

use crate::agent::Agent;

/// Held by the scanner and the control thread while they work, so that a fork finds them holding
/// nothing else.
pub static AUXILIARY: Lock = Lock::new();
/// Wakes the scanner for a request.
pub static BELL: Doorbell = Doorbell::new();
/// Rung after every look at the mappings.
static LOOKED: Doorbell = Doorbell::new();
/// Looks asked for, and the last of them that a look begun after it has served.
static LOOKS_ASKED: AtomicU64 = AtomicU64::new(0);
static LOOKS_SERVED: AtomicU64 = AtomicU64::new(0);
static ADDRESS_SPACE_PAGES: AtomicU64 = AtomicU64::new(0);
/// The last one waited for did not come in time, and none has come since.
static LOOK_MISSED: AtomicBool = AtomicBool::new(false);

/// Has the scanner look at the mappings, and waits until it has; on a machine so busy that it gets
/// no processor, not for ever. In a child made by a bare system call there is no scanner: it waits
/// once.
pub fn look_now() {
    const PATIENCE_NS: u64 = 500_000_000;
    if LOOK_MISSED.load(Relaxed) {
        return BELL.ring();
    }
    let asked = LOOKS_ASKED.fetch_add(1, SeqCst) + 1;
    let deadline = now_ns() + PATIENCE_NS;
    BELL.ring();
    loop {
        let seen = LOOKED.look();
        let now = now_ns();
        if LOOKS_SERVED.load(SeqCst) >= asked {
            return;
        }
        if now >= deadline {
            return LOOK_MISSED.store(true, Relaxed);
        }
        LOOKED.wait(seen, Some(Duration::from_nanos(deadline - now)));
    }
}

/// Has the scanner work until `answer` gives what is waited for; `None` if it gave nothing in 20 s.
/// On a busy machine the scanner may get no processor for seconds.
pub fn wait_for<T>(agent: &Agent, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    const PATIENCE_NS: u64 = 20_000_000_000;
    let until_ns = now_ns() + PATIENCE_NS;
    loop {
        let seen = agent.pager.budget.progress.look();
        BELL.ring();
        let answered = answer();
        if answered.is_some() || now_ns() > until_ns {
            return answered;
        }
        agent
            .pager
            .budget
            .progress
            .wait(seen, Some(Duration::from_millis(2)));
    }
}

/// On the scanner: the last look that was asked for, if it was not served yet.
pub fn look_wanted() -> Option<u64> {
    let asked = LOOKS_ASKED.load(SeqCst);
    (LOOKS_SERVED.load(SeqCst) != asked).then_some(asked)
}

/// On the scanner, after a look begun when `look_wanted` gave this.
pub fn looked(wanted: Option<u64>) {
    if let Some(asked) = wanted {
        LOOKS_SERVED.store(asked, SeqCst);
    }
    LOOK_MISSED.store(false, Relaxed);
    LOOKED.ring();
}

/// On the scanner: the address space has this size.
pub fn note_address_space(pages: u64) {
    ADDRESS_SPACE_PAGES.store(pages, Relaxed);
}

/// The size of the address space when it was looked at last, in bytes.
pub fn address_space_bytes() -> u64 {
    ADDRESS_SPACE_PAGES.load(Relaxed) * PAGE_SIZE as u64
}
