//! The bound on all memory of a process ([`crate::footprint`]) kept: the evictor divides it anew
//! before each round, and whoever sees that what else there is has changed. Where all of it is
//! added up.
use std::sync::atomic::Ordering::Relaxed;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::sync::{now_ns, process_cpu_ns};
use pagetide_store::{StoreError, Usage};

use crate::footprint::{NOISE, Seen};
use crate::pager::Pager;
use crate::tree::member::Member;

/// The pages that may be resident become more in steps of so many.
const STEP: u64 = 64;
const PAGE_BYTES: u64 = PAGE_SIZE as u64;

impl Pager {
    /// The same pager, which keeps all memory of the process within `bytes`: resident pages, the
    /// store's part in memory, and everything else that is anonymous. The budget that it has is the
    /// most that may be resident, if that is less. Before its threads run.
    pub fn with_memory(self, bytes: u64) -> Pager {
        let pages = bytes / PAGE_BYTES;
        if self.budget.get() >= pages {
            self.ceiling.store(u64::MAX, Relaxed);
        }
        self.set_memory(pages);
        self
    }

    /// Changes the bound, in pages (at least one).
    pub(crate) fn set_memory(&self, pages: u64) {
        self.footprint.set_bound(pages);
        self.divide_memory();
        self.budget.work.ring();
    }

    /// Divides the bound, if there is one, between resident pages and the store as things are.
    /// Allocates nothing.
    pub fn divide_memory(&self) {
        let Some(bound) = self.footprint.bound() else {
            return;
        };
        let (store, budget) = (self.stores.active(), &self.budget);
        let seen = Seen {
            bound,
            most: self.ceiling.load(Relaxed),
            others: self.footprint.others(),
            stored: store.usage().shared_bytes.div_ceil(PAGE_BYTES),
            spills: store.capabilities().spills,
        };
        let division = seen.divide();
        store.hold_at_most(division.stored.saturating_mul(PAGE_BYTES));
        let is_scarce = division.resident < seen.most && !seen.spills;
        self.footprint.note(division, is_scarce);
        let now = budget.get();
        let grows = division.resident >= now.saturating_add(STEP) && self.automatic.is_none();
        if division.resident < now || grows {
            budget.set(division.resident);
        }
        let bytes = bound.saturating_mul(PAGE_BYTES);
        self.ledger.memory_budget_bytes.store(bytes, Relaxed);
    }

    /// Takes note of what `anonymous` finds: the pages of anonymous memory that the kernel counts
    /// for this process, 0 if that cannot be told.
    pub fn note_anonymous(&self, anonymous: impl FnOnce() -> u64) {
        let before = self.budget.resident_in_all();
        let all = anonymous();
        let after = self.budget.resident_in_all();
        if all == 0 || before.abs_diff(after) > NOISE {
            return;
        }
        let others = all.saturating_sub(before.min(after));
        if self.footprint.note_others(others) {
            self.divide_memory();
        }
    }

    /// Whether no more is resident than may be, and, with a bound on all memory, no more in memory.
    pub fn is_bound_kept(&self) -> bool {
        let in_all = || {
            let stored = self.stores.active().usage().shared_bytes;
            let resident = self.budget.resident_in_all();
            resident + self.footprint.others() + stored.div_ceil(PAGE_BYTES)
        };
        let bound = self.footprint.bound();
        // Of a common budget a process has more than its user allows while that will not go.
        let most = self.member.as_ref().map_or(u64::MAX, Member::most);
        self.budget.is_kept()
            && self.budget.resident_in_all() <= most
            && bound.is_none_or(|bound| in_all() <= bound)
    }

    /// Brings the ledger up to date: what the store holds, and what is resident, which two threads
    /// may have noted in the wrong order.
    pub fn note_store(&self) {
        let (usage, ledger) = (self.stores.active().usage(), self.ledger);
        let resident = self.budget.resident_in_all() * PAGE_BYTES;
        let (memory, others) = self.memory_in_all(resident, &usage);
        ledger.memory_bytes_max.fetch_max(memory, Relaxed);
        for (counter, value) in [
            (&ledger.resident_bytes, resident),
            (&ledger.store_bytes, usage.bytes),
            (&ledger.store_bytes_max, usage.bytes_max),
            (&ledger.store_pages, usage.pages),
            (&ledger.memory_bytes, memory),
            (&ledger.other_bytes, others),
            (&ledger.put_bytes, usage.put_bytes),
            (&ledger.put_bytes_stored, usage.put_bytes_stored),
            (&ledger.same_filled, usage.same_filled),
            (&ledger.cpu_ns, process_cpu_ns()),
            (&ledger.updated_ns, now_ns()),
        ] {
            counter.store(value, Relaxed);
        }
    }

    /// Bytes of this machine's memory in all, now, of which `resident` are resident pages; and how
    /// many are neither that nor in the store: where nobody looks, the words alone of pages that
    /// have content.
    pub(crate) fn memory_in_all(&self, resident: u64, store: &Usage) -> (u64, u64) {
        /// There is a byte of page words for so many bytes under the pager.
        const WORD_IN_BYTES: u64 = (PAGE_SIZE / size_of::<u64>()) as u64;
        let others = match self.footprint.others() {
            0 => (resident + store.pages * PAGE_BYTES) / WORD_IN_BYTES,
            // The store's tables are anonymous, too.
            seen => (seen * PAGE_BYTES)
                .saturating_sub(store.memory_bytes.saturating_sub(store.shared_bytes)),
        };
        (resident + store.memory_bytes + others, others)
    }

    /// What is said when the store has taken no page for so many seconds while the program waited.
    pub(super) fn refusal(&self, error: &StoreError, seconds: u64) -> String {
        let store = self.stores.active();
        let refuses = format!(
            "the {} store has taken no page for {seconds} s while the program waited for memory",
            store.capabilities().scheme
        );
        let Some(bound) = self.footprint.bound() else {
            return format!(
                "{refuses}, so its budget cannot be held: {error}; give the store room (its \
                 `max=`, where it has one), or use a larger --resident"
            );
        };
        let resident = self.budget.resident_in_all() * PAGE_BYTES;
        let usage = store.usage();
        let (_, others) = self.memory_in_all(resident, &usage);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let spill = match store.capabilities().spills {
            true => "",
            false => ", or send what does not fit elsewhere: --store 'ram:?then=file:/var/tmp/'",
        };
        format!(
            "{refuses}, as its --memory of {} MiB is used up: {} MiB are resident, {} MiB hold {} \
             MiB in the store, {} MiB are other memory of the process ({error}); use a larger \
             --memory{spill}",
            mib(bound * PAGE_BYTES),
            mib(resident),
            mib(usage.memory_bytes),
            mib(usage.pages * PAGE_BYTES),
            mib(others),
        )
    }
}
