//! Memory that comes under the pager, or leaves it.
use pagetide_kernel::PageRange;
use pagetide_kernel::uffd::Stop;
use rustix::io::Errno;

use super::events::mapped_in;
use crate::fault::handler::{Fault, Outcome};
use crate::fault::thread::FaultThread;
use crate::handles::Ownership;
use crate::page::word::State;
use crate::pager::Pager;

impl FaultThread<'_> {
    /// Gives `range` back to the kernel's care, with every page present.
    pub(crate) fn detach(&mut self, range: PageRange) -> Result<(), Errno> {
        let pager = self.pager;
        // The evictor may wait for a page itself before it holds still.
        pager.pause_evictor(|| {
            self.read_messages();
            self.serve_deferred();
        });
        // Reading messages may have to do this for another part.
        let within_another = std::mem::replace(&mut self.handler.detaching, true);
        let mut result = Ok(());
        for page in range.iter() {
            while result.is_ok() && pager.table.load(page).state() == State::Stored {
                match self.handler.serve(Fault {
                    page,
                    write: true,
                    write_protect: false,
                    read_at_ns: 0,
                    waited: false,
                }) {
                    Outcome::EventPending => {
                        self.read_messages();
                        std::thread::yield_now();
                    }
                    Outcome::Woken => result = Err(Errno::NOENT),
                    Outcome::Installed
                    | Outcome::NoRoom
                    | Outcome::NoRoomForOldBytes
                    | Outcome::Busy => {}
                }
            }
        }
        self.handler.detaching = within_another;
        if result.is_ok() {
            // SAFETY: every page of the range whose bytes matter is present, and the evictor, held
            // still, will not change that.
            result = unsafe { pager.handles().uffd.unregister(range) };
        }
        if result.is_ok() {
            let _ = pagetide_kernel::memory::set_inherited(range, true);
            pager.empty(range);
            pager.remove_managed(range);
        }
        pager.resume_evictor();
        result
    }

    /// Puts `range` under the pager. Pages that are present stay and count as resident.
    pub(crate) fn attach(&mut self, range: PageRange) -> Result<(), Errno> {
        let pager = self.pager;
        let mut ours = false;
        if pager.ownership == Ownership::Program {
            pagetide_kernel::own::overlapping(range, |_| ours = true);
        }
        if ours {
            // Became excluded since the scanner looked.
            return Err(Errno::AGAIN);
        }
        self.read_messages();
        if self.messages.log.is_doubtful(range) {
            // New memory must not be taken for what was there before: that is decided by what is
            // registered.
            return Err(Errno::AGAIN);
        }
        pager.table.ensure(range)?;
        // SAFETY: this thread serves the faults from now on, and the range is the program's (its
        // maker says so), not the pager's.
        unsafe { pager.handles().uffd.register(range) }?;
        if pager.ownership == Ownership::Program {
            // From here on, what leaves the range is heard of.
            self.messages.log.note_unlooked(range);
            self.wait_for_evictor(range);
            self.wait_until_registered(range).inspect_err(|errno| {
                if *errno == Errno::INVAL {
                    // SAFETY: it is shared memory, whose bytes are in the page cache.
                    unsafe { pager.let_go(range) };
                }
            })?;
        }
        // A forked child has no pager for this memory (unless its fork is caught): better no memory
        // than zeros.
        let _ = pagetide_kernel::memory::set_inherited(range, false);
        self.adopt_present(range)?;
        pager.add_managed(range);
        if pager.ownership == Ownership::Program {
            if !pager.has_event_pending() {
                self.messages.log.take_unlooked(range);
            }
            self.detach_excluded(range);
        }
        Ok(())
    }

    /// Counts the pages of `range` that are present and not known as resident.
    fn adopt_present(&self, range: PageRange) -> Result<(), Errno> {
        let pager = self.pager;
        pager.handles().pagemap.populated(range, |run, _| {
            // Also what the program removed while the evictor had it: it is about to be untouched.
            let may_be = |page| {
                let word = pager.table.load(page);
                word.state() == State::Untouched || word.is_removed()
            };
            // Counted before the evictor can find them: it may count one out again at once.
            let most = run.iter().filter(|page| may_be(*page)).count() as u64;
            pager.budget.adopt_attached(most);
            let mut adopted = 0;
            for page in run.iter() {
                let was = pager.table.update(page, |w| {
                    if w.state() == State::Untouched {
                        w.adopted()
                    } else {
                        w
                    }
                });
                if was.state() == State::Untouched {
                    adopted += 1;
                    pager.enqueue(page);
                }
            }
            match most.checked_sub(adopted) {
                Some(superfluous) => pager.budget.unreserve(superfluous),
                None => pager.budget.adopt(adopted - most),
            }
        })
    }

    /// Looks at what was registered while an event was under way, where it is now. It stays to be
    /// looked at while there is one. A page that is present and not known would be zeros in a
    /// forked child, and so would one that was evicted from memory that is registered and not known
    /// to be.
    pub(crate) fn look_again(&mut self) {
        let pager = self.pager;
        while let Some(range) = self.messages.log.unlooked() {
            let parts = match pager.is_registered(range) {
                Ok(()) => vec![range],
                Err(Stop::EventPending) => return,
                Err(_) => mapped_in(range).unwrap_or_else(|_| vec![range]),
            };
            for part in parts {
                if pager.is_registered(part).is_ok() {
                    let _ = pagetide_kernel::memory::set_inherited(part, false);
                    // What cannot be looked at (out of memory) is as before.
                    let _ = self.adopt_present(part);
                    pager.add_managed(part);
                }
            }
            if pager.has_event_pending() {
                return;
            }
            self.messages.log.take_unlooked(range);
            self.detach_excluded(range);
        }
    }

    /// Waits until the evictor is through with pages of what was in `range` before, which it knows
    /// by their words: those of the new memory are to be other ones.
    fn wait_for_evictor(&mut self, range: PageRange) {
        while self.pager.is_emptying(range) {
            if !self.read_messages() {
                std::thread::yield_now();
            }
        }
    }

    /// Waits for a moment at which `range` is one registered mapping and no event is unread. Before
    /// that the program may have unmapped it, heard of or not, and mapped something else there,
    /// whose pages must not be taken for registered ones: they would be moved out, and nobody would
    /// be asked to bring them back. After it, whatever becomes of the mapping raises an event; no
    /// page is moved until that is read, which only this thread does. `EAGAIN` if it is not one
    /// registered mapping: to be looked at again. `EINVAL` if it is shared memory by now.
    fn wait_until_registered(&mut self, range: PageRange) -> Result<(), Errno> {
        let pager = self.pager;
        loop {
            match pager.is_ours(range) {
                Ok(true) => {
                    self.messages.kept_since = None;
                    return Ok(());
                }
                Ok(false) => return Err(Errno::INVAL),
                Err(Stop::EventPending) => {
                    pager.space.throttle.kept(&mut self.messages.kept_since);
                    if !self.read_messages() {
                        std::thread::yield_now();
                    }
                }
                Err(_) => return Err(Errno::AGAIN),
            }
        }
    }

    /// A thread may have begun to use a part of `range` as its stack since the scanner looked, and
    /// have found it not governed.
    fn detach_excluded(&mut self, range: PageRange) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let mut excluded = Vec::new();
        pagetide_kernel::own::overlapping(range, |own| excluded.push(own.intersection(range)));
        for mut part in excluded {
            while let Some(attached) = self.pager.space.managed.first_in(part) {
                let _ = self.detach(attached);
                part.start = attached.end;
            }
        }
    }
}

