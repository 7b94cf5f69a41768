//! A page that the store cannot give: it is never shown as zeros.
use std::io::Write;

use pagetide_kernel::uffd::Stop;
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::StoreError;

use super::claim::Claim;
use super::handler::{Handler, Outcome};
use crate::page::word::Word;
use crate::protocol::loss::Loss;

/// Most of the message about a lost page that is kept.
const MESSAGE_BYTES: usize = 512;

impl<'p> Handler<'p> {
    /// The store cannot give the bytes of `page`, which `claim` is of: accesses to it get SIGBUS,
    /// or, where the kernel has no such thing, the process is ended.
    pub(super) fn lose(
        &mut self,
        page: PageNumber,
        mut claim: Claim<'p>,
        error: &StoreError,
    ) -> Outcome {
        let pager = self.pager;
        // On the stack: this may be a signal handler.
        let mut text = [0; MESSAGE_BYTES];
        let mut cursor = std::io::Cursor::new(&mut text[..]);
        let store = pager.stores.of(claim.word(0).place().generation);
        let _ = write!(
            cursor,
            "data were lost: page at {:#x} is lost: {error}; it was in the {} store",
            page.address(),
            store.capabilities().scheme
        );
        let len = cursor.position() as usize;
        let message = String::from_utf8_lossy(&text[..len]);
        if !pager.handles().can_poison() {
            pager.end_process_for(Loss::Page, &message);
        }
        pager.note_loss(Loss::Page, &message);
        claim.settle(1, Word::lost, |_, _| {});
        self.poison(page)
    }

    pub(super) fn poison(&mut self, page: PageNumber) -> Outcome {
        match self.pager.handles().uffd.poison(PageRange::one(page)).stop {
            Some(Stop::EventPending) => Outcome::EventPending,
            None => Outcome::Installed,
            _ => self.wake(page),
        }
    }
}
