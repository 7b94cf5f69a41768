//! The scanner: finds new anonymous memory and puts it under the pager, looks after the other
//! threads, and serves the leases of forked children.
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pagetide_kernel::maps::{Backing, Maps};
use pagetide_kernel::memory::heap_end;
use pagetide_kernel::procfs::{self, Sizes};
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::{Urgency, set_urgency};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use pagetide_pager::requests::{Completion, Request};
use rustix::io::Errno;

use crate::agent::{Agent, Threads};
use crate::grown::{each_unknown, parts_in};
use crate::leases::Leases;
use crate::program::Program;
use crate::requests::{self, AUXILIARY, BELL};
use crate::retry::Retry;
use crate::ripening::Ripening;
use crate::{deferral, handover};

/// How often the size of the address space is looked at: bounds how much new memory can be touched
/// before it is governed.
const TICK: Duration = Duration::from_millis(4);
/// The same while the program has just been seen to get memory.
const TICK_GROWING: Duration = Duration::from_millis(1);
/// Ticks of growth after the last change.
const GROWING_TICKS: u32 = 32;
/// How often all mappings are looked at even when the size did not change.
const FULL_SCAN_NS: u64 = 40_000_000;
/// Looks at most, one after another, when what is to be attached changes all the time.
const ATTACH_ROUNDS: u32 = 4;

/// `piece` without the heap's last page, which stays the kernel's. What `brk` adds becomes one
/// mapping with it, and with the rest of the heap once that is attached. Memory that is added
/// beside registered memory would stay a mapping of its own, 132 KiB at a time, of which a process
/// may have 65 530.
fn without_edge(piece: PageRange, heap_end: PageNumber) -> Option<PageRange> {
    let is_edge = piece.end == heap_end;
    let end = PageNumber(piece.end.0 - u64::from(is_edge));
    (piece.start < end).then_some(PageRange { end, ..piece })
}

/// The scanner thread's own state.
pub struct Scanner {
    agent: &'static Agent,
    maps: Option<Maps>,
    program: Program,
    statm: Option<OwnedFd>,
    last_seen: (u64, u64),
    looks: u32,
    growing: u32,
    last_scan_ns: u64,
    last_program_look_ns: u64,
    ripening: Ripening,
    leases: Leases,
    retry: Retry,
}

impl Scanner {
    /// Ready to run.
    pub fn new(agent: &'static Agent) -> Scanner {
        Scanner {
            agent,
            maps: Maps::open().ok(),
            program: Program::open(),
            // This thread's own: the first thread's tells nothing any more once that has ended.
            statm: procfs::open_self(c"/proc/thread-self/statm").ok(),
            last_seen: (0, 0),
            looks: 0,
            growing: 0,
            last_scan_ns: 0,
            last_program_look_ns: 0,
            ripening: Ripening::default(),
            leases: Leases::default(),
            retry: Retry::default(),
        }
    }

    /// Watches until the process ends.
    pub fn run(&mut self) -> ! {
        set_urgency(Urgency::Prompt);
        loop {
            let seen = BELL.look();
            {
                let _working = AUXILIARY.lock();
                self.work();
            }
            self.growing = self.growing.saturating_sub(1);
            let tick = match self.growing > 0 {
                _ if deferral::is_on() => deferral::tick(&self.agent.pager),
                true => TICK_GROWING,
                false => TICK,
            };
            BELL.wait(seen, Some(tick));
        }
    }

    fn work(&mut self) {
        let pager = &self.agent.pager;
        self.leases.serve(pager);
        if handover::serve() {
            pager.budget.progress.ring();
        }
        crate::stacks::reap();
        if now_ns().saturating_sub(self.last_program_look_ns) > FULL_SCAN_NS {
            self.last_program_look_ns = now_ns();
            self.program.look(self.agent);
        }
        let sizes = (self.statm.as_ref()).map_or_else(Sizes::default, procfs::sizes);
        requests::note_address_space(sizes.address_space);
        match deferral::is_on() {
            true => self.count(sizes.anonymous),
            false => self.look_for_memory(sizes.address_space),
        }
        // After what was found has been attached: it counts as the pager's, and only as that.
        if let Some(statm) = &self.statm {
            pager.note_anonymous(|| procfs::sizes(statm).anonymous);
        }
        let threads = Threads::get();
        if threads.fault.tid() == 0 || threads.evictor.tid() == 0 {
            pager.end_process(
                "a thread of the pager was ended from outside; its memory cannot be served any \
                 more",
            );
        }
    }

    /// Registration is deferred: all that was asked to be found is the kernel's still.
    fn count(&mut self, resident: u64) {
        let wanted = requests::look_wanted();
        let pager = &self.agent.pager;
        if !deferral::count(pager, resident) {
            self.register_all(resident);
        } else if pager.follows_program() {
            self.attach_ripe(wanted.is_some());
        }
        requests::looked(wanted);
    }