impl Pager {
    /// Registers memory that is to be attached right after: nothing more of it is filled then but
    /// by the fault thread. What is no longer one mapping of private memory is left as it is.
    pub fn register_ahead(&self, ranges: &[PageRange]) {
        // So that what must be let go is whole.
        self.pause_evictor(|| {});
        for range in ranges {
            // SAFETY: the fault thread serves the faults, and the range is the program's.
            let registered = unsafe { self.handles().uffd.register(*range) };
            if registered.is_ok() && !self.is_still_ours(*range) {
                // SAFETY: the evictor, which holds still, has taken nothing out.
                unsafe { self.let_go(*range) };
            }
        }
        self.resume_evictor();
    }

    /// Asks [`Pager::is_ours`] until the fault thread has read the events that keep the answer.
    fn is_still_ours(&self, range: PageRange) -> bool {
        const TRIES: u32 = 1000;
        for _ in 0..TRIES {
            match self.is_ours(range) {
                Err(Stop::EventPending) => std::thread::yield_now(),
                said => return said == Ok(true),
            }
        }
        false
    }

    /// Ends the registration of what is not attached, and forgets what is known of its pages.
    ///
    /// # Safety
    /// No page of it was taken out, unless the bytes of all are in the page cache.
    unsafe fn let_go(&self, range: PageRange) {
        // SAFETY: by the caller's word.
        let _ = unsafe { self.handles().uffd.unregister(range) };
        let _gate = self.gate.lock();
        self.empty(range);
    }
}
