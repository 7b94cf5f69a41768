//! What the program does to its mappings, followed in the page words.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pagetide_kernel::maps::Maps;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::uffd::event_log::{EventLog, Heard, Memory, Settled};
use pagetide_kernel::uffd::{Event, Message, Stop};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::own_drops::Whose;
use super::throttle::KeptSince;
use crate::fault::handler::Fault;
use crate::gate::GateGuard;
use crate::handles::Ownership;
use crate::page::word::{Place, State, Word};
use crate::pager::Pager;

/// Longest wait for a call of the evictor's to end. The event may have been of the program's own
/// call for the same pages, and the evictor's stand behind it.
const CALL_WAIT_NS: u64 = 50_000_000;
/// How long moved memory waits for the tables of its new place. The program waits with it.
const TABLES_WAIT_MAX: Duration = Duration::from_secs(10);

/// Reads the userfaultfd: events are acted on at once, faults are for whoever serves them.
pub(crate) struct Messages<'p> {
    pager: &'p Pager,
    reader: Reader<'p>,
    pub(super) log: EventLog,
    /// Since when an event has been under way whenever the fault thread wanted to work.
    pub(crate) kept_since: KeptSince,
}

/// The buffer messages are read to, and the faults among them.
struct Reader<'p> {
    pager: &'p Pager,
    buffer: [Message; 32],
    /// The last time it read, there was something to read.
    found: bool,
    /// Read and not yet tried.
    faults: Vec<Fault>,
    /// A call of the evictor's whose event was read, and until when its end is waited for at most.
    awaits: Option<(u32, u64)>,
}

impl<'p> Messages<'p> {
    pub(crate) fn new(pager: &'p Pager) -> Messages<'p> {
        Messages {
            pager,
            reader: Reader {
                pager,
                buffer: [Message::default(); 32],
                found: false,
                faults: Vec::with_capacity(256),
                awaits: None,
            },
            log: EventLog::default(),
            kept_since: None,
        }
    }

    /// Reads what waits, and acts on events before the gate opens again. Returns whether there was
    /// anything.
    pub(crate) fn read(&mut self) -> bool {
        let pager = self.pager;
        if pager.ownership != Ownership::Program {
            // There are no events to be acted on.
            return self.reader.read(self.log.events(), |_| Whose::Others);
        }
        // Looking for the next fault over and over must not keep the gate from the evictor. Where
        // there was one, the next mostly is there.
        if !self.reader.found && !pager.handles().uffd.is_readable() {
            return false;
        }
        let gate = pager.gate.lock();
        let whose = |range| pager.space.own_drops.lock().whose(range);
        if !self.reader.read(self.log.events(), whose) {
            drop(gate);
            if self.reader.awaits.is_some() {
                std::thread::yield_now();
            }
            return false;
        }
        let mut memory = Managed::new(&mut self.reader, gate);
        self.log.act_on_all(&mut memory);
        memory.gate().set_events_pending(self.log.has_doubts());
        true
    }

    /// Exchanges the faults read for an empty list.
    pub(crate) fn swap_faults(&mut self, list: &mut Vec<Fault>) {
        std::mem::swap(&mut self.reader.faults, list);
    }

    /// Settles what is in doubt, if that can be done now. Returns whether memory is to be looked at
    /// that came under the pager meanwhile.
    pub(crate) fn settle(&mut self) -> bool {
        if self.log.is_settled() {
            return false;
        }
        let pager = self.pager;
        let mut memory = Managed::new(&mut self.reader, pager.gate.lock());
        match self.log.settle(&mut memory) {
            Settled::Already | Settled::Later => return false,
            Settled::Kept => pager.space.throttle.kept(&mut self.kept_since),
            Settled::Now => {
                self.kept_since = None;
                memory.gate().set_events_pending(false);
                return true;
            }
        }
        false
    }

    /// Whether nothing is in doubt, and no memory was moved since no event was under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.log.is_settled()
    }

    /// Whether it is known what memory there is, and which of its pages are present.
    pub(crate) fn is_sure(&self) -> bool {
        self.log.is_sure()
    }
}