    /// While registration is deferred, and the budget follows the program: attaches what has been
    /// there for a while. New memory is the kernel's to fill.
    fn attach_ripe(&mut self, is_wanted: bool) {
        let now_ns = now_ns();
        if !self.ripening.is_due(now_ns) && !is_wanted {
            return;
        }
        self.last_scan_ns = now_ns;
        let (mut fresh, mut grown) = (Vec::new(), Vec::new());
        self.find_fresh(&mut fresh, &mut grown);
        let pager = &self.agent.pager;
        let ripe = self.ripening.look(&fresh, now_ns, |range, found| {
            pager.each_populated(range, found);
        });
        self.attach_all(&grown);
        self.attach_all(&ripe);
    }

    /// Ends the deferral. All memory is registered before the pages of any are counted, which takes
    /// longer: from then on nothing is filled without room for it.
    fn register_all(&mut self, resident: u64) {
        deferral::begin_to_end(&self.agent.pager, resident);
        deferral::disable_huge_pages();
        let fresh = self.fresh();
        self.agent.pager.register_ahead(&fresh);
        self.sweep();
        deferral::end(&self.agent.pager);
    }

    /// Attaches new memory, if there may be some.
    fn look_for_memory(&mut self, pages: u64) {
        let pager = &self.agent.pager;
        let seen = (pages, pager.space.changes());
        // The program may unmap and map the same size again; what it does right after a change is
        // looked for once more.
        if std::mem::replace(&mut self.last_seen, seen) != seen {
            self.retry.clear();
            self.looks = 2;
            self.growing = GROWING_TICKS;
        }
        let wanted = requests::look_wanted();
        if wanted.is_some() {
            self.looks = self.looks.max(1);
        }
        let is_due = now_ns() - self.last_scan_ns > FULL_SCAN_NS;
        if self.looks > 0 || is_due {
            self.looks = self.looks.saturating_sub(1);
            self.sweep();
            requests::looked(wanted);
        }
    }

    /// Attaches anonymous memory that is not governed yet.
    pub fn sweep(&mut self) {
        for _ in 0..ATTACH_ROUNDS {
            self.last_scan_ns = now_ns();
            let fresh = self.fresh();
            if !self.attach_all(&fresh) {
                break;
            }
            // What has changed is looked at again now: no fork comes between, and at the next tick
            // if it never stops.
            self.looks = self.looks.max(1);
        }
        if self.retry.is_fresh(now_ns()) {
            self.looks = self.looks.max(1);
        }
    }

    /// Looks at all mappings for anonymous memory that is not governed yet.
    fn fresh(&mut self) -> Vec<PageRange> {
        let (mut fresh, mut grown) = (Vec::new(), Vec::new());
        self.find_fresh(&mut fresh, &mut grown);
        fresh.append(&mut grown);
        fresh
    }

    /// The same: into `grown` goes what is in mappings that are governed in part, which is
    /// registered already.
    fn find_fresh(&mut self, fresh: &mut Vec<PageRange>, grown: &mut Vec<PageRange>) {
        let Some(maps) = &mut self.maps else {
            return;
        };
        let managed = self.agent.pager.managed_ranges();
        let mut spans = managed.clone();
        spans.extend(self.retry.for_now(self.last_scan_ns));
        spans.sort_unstable_by_key(|s| s.start);
        let over = self.agent.config.wishes.mappings_over_bytes;
        let heap_end = heap_end();
        let _ = maps.for_each(|mapping| {
            let bytes = mapping.range.pages() * PAGE_SIZE as u64;
            if mapping.backing == Backing::Anonymous && bytes > over {
                let found = match parts_in(mapping.range, &managed).is_empty() {
                    true => &mut *fresh,
                    false => &mut *grown,
                };
                let mut add = |piece| found.extend(without_edge(piece, heap_end));
                each_unknown(mapping.range, &spans, &mut add);
            }
        });
    }

    /// Attaches each of `ranges`; whether one of them was found to have changed meanwhile.
    fn attach_all(&mut self, ranges: &[PageRange]) -> bool {
        let mut changed = false;
        for range in ranges {
            let done = Completion::new();
            self.agent
                .pager
                .post(Request::Attach(*range, Arc::clone(&done)));
            self.agent.pager.ring_fault_thread();
            match done.wait() {
                Ok(()) => {}
                Err(Errno::AGAIN) => changed = true,
                // Unmapped meanwhile, or of a kind userfaultfd does not serve, or served by one of
                // the program's own.
                Err(_) => self.retry.note(*range, now_ns()),
            }
        }
        changed
    }
}
