//! A second thread for a client all of whose memory is to come: it copies beside the client's own.
//!
//! It decides nothing. It is handed areas, installs each from its start on as far as nothing is in
//! the way, and tells how far that was. Before the client's thread reads what the userfaultfd says,
//! it has this one hold still ([`Second::recall`]) after the piece it is at: so, as with one
//! thread, no page is under way while memory is heard of as given up, moved or unmapped.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{JoinHandle, available_parallelism};

use crate::counters::Origin;
use crate::install::{Hand, after};
use crate::memory::Area;

/// Areas that wait: enough for it not to run out while the client's thread does one of its own.
const WAITING_MAX: usize = 4;
/// The stack of the thread.
const STACK_BYTES: usize = 256 << 10;
/// How many there are in this process.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// What was done of an area.
#[derive(Debug)]
pub(crate) struct Done {
    pub area: Area,
    /// Pages installed, in their order, and where their bytes were. Fewer than the area has where
    /// something was in the way: who hands it out finds out what.
    pub parts: Vec<(u64, Origin)>,
}

/// What the two threads share.
#[derive(Debug, Default)]
struct Desk {
    waiting: VecDeque<Area>,
    /// One has been taken and is not done.
    under_way: bool,
    done: Vec<Done>,
    over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    desk: Mutex<Desk>,
    /// Somebody waits until it holds still.
    recalled: AtomicBool,
    /// There is something to do, or it is over.
    more: Condvar,
    /// What was under way is done.
    still: Condvar,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(|held| held.into_inner())
    }

    fn wait<'a>(&self, on: &Condvar, desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
        on.wait(desk).unwrap_or_else(|held| held.into_inner())
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Second {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Second {
    /// One that installs with `hand`; `None` where every processor but one has such a thread
    /// already, or none is to be had.
    pub fn start(hand: Hand) -> Option<Second> {
        let most = available_parallelism().map_or(1, usize::from) - 1;
        let one_more = |all: usize| (all < most).then_some(all + 1);
        ALL.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        let mut second = Second {
            shared: Arc::default(),
            thread: None,
        };
        let shared = Arc::clone(&second.shared);
        let thread = std::thread::Builder::new()
            .name("pagetide-second".into())
            .stack_size(STACK_BYTES)
            .spawn(move || work(&shared, hand));
        second.thread = Some(thread.ok()?);
        Some(second)
    }

    /// Hands it `area`, none of whose pages was given up; false if it has enough.
    pub fn give(&self, area: Area) -> bool {
        let mut desk = self.shared.desk();
        if desk.waiting.len() >= WAITING_MAX {
            return false;
        }
        desk.waiting.push_back(area);
        self.shared.more.notify_one();
        true
    }

    /// What it has done since this was asked.
    pub fn done(&self) -> Vec<Done> {
        std::mem::take(&mut self.shared.desk().done)
    }

    /// Has it hold still: what it has not begun, and what it has done since that was asked.
    pub fn recall(&self) -> (VecDeque<Area>, Vec<Done>) {
        let mut desk = self.shared.desk();
        let waiting = std::mem::take(&mut desk.waiting);
        self.shared.recalled.store(true, Relaxed);
        while desk.under_way {
            desk = self.shared.wait(&self.shared.still, desk);
        }
        self.shared.recalled.store(false, Relaxed);
        (waiting, std::mem::take(&mut desk.done))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let mut desk = self.shared.desk();
        desk.over = true;
        desk.waiting.clear();
        drop(desk);
        self.shared.more.notify_one();
        // What it holds of the client is let go of when this returns.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        ALL.fetch_sub(1, Relaxed);
    }
}

fn work(shared: &Shared, mut hand: Hand) {
    let mut desk = shared.desk();
    while !desk.over {
        let Some(area) = desk.waiting.pop_front() else {
            desk = shared.wait(&shared.more, desk);
            continue;
        };
        desk.under_way = true;
        drop(desk);
        let parts = install(&mut hand, area, &shared.recalled);
        desk = shared.desk();
        desk.under_way = false;
        desk.done.push(Done { area, parts });
        shared.still.notify_one();
    }
}

/// Installs `area` from its start on, until something is in the way or it is recalled.
fn install(hand: &mut Hand, area: Area, recalled: &AtomicBool) -> Vec<(u64, Origin)> {
    let (mut rest, mut parts) = (area, Vec::new());
    while !rest.range.is_empty() && !recalled.load(Relaxed) {
        let Ok(placed) = hand.place(rest) else {
            break;
        };
        let pages = placed.progress.pages;
        if pages == 0 {
            break;
        }
        parts.push((pages, placed.origin));
        rest = after(rest, pages);
    }
    parts
}