impl Reader<'_> {
    /// Reads faults, and an event if there is one, which is the last then.
    ///
    /// The kernel gives faults before events, and one that it is told of again and again must not
    /// keep the event back: a thread that faults within a system call, with a signal pending, does
    /// not sleep but faults anew.
    fn read_to_event(&mut self) -> usize {
        for count in 0..self.buffer.len() {
            let place = &mut self.buffer[count..=count];
            let found = self.pager.handles().uffd.read(place).unwrap_or(0);
            if found == 0 || !place[0].is_fault() {
                return count + found;
            }
        }
        self.buffer.len()
    }

    /// Puts the events read in `events` and the faults in `faults`. Whether there were any. With
    /// the gate held, or while the evictor begins nothing. While it empties pages in place, one
    /// event at a time, and none after its own (of `whose`) before its call has ended; see
    /// [`super::own_drops`].
    fn read(&mut self, events: &mut VecDeque<Event>, whose: impl Fn(PageRange) -> Whose) -> bool {
        let call = self.pager.space.own_drops.call();
        if let Some((awaited, until_ns)) = self.awaits {
            if call == Some(awaited) && now_ns() < until_ns {
                return false;
            }
            self.awaits = None;
        }
        let count = match call {
            None => self
                .pager
                .handles()
                .uffd
                .read(&mut self.buffer)
                .unwrap_or(0),
            Some(_) => self.read_to_event(),
        };
        self.found = count > 0;
        let now = now_ns();
        for message in &self.buffer[..count] {
            match message.decode() {
                Event::Fault {
                    page,
                    write,
                    write_protect,
                    thread,
                    ..
                } => {
                    self.pager.placement.faulted(thread);
                    self.faults.push(Fault {
                        page,
                        write,
                        write_protect,
                        read_at_ns: now,
                        waited: false,
                    });
                }
                event => {
                    let whose = match event {
                        Event::Remove(range) if call.is_some() => whose(range),
                        _ => Whose::Others,
                    };
                    if whose != Whose::Others {
                        self.awaits = call.map(|call| (call, now + CALL_WAIT_NS));
                    }
                    if whose != Whose::EvictorsAgain {
                        events.push_back(event);
                    }
                }
            }
        }
        count > 0
    }
}

/// The managed memory, with the gate held.
struct Managed<'a, 'p> {
    reader: &'a mut Reader<'p>,
    gate: Option<GateGuard<'p>>,
}

impl<'a, 'p> Managed<'a, 'p> {
    fn new(reader: &'a mut Reader<'p>, gate: GateGuard<'p>) -> Managed<'a, 'p> {
        let gate = Some(gate);
        Managed { reader, gate }
    }

    fn pager(&self) -> &'p Pager {
        self.reader.pager
    }

    fn gate(&self) -> &GateGuard<'p> {
        self.gate.as_ref().expect("open only within `read_on`")
    }
}

impl Memory for Managed<'_, '_> {
    fn first_managed_in(&self, range: PageRange) -> Option<PageRange> {
        self.pager().space.managed.first_in(range)
    }

    fn is_registered(&self, range: PageRange) -> Result<(), Stop> {
        self.pager().is_registered(range)
    }

    fn mapped_in(&self, range: PageRange) -> Option<Vec<PageRange>> {
        mapped_in(range).ok()
    }

    fn has_event_pending(&self) -> bool {
        self.pager().has_event_pending()
    }

    /// An unmapping takes all pages. Some may be there again: the program may be further than what
    /// is heard here, and have put something else in the place.
    fn is_in_place(&self, range: PageRange, leaving: &[PageRange]) -> Option<bool> {
        let pager = self.pager();
        let is_expected = |page| {
            let state = pager.table.load(page).state();
            matches!(state, State::Resident | State::Clean)
                && !leaving.iter().any(|part| part.contains(page))
        };
        let mut expected = 0;
        (pager.table).for_each_used(range, |page, _| expected += u64::from(is_expected(page)));
        if expected == 0 {
            return None;
        }
        let scanned = pager.handles().pagemap.populated(range, |run, _| {
            expected -= run.iter().filter(|page| is_expected(*page)).count() as u64;
        });
        scanned.is_ok().then_some(expected == 0)
    }

