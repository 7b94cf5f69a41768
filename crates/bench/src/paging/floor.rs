//! The least a fault by signal can take on this machine: the kernel's part of it and nothing else.
//! A handler installs a page and drops the oldest ones many in a call, as a pager must; it chooses
//! nothing, shares nothing, writes nothing back, and is told of one thread's reads only. What a
//! pager takes beyond that is its own doing.
#![allow(unsafe_code)] // serves its own memory's faults in a signal handler
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagetide_kernel::memory::BatchDropper;
use pagetide_kernel::own::Mapping;
use pagetide_kernel::trap::{Access, Serve, Signal, Trap};
use pagetide_kernel::uffd::{Uffd, feature, open_for_user_mode};
use pagetide_kernel::{PageNumber, PageRange};
use pagetide_store::{Page, Slot, Store};

use crate::content::{Content, PAGE_BYTES};

/// Every page is a copy of one that the processor has at hand.
pub const BARE: &str = "floor, no contents";
/// Every page is read from the store.
pub const STORE: &str = "floor, store read";

/// Memory whose faults are served at the least cost. One thread may read it.
pub struct Floor {
    // Dropped before what it serves with.
    _trap: Trap,
    handler: Box<Handler>,
    memory: Mapping,
}

struct Handler {
    uffd: Uffd,
    dropper: BatchDropper,
    range: PageRange,
    /// The most pages resident.
    most: usize,
    /// The store, and where in it each page is.
    store: Option<(Box<dyn Store>, Vec<Slot>)>,
    faults: AtomicU64,
    state: UnsafeCell<State>,
}

struct State {
    page: Box<Page>,
    /// Resident pages, oldest first.
    order: VecDeque<u32>,
    drops: Vec<PageRange>,
}

// SAFETY: `state` is used by the handler alone, and one thread alone has faults, which do not nest.
unsafe impl Sync for Handler {}

impl Handler {
    fn install(&self, page: PageNumber) -> Option<()> {
        // SAFETY: see `Sync` above.
        let state = unsafe { &mut *self.state.get() };
        let index = (page.0 - self.range.start.0) as u32;
        if let Some((store, slots)) = &self.store {
            store.get(slots[index as usize], &mut state.page).ok()?;
        }
        if state.order.len() >= self.most {
            state.drops.clear();
            let oldest = state.order.len().min(BatchDropper::MAX);
            let pages = state.order.drain(..oldest);
            state
                .drops
                .extend(pages.map(|index| PageRange::one(self.range.start.add(index.into()))));
            // SAFETY: the store has their bytes, or they have none.
            unsafe { self.dropper.drop_ranges(&state.drops) }.ok()?;
        }
        let source = state.page.0.as_ptr();
        // SAFETY: the page is this handler's own, and what the memory is to hold. Protected, as a
        // pager does to see writes.
        let progress = unsafe { self.uffd.copy(PageRange::one(page), source, true) };
        state.order.push_back(index);
        self.faults.fetch_add(1, Relaxed);
        progress.stop.is_none().then_some(())
    }
}

impl Serve for Handler {
    fn serve(&self, access: Access) -> bool {
        !access.write
            && self
                .install(PageNumber::containing(access.address))
                .is_some()
    }
}

impl Floor {
    /// Memory of `bytes` bytes, of which at most `resident` are. With a store (by its URI) it holds
    /// `content`; without one, nothing of meaning.
    pub fn new(
        bytes: usize,
        resident: u64,
        store: Option<&str>,
        content: &Content,
    ) -> Result<Floor, String> {
        let failed = |what: &'static str| move |error| format!("{what}: {error}");
        let pages = bytes / PAGE_BYTES;
        let store = match store {
            None => None,
            Some(uri) => Some(filled(uri, pages, content)?),
        };
        let uffd = open_for_user_mode().map_err(|error| error.to_string())?;
        let uffd = Uffd::negotiate(uffd, feature::SIGBUS | feature::PAGEFAULT_FLAG_WP)
            .map_err(failed("UFFDIO_API"))?;
        let memory = Mapping::new(bytes).map_err(failed("mmap"))?;
        // SAFETY: a new mapping, touched by nobody before its faults are served.
        unsafe { uffd.register(memory.range()) }.map_err(failed("UFFDIO_REGISTER"))?;
        let most = (resident as usize / PAGE_BYTES).max(1);
        let handler = Box::new(Handler {
            uffd,
            dropper: BatchDropper::new().map_err(failed("process_madvise"))?,
            range: memory.range(),
            most,
            store,
            faults: AtomicU64::new(0),
            state: UnsafeCell::new(State {
                page: Box::new(Page::ZERO),
                order: VecDeque::with_capacity(most + 1),
                drops: Vec::with_capacity(BatchDropper::MAX),
            }),
        });
        // SAFETY: it neither allocates (all is preallocated) nor takes a lock the thread may hold,
        // and lives as long as the trap.
        let trap = unsafe { Trap::set(Signal::Bus, memory.range(), &raw const *handler) }
            .map_err(failed("set a trap"))?;
        Ok(Floor {
            _trap: trap,
            handler,
            memory,
        })
    }

    /// Where the memory begins.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    /// Whether the memory holds what it should.
    pub fn has_contents(&self) -> bool {
        self.handler.store.is_some()
    }

    /// Bytes held by the store.
    pub fn store_bytes(&self) -> u64 {
        let store = self.handler.store.as_ref();
        store.map_or(0, |(store, _)| store.usage().bytes)
    }

    /// Faults served.
    pub fn faults(&self) -> u64 {
        self.handler.faults.load(Relaxed)
    }
}

/// A store that holds `content`, and the slot of each page.
fn filled(
    uri: &str,
    pages: usize,
    content: &Content,
) -> Result<(Box<dyn Store>, Vec<Slot>), String> {
    let store = pagetide_store::open(uri).map_err(|error| error.to_string())?;
    let mut slots = vec![Slot(0); pages];
    let mut page = Page::ZERO;
    for (number, slot) in slots.iter_mut().enumerate() {
        for (index, bytes) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = content.word(number, index).to_ne_bytes();
        }
        store
            .put(&[&page], std::slice::from_mut(slot))
            .map_err(|error| error.to_string())?;
    }
    Ok((store, slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_from_the_store_within_the_bound() {
        let content = Content {
            seed: 3,
            random_words: 256,
        };
        let floor = match Floor::new(1 << 20, 64 << 10, Some("ram:"), &content) {
            Ok(floor) => floor,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        for page in (0..256).chain([7, 0]) {
            // SAFETY: inside the mapping, which holds words.
            let word = unsafe { floor.as_ptr().cast::<u64>().add(page * 512 + 5).read() };
            assert_eq!(word, content.word(page, 5));
        }
        assert_eq!(floor.faults(), 258);
        // SAFETY: `Sync` says who else uses it: the handler, which is not running.
        let resident = unsafe { &*floor.handler.state.get() }.order.len();
        assert!(resident <= 16);
    }
}
