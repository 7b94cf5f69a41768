//! What the program does to its mappings, followed in the page words.
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagetide_kernel::sync::LockGuard;
use pagetide_kernel::uffd::Event;
use pagetide_kernel::{PageNumber, PageRange};

use super::Pager;
use super::fault::FaultThread;
use super::word::{Place, REMOVED, State};

impl FaultThread<'_> {
    /// Acts on the events read so far, in their order, then opens the gate. Returns whether there were any.
    pub(super) fn process_events(&mut self, gate: LockGuard<'_>) -> bool {
        let mut gate = Some(gate);
        let any = !self.events.is_empty();
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Remove(range) => {
                    if !self.pager.is_own_drop(range) {
                        self.pager.empty(range);
                    }
                }
                Event::Unmap(range) => {
                    // The span first: the program may map the same place anew at once, and the warden must not think it governed.
                    self.pager.remove_span(range);
                    self.pager.empty(range);
                    self.pager.mappings_changed.fetch_add(1, Relaxed);
                }
                Event::Remap { from, to } => {
                    gate = self.wait_for_in_place(from, gate);
                    self.remap(from, to);
                }
                Event::Fork(_) | Event::Unknown(_) | Event::Fault { .. } => {}
            }
        }
        self.pager.renaming.store(false, Relaxed);
        any
    }

    /// Waits until the evictor has finished with pages of `range` that it is emptying in place, which it knows by their old place. It may
    /// be waiting for one of its own remove events to be read. Meanwhile it begins nothing: what is read here is acted on only later.
    /// Returns with the gate held.
    fn wait_for_in_place<'g>(
        &mut self,
        range: PageRange,
        mut gate: Option<LockGuard<'g>>,
    ) -> Option<LockGuard<'g>>
    where
        Self: 'g,
    {
        let pager = self.pager;
        loop {
            let mut busy = false;
            pager.table.for_each_used(range, |_, word| {
                busy |= matches!(word.state(), State::Protecting | State::Dropping)
            });
            if !busy {
                return gate;
            }
            pager.renaming.store(true, Relaxed);
            drop(gate.take());
            self.collect_messages();
            self.skip_own_drops();
            std::thread::yield_now();
            gate = Some(pager.gate.lock());
        }
    }

    /// Takes remove events that the evictor caused out of the queue: it waits for nothing more than that they were read.
    fn skip_own_drops(&mut self) {
        let pager = self.pager;
        self.events
            .retain(|event| !matches!(event, Event::Remove(range) if pager.is_own_drop(*range)));
    }

    /// The kernel moved the pages of `from` to `to`: their words follow, and what is staged learns whose it is. The gate is held.
    fn remap(&mut self, from: PageRange, to: PageNumber) {
        let pager = self.pager;
        let target = PageRange {
            start: to,
            end: to.add(from.pages()),
        };
        while pager.table.ensure(target).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut moved = Vec::new();
        pager.table.for_each_used(from, |page, _| {
            let word = pager.table.update(page, |w| w.emptied());
            moved.push((to.add(page.0 - from.start.0), word));
        });
        // The place moved to was unmapped by mremap itself; its event came before this one.
        for (page, word) in moved {
            if word.state() == State::Untouched {
                continue;
            }
            if word.state() == State::Staged {
                pager.staged_owner[word.staging_index()].store(page.0, Relaxed);
            }
            let old = pager.table.update(page, |old| word.keeping(old));
            debug_assert_eq!(old.state(), State::Untouched);
            if word.is_resident() {
                pager.enqueue(page);
            }
        }
        pager.add_span(target);
    }
}

impl Pager {
    /// Whether a remove event stems from the evictor dropping pages in place; counted once.
    fn is_own_drop(&self, range: PageRange) -> bool {
        let mut drops = self
            .own_drops
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        match drops.iter().position(|own| *own == range) {
            Some(index) => {
                drops.swap_remove(index);
                true
            }
            None => false,
        }
    }

    /// The program gave up the contents of `range`.
    pub fn empty(&self, range: PageRange) {
        let mut freed: Vec<Place> = Vec::new();
        let mut resident = 0;
        self.table.for_each_used(range, |page, _| {
            let was = self.table.update(page, |w| match w.state() {
                // The evictor is busy with the page and will see the flag when it is done.
                State::Protecting | State::Dropping => w.with(REMOVED),
                _ => w.emptied(),
            });
            match was.state() {
                State::Resident => resident += 1,
                State::Clean => {
                    resident += 1;
                    freed.push(was.place());
                }
                State::Stored => freed.push(was.place()),
                // A staged page still counts until the evictor has dropped its frame.
                _ => {}
            }
        });
        self.unreserve(resident);
        self.release(&freed);
    }
}