    fn is_emptying(&self, range: PageRange) -> bool {
        self.pager().is_emptying(range)
    }

    fn emptied_by_program(&mut self, range: PageRange) -> Vec<PageRange> {
        self.pager().space.own_drops.lock().others(range)
    }

    /// The evictor waits for nothing more than that its own remove events were read. They are taken
    /// out in one step with reading them: it looks at the list when a call has failed.
    fn read_on(&mut self, events: &mut VecDeque<Event>) -> Heard {
        let pager = self.pager();
        self.gate().set_events_pending(true);
        self.gate = None;
        // Asked before the events are read: if none is under way now, all there are can be read
        // now.
        let pending = pager.has_event_pending();
        let mut own = pager.space.own_drops.lock();
        let read = self.reader.read(events, |range| own.whose(range));
        for event in std::mem::take(events) {
            match event {
                Event::Remove(range) => {
                    events.extend(own.others(range).into_iter().map(Event::Remove));
                }
                other => events.push_back(other),
            }
        }
        drop(own);
        if !read {
            std::thread::yield_now();
        }
        self.gate = Some(pager.gate.lock());
        match (read, pending) {
            (true, _) => Heard::Some,
            (false, true) => Heard::Pending,
            (false, false) => Heard::Nothing,
        }
    }

    fn empty(&mut self, range: PageRange) {
        self.pager().empty(range);
    }

    /// The range is given up first: the program may map the same place anew at once, and the
    /// scanner must not think it governed.
    fn unmap(&mut self, range: PageRange) {
        let pager = self.pager();
        pager.remove_managed(range);
        pager.empty(range);
        pager.space.note_change();
    }

    /// The words follow, and what is staged learns whose it is.
    fn move_pages(&mut self, from: PageRange, to: PageNumber) {
        let pager = self.pager();
        let target = PageRange::of(to, from.pages());
        let began = Instant::now();
        while let Err(errno) = pager.table.ensure(target) {
            // Memory may come back; address space does not.
            if began.elapsed() > TABLES_WAIT_MAX {
                pager.end_process(&format!(
                    "memory was moved (mremap), and no table can be made for its new place \
                     ({errno}): expected 2 MiB of address space for each GiB; raise `ulimit -v`"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut moved = Vec::new();
        pager.table.for_each_used(from, |page, _| {
            let word = pager.table.update(page, Word::moved_away);
            moved.push((to.add(page.0 - from.start.0), word));
        });
        // What was there before has left.
        for (page, word) in moved {
            if word.state() == State::Untouched {
                continue;
            }
            if word.state() == State::Staged {
                pager.staging.set_owner(word.staging_index(), page);
            }
            pager.table.update(page, |here| here.moved_here(word));
            if word.is_resident() {
                pager.enqueue(page);
            }
        }
        pager.add_managed(target);
    }
}

/// The mappings in `range`, as far as they are in it.
pub(super) fn mapped_in(range: PageRange) -> Result<Vec<PageRange>, Errno> {
    let mut mapped = Vec::new();
    Maps::open()?.for_each(|mapping| {
        let part = mapping.range.intersection(range);
        if !part.is_empty() {
            mapped.push(part);
        }
    })?;
    Ok(mapped)
}

impl Pager {
    /// Whether the evictor is emptying a page in place that is, or was, in `range`.
    pub(crate) fn is_emptying(&self, range: PageRange) -> bool {
        let mut busy = false;
        self.table.for_each_used(range, |_, word| {
            busy |= matches!(word.state(), State::Protecting | State::Dropping)
        });
        busy
    }

    /// The program gave up the contents of `range`.
    pub fn empty(&self, range: PageRange) {
        let mut freed: Vec<Place> = Vec::new();
        let mut resident = 0;
        self.table.for_each_used(range, |page, _| {
            let was = self.table.update(page, Word::given_up);
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
        self.budget.unreserve(resident);
        self.stores.release(&freed);
    }
}
