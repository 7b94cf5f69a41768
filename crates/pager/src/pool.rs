//! Serving faults on the threads that have them: in a signal handler, or without a trap at all.
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagetide_kernel::PageNumber;
use pagetide_kernel::own::Mapping;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::{call_on_stack, set_signal_mask};

use super::page::word::State;
use super::serve::{Fault, Outcome, Server};
use super::{Pager, StartError};

/// Tries at a page another thread is busy with before the processor is given away.
const SPINS: u32 = 64;

/// How long a thread that waits for room gives its processor to an evictor that is beside it,
/// before it sleeps. One that sleeps is woken on another processor, and the evictor is beside it no
/// more.
const GIVE_WAY_NS: u64 = 5_000_000;

/// A signal handler may find itself on an alternate stack of a few KiB, so it serves on a stack of
/// the server's.
const STACK_BYTES: usize = 64 << 10;

const ALL_SIGNALS: u64 = !0;

struct Pooled {
    busy: AtomicBool,
    server: UnsafeCell<Server<'static>>,
    stack: Mapping,
}

/// What [`ServerPool::serve_in_signal`] hands over to the other stack.
struct Call<'a> {
    pool: &'a ServerPool,
    server: &'a mut Server<'static>,
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
        .serve_with(call.server, call.page, call.write, call.write_protect);
}

/// Servers for any thread to use for the length of one fault. Taking one neither blocks nor
/// allocates.
pub struct ServerPool {
    // Dropped before the pager they borrow.
    servers: Box<[Pooled]>,
    last: AtomicUsize,
    pager: Arc<Pager>,
}

// SAFETY: a server is used only by the thread that has set its `busy` flag.
unsafe impl Sync for ServerPool {}
// SAFETY: as above; nothing in a server is bound to a thread.
unsafe impl Send for ServerPool {}

impl ServerPool {
    /// Enough servers for twice as many threads as there are processors; preallocated.
    pub fn new(pager: Arc<Pager>) -> Result<ServerPool, StartError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: the pool keeps the pager alive and drops the servers first.
        let borrowed: &'static Pager = unsafe { &*Arc::as_ptr(&pager) };
        let servers = (0..(2 * cores).clamp(4, 64))
            .map(|_| {
                Ok(Pooled {
                    busy: AtomicBool::new(false),
                    server: UnsafeCell::new(Server::new_for_signals(borrowed)?),
                    stack: Mapping::new(STACK_BYTES).map_err(super::system("mmap"))?,
                })
            })
            .collect::<Result<_, StartError>>()?;
        Ok(ServerPool {
            servers,
            last: AtomicUsize::new(0),
            pager,
        })
    }

    /// Runs `action` with a server, and its stack, of this thread's own.
    fn with<R>(&self, action: impl FnOnce(&mut Server<'static>, &Mapping) -> R) -> R {
        let mut index = self.last.load(Relaxed);
        let mut tries = 0;
        loop {
            let pooled = &self.servers[index % self.servers.len()];
            let free = pooled.busy.compare_exchange(false, true, Acquire, Relaxed);
            if free.is_ok() {
                self.last.store(index, Relaxed);
                // SAFETY: the flag is ours until it is cleared below, so no other thread uses this
                // server.
                let result = action(unsafe { &mut *pooled.server.get() }, &pooled.stack);
                pooled.busy.store(false, Release);
                return result;
            }
            index = index.wrapping_add(1);
            tries += 1;
            if tries % self.servers.len() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until everybody who uses a server now has finished with it.
    pub fn wait_for_all(&self) {
        for pooled in &self.servers {
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
        let watched = self.pager.watch.is_watched();
        let mask = watched.then(|| set_signal_mask(ALL_SIGNALS));
        let served = self.with(|server, _| self.serve_with(server, page, write, write_protect));
        if let Some(mask) = mask {
            set_signal_mask(mask);
        }
        served
    }

    /// The same, from a signal handler with little stack.
    pub fn serve_in_signal(&self, page: PageNumber, write: bool, write_protect: bool) -> bool {
        self.with(|server, stack| {
            let mut call = Call {
                pool: self,
                server,
                page,
                write,
                write_protect,
                served: false,
            };
            // SAFETY: a stack of this server's, which is this thread's; 16-byte aligned as the
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
        server: &mut Server<'static>,
        page: PageNumber,
        write: bool,
        write_protect: bool,
    ) -> bool {
        let pager = &*self.pager;
        let started_ns = now_ns();
        let fault = Fault {
            page,
            write,
            write_protect,
            read_at_ns: started_ns,
        };
        let mut tries = 0u32;
        loop {
            if pager.table.load(page).state() == State::Poisoned {
                return false;
            }
            match server.resolve(fault) {
                Outcome::Installed | Outcome::Woken => break,
                Outcome::NoRoom => self.wait_for_room(server.is_recent(page)),
                Outcome::NoRoomForOldBytes => {
                    if let Some(inside) = pager.watch.enter()
                        && let Some(watcher) = inside.watcher_of(page)
                    {
                        watcher.wait_for_room();
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
        pager.fault_processors.note();
        pager.ledger.faults.fetch_add(1, Relaxed);
        pager.ledger.fault_latency.record(now_ns() - started_ns);
        true
    }

    fn wait_for_room(&self, recent: bool) {
        let pager = &*self.pager;
        if recent {
            pager.lend();
        }
        let seen = pager.progress.look();
        pager.waiting.fetch_add(1, SeqCst);
        pager.work.ring();
        let until_ns = now_ns() + GIVE_WAY_NS;
        while pager.free() == 0 && pager.fault_processors.evictor_is_here() && now_ns() < until_ns {
            std::thread::yield_now();
        }
        if pager.free() == 0 {
            pager.progress.wait(seen, Some(Duration::from_millis(1)));
        }
        pager.waiting.fetch_sub(1, SeqCst);
    }
}
