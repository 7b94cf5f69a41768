//! Memory that comes under the pager, or leaves it.
use pagetide_kernel::PageRange;
use pagetide_kernel::uffd::Stop;
use rustix::io::Errno;

use super::Ownership;
use super::fault::FaultThread;
use super::serve::{Fault, Outcome};
use super::word::State;

impl FaultThread<'_> {
    /// Gives `range` back to the kernel's care, with every page present.
    pub(super) fn detach(&mut self, range: PageRange) -> Result<(), Errno> {
        let pager = self.pager;
        // The evictor may wait for a page itself before it holds still.
        pager.pause_evictor(|| {
            self.read_messages();
            self.serve_deferred();
        });
        self.server.detaching = true;
        let mut result = Ok(());
        for page in range.iter() {
            while result.is_ok() && pager.table.load(page).state() == State::Stored {
                match self.server.resolve(Fault {
                    page,
                    write: true,
                    write_protect: false,
                    read_at_ns: 0,
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
        self.server.detaching = false;
        if result.is_ok() {
            // SAFETY: every page of the range whose bytes matter is present, and the evictor, held still, will not change that.
            result = unsafe { pager.handles().uffd.unregister(range) };
        }
        if result.is_ok() {
            let _ = pagetide_kernel::memory::set_inherited(range, true);
            pager.empty(range);
            pager.remove_span(range);
        }
        pager.resume_evictor();
        result
    }

    /// Puts `range` under the pager. Pages that are present stay and count as resident.
    pub(super) fn attach(&mut self, range: PageRange) -> Result<(), Errno> {
        let pager = self.pager;
        let mut ours = false;
        if pager.ownership == Ownership::Program {
            pagetide_kernel::own::overlapping(range, |_| ours = true);
        }
        if ours {
            // Became excluded since the warden looked.
            return Err(Errno::AGAIN);
        }
        pager.table.ensure(range)?;
        // SAFETY: this thread serves the faults from now on, and the range is the program's (its maker says so), not the pager's.
        unsafe { pager.handles().uffd.register(range) }?;
        if pager.ownership == Ownership::Program {
            // An unmapping of what was here before may not have been heard of yet. While one is under way the kernel refuses this
            // (needless) operation; once it agrees, all such events have been read, and acted on, by this thread.
            while pager
                .handles()
                .uffd
                .write_protect(pager.staging.range(), false)
                == Err(Stop::EventPending)
            {
                if !self.read_messages() {
                    std::thread::yield_now();
                }
            }
        }
        // A forked child has no pager for this memory (unless its fork is caught): better no memory than zeros.
        let _ = pagetide_kernel::memory::set_inherited(range, false);
        let mut adopted = 0;
        pager.handles().pagemap.populated(range, |run, _| {
            for page in run.iter() {
                let was = pager.table.update(page, |w| {
                    if w.state() == State::Untouched {
                        w.with_state(State::Resident)
                    } else {
                        w
                    }
                });
                if was.state() == State::Untouched {
                    adopted += 1;
                    pager.enqueue(page);
                }
            }
        })?;
        if adopted > 0 {
            pager.adopt(adopted);
        }
        pager.add_span(range);
        if pager.ownership == Ownership::Program {
            self.detach_excluded(range);
        }
        Ok(())
    }

    /// A thread may have begun to use a part of `range` as its stack since the warden looked, and have found it not governed.
    fn detach_excluded(&mut self, range: PageRange) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let mut excluded = Vec::new();
        pagetide_kernel::own::overlapping(range, |own| excluded.push(own.intersection(range)));
        for part in excluded {
            let _ = self.detach(part);
        }
    }
}
