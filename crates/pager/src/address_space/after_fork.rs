//! After a fork, in the child: the memory is there, the registration is not.
use pagetide_kernel::maps::{Backing, Maps};
use pagetide_kernel::{PageRange, each_gap};
use rustix::io::Errno;

use crate::page::word::{State, Word};
use crate::pager::Pager;

impl Pager {
    /// Registers all attached memory with the (new) descriptors and puts the page words right:
    /// write protection did not survive the fork, so no page is clean that is known to be so by
    /// that; what is resident and what is stored did. The child's own pages start out shared with
    /// the parent.
    ///
    /// Call before any code of the program runs in the child.
    pub fn register_after_fork(&self) -> Result<(), Errno> {
        self.leave_gaps()?;
        let by_protection = !self.handles().content_tells;
        for range in self.space.managed.all() {
            self.register_mapped(range)?;
            let _ = pagetide_kernel::memory::set_inherited(range, false);
            self.table.for_each_used(range, |page, word| {
                if by_protection && word.state() == State::Clean {
                    self.table.update(page, Word::unbacked);
                }
            });
        }
        let managed = self.space.managed.all();
        self.note_managed(managed.iter().map(|range| range.pages()).sum());
        self.budget.adopt(0);
        Ok(())
    }

    /// What other threads were just unmapping when the fork came is not here, and of that nobody
    /// was told. New memory in its place must not be taken for the old.
    fn leave_gaps(&self) -> Result<(), Errno> {
        let mut mapped = Vec::new();
        Maps::open()?.for_each(|mapping| {
            if mapping.backing == Backing::Anonymous {
                mapped.push(mapping.range);
            }
        })?;
        // Everywhere: of memory that has just grown there may be words though it is not known to be
        // attached.
        each_gap(self.table.pages(), mapped.into_iter(), |gap| {
            self.remove_managed(gap);
            self.empty(gap);
        });
        Ok(())
    }

    /// Registers `range`; where a part of it was left out of the fork by the program's own wish,
    /// the rest of it.
    fn register_mapped(&self, range: PageRange) -> Result<(), Errno> {
        // Each mapping has the protection that it can have.
        if self.victims.watched().is_some() {
            return self.register_parts(range);
        }
        // SAFETY: the child's fault thread, started next, serves these faults; until then nothing
        // touches the memory.
        match unsafe { self.handles().uffd.register(range) } {
            Err(Errno::INVAL | Errno::NOMEM) => self.register_parts(range),
            result => result,
        }
    }

    fn register_parts(&self, range: PageRange) -> Result<(), Errno> {
        let mut result = Ok(());
        Maps::open()?.for_each(|mapping| {
            let part = mapping.range.intersection(range);
            if mapping.backing == Backing::Anonymous && !part.is_empty() {
                // SAFETY: as above.
                result = result.and(unsafe { self.handles().uffd.register(part) });
            }
        })?;
        result
    }
}
