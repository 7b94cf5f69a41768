//! Serving faults on the threads that have them: in a signal handler, or without a trap at all.
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagetide_kernel::PageNumber;
use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::{call_on_stack, processors, set_signal_mask};

use super::handler::{Fault, Handler, Outcome};
use crate::handles::{StartError, system};
use crate::page::word::State;
use crate::pager::Pager;

/// Tries at a page another thread is busy with before the processor is given away.
const SPINS: u32 = 64;

/// How long a thread that waits for room gives its processor to an evictor that is beside it,
/// before it sleeps. One that sleeps is woken on another processor, and the evictor is beside it no
/// more.
const GIVE_WAY_NS: u64 = 5_000_000;

/// A signal handler may find itself on an alternate stack of a few KiB, so it serves on a stack of
/// the handler's.
const STACK_BYTES: usize = 64 << 10;

const ALL_SIGNALS: u64 = !0;

struct Pooled {
    busy: AtomicBool,
    handler: UnsafeCell<Handler<'static>>,
    stack: Mapping,
}

/// What [`HandlerPool::serve_in_signal`] hands over to the other stack.
struct Call<'a> {
    pool: &'a HandlerPool,
    handler: &'a mut Handler<'static>,
    page: PageNumber,
    write: bool,
    write_protect: bool,
    served: bool,
}

extern "C" fn enter(call: *mut ()) {
    // SAFETY: `serve_in_signal` passes its own `Call`, which nobody else uses meanwhile.
    let call = unsafe { &mut *call.cast::<Call<'_>>() };
    call.served = call
        .pool
        .serve_with(call.handler, call.page, call.write, call.write_protect);
}

/// Handlers for any thread to use for the length of one fault. Taking one neither blocks nor
/// allocates.
pub struct HandlerPool {
    // Dropped before the pager they borrow.
    handlers: Box<[Pooled]>,
    last: AtomicUsize,
    pager: Arc<Pager>,
}

// SAFETY: a handler is used only by the thread that has set its `busy` flag.
unsafe impl Sync for HandlerPool {}
// SAFETY: as above; nothing in a handler is bound to a thread.
unsafe impl Send for HandlerPool {}

impl HandlerPool {
    /// Enough handlers for twice as many threads as there are processors; preallocated.
    pub fn new(pager: Arc<Pager>) -> Result<HandlerPool, StartError> {
        let cores = processors();
        // SAFETY: the pool keeps the pager alive and drops the handlers first.
        let borrowed: &'static Pager = unsafe { &*Arc::as_ptr(&pager) };
        let handlers = (0..(2 * cores).clamp(4, 64))
            .map(|_| {
                Ok(Pooled {
                    busy: AtomicBool::new(false),
                    handler: UnsafeCell::new(Handler::new(borrowed, false)?),
                    stack: Mapping::new(STACK_BYTES).map_err(system("mmap"))?,
                })
            })
            .collect::<Result<_, StartError>>()?;
        Ok(HandlerPool {
            handlers,
            last: AtomicUsize::new(0),
            pager,
        })
    }

    /// Runs `action` with a handler, and its stack, of this thread's own.
    fn with<R>(&self, action: impl FnOnce(&mut Handler<'static>, &Mapping) -> R) -> R {
        let mut index = self.last.load(Relaxed);
        let mut tries = 0;
        loop {
            let pooled = &self.handlers[index % self.handlers.len()];
            let free = pooled.busy.compare_exchange(false, true, Acquire, Relaxed);
            if free.is_ok() {
                self.last.store(index, Relaxed);
                // SAFETY: the flag is ours until it is cleared below, so no other thread uses this
                // handler.
                let result = action(unsafe { &mut *pooled.handler.get() }, &pooled.stack);
                pooled.busy.store(false, Release);
                return result;
            }
            index = index.wrapping_add(1);
            tries += 1;
            if tries % self.handlers.len() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until everybody who uses a handler now has finished with it.
    pub fn wait_for_all(&self) {
        for pooled in &self.handlers {
            while pooled
                .busy
                .compare_exchange(false, true, SeqCst, Relaxed)
                .is_err()
            {
                std::thread::yield_now();
            }
            pooled.busy.store(false, SeqCst);
        }
    }

    /// Makes `page` accessible. False if its bytes are lost.
    pub fn serve(&self, page: PageNumber, write: bool, write_protect: bool) -> bool {
        // A snapshot that holds all threads still waits for those that are serving: they must not
        // be held in the middle of it.
        let observed = self.pager.write_notifications.is_observed();
        let mask = observed.then(|| set_signal_mask(ALL_SIGNALS));
        let served = self.with(|handler, _| self.serve_with(handler, page, write, write_protect));
        if let Some(mask) = mask {
            set_signal_mask(mask);
        }
        served
    }

    /// The same, from a signal handler with little stack.
    pub fn serve_in_signal(&self, page: PageNumber, write: bool, write_protect: bool) -> bool {
        self.with(|handler, stack| {
            let mut call = Call {
                pool: self,
                handler,
                page,
                write,
                write_protect,
                served: false,
            };
            // SAFETY: a stack of this handler's, which is this thread's; 16-byte aligned as the
            // mapping's end is. `enter` returns.
            unsafe {
                let top = stack.as_ptr().add(stack.len());
                call_on_stack(top, enter, (&raw mut call).cast());
            }
            call.served
        })
    }

    fn serve_with(
        &self,
        handler: &mut Handler<'static>,
        page: PageNumber,
        write: bool,
        write_protect: bool,
    ) -> bool {
        let pager = &*self.pager;
        let started_ns = now_ns();
        let mut fault = Fault {
            page,
            write,
            write_protect,
            read_at_ns: started_ns,
            waited: false,
        };
        let mut tries = 0u32;
        loop {
            if pager.table.load(page).state() == State::Poisoned {
                return false;
            }
            match handler.serve(fault) {
                Outcome::Installed | Outcome::Woken => break,
                Outcome::NoRoom => {
                    pager.note_wait(&mut fault);
                    self.wait_for_room(handler.recent.contains(page));
                }
                Outcome::NoRoomForOldBytes => {
                    if let Some(section) = pager.write_notifications.enter()
                        && let Some(observer) = section.observer_of(page)
                    {
                        observer.wait_for_room();
                    }
                }
                Outcome::Busy | Outcome::EventPending => {
                    tries += 1;
                    if tries.is_multiple_of(SPINS) {
                        std::thread::yield_now();
                    } else {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        pager.placement.faulted_here();
        pager.ledger.faults.fetch_add(1, Relaxed);
        pager.ledger.fault_latency.record(now_ns() - started_ns);
        true
    }

    fn wait_for_room(&self, recent: bool) {
        let pager = &*self.pager;
        let budget = &pager.budget;
        if recent {
            budget.lend();
        }
        let seen = budget.progress.look();
        budget.while_waiting(|| {
            let until_ns = now_ns() + GIVE_WAY_NS;
            while budget.free() == 0 && pager.placement.evictor_is_here() && now_ns() < until_ns {
                std::thread::yield_now();
            }
            if budget.free() == 0 {
                budget.progress.wait(seen, Some(Duration::from_millis(1)));
            }
        });
    }
}
