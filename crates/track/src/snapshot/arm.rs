//! Arming: write-protecting all that is writable, with the help of a few threads when that is
//! much.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use pagetide_kernel::sync::Doorbell;
use rustix::io::Errno;

use super::copy_aside::Shared;
use super::placement::Placement;
use crate::error::{TrackError, system};
use crate::threads;

/// Pages protected by one system call, at most: 8 MiB, so that the helpers share the work evenly,
/// and writers are not held up for long.
const CHUNK_PAGES: usize = 2048;
/// More writable pages than a part in so many are protected with the rest of the memory, by large
/// ranges; fewer one by one. A single page costs as much as twenty of a range while there is nobody
/// to interrupt, and as much as some hundred while writers run elsewhere: each call then interrupts
/// their processors.
const MOST_WRITABLE_HELD: usize = 16;
const MOST_WRITABLE_RUNNING: usize = 256;
/// More helpers than this do not make the kernel faster.
const HELPERS_MAX: usize = 3;

/// Rounds of protecting at most while writers go on, and how many writable pages are few enough.
const ROUNDS_MAX: usize = 8;
const FEW_WRITABLE_PAGES: usize = 32;

/// What the writers do while memory is armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// They hold still, and their processors are ours.
    Held,
    /// They go on, on other processors.
    Running,
    /// They go on, on the processor of whoever protects.
    Beside,
}

/// Threads that help to arm.
pub(crate) struct Armer {
    work: Arc<Work>,
    helpers: Vec<JoinHandle<()>>,
}

struct Work {
    shared: Arc<Shared>,
    /// Ranges of page indexes, each in one span.
    chunks: Vec<(usize, usize)>,
    /// Number of the next chunk; at least `chunks.len()` when there is no work.
    next: AtomicUsize,
    done: AtomicUsize,
    /// Helpers that look for chunks now.
    busy: AtomicUsize,
    errno: AtomicU64,
    start: Doorbell,
    closing: AtomicBool,
}

impl Armer {
    pub fn new(shared: &Arc<Shared>) -> Result<Armer, TrackError> {
        let mut chunks = Vec::new();
        for number in 0..shared.guard.spans.iter().count() {
            let indexes = shared.guard.spans.indexes(number);
            for from in indexes.clone().step_by(CHUNK_PAGES) {
                chunks.push((from, (from + CHUNK_PAGES).min(indexes.end)));
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = (cores - 1).min(HELPERS_MAX).min(chunks.len() - 1);
        let work = Arc::new(Work {
            shared: Arc::clone(shared),
            next: AtomicUsize::new(chunks.len()),
            done: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            errno: AtomicU64::new(0),
            start: Doorbell::new(),
            closing: AtomicBool::new(false),
            chunks,
        });
        let helper = |_| {
            let work = Arc::clone(&work);
            let body = move || {
                while !work.closing.load(SeqCst) {
                    let seen = work.start.look();
                    work.protect_chunks(&mut || {});
                    if work.next.load(SeqCst) >= work.chunks.len() && !work.closing.load(SeqCst) {
                        work.start.wait(seen, None);
                    }
                }
            };
            threads::start("pagetide-arm", body)
        };
        let mut armer = Armer {
            work: Arc::clone(&work),
            helpers: Vec::new(),
        };
        for number in 0..wanted {
            armer.helpers.push(helper(number)?);
        }
        Ok(armer)
    }

    /// Protects every writable page while the writers hold still; after an error everything counts
    /// as writable. Allocates nothing: other threads may be parked. One at a time.
    pub fn protect_all(&self) -> Result<(), Errno> {
        self.work.protect_all(Writers::Held, &mut || {})
    }

    /// Protects writable pages, while writers go on, until few are left or a round leaves hardly
    /// fewer. Returns how many are left. A thread of its own does it, which may go where the writer
    /// is. One at a time.
    pub fn protect_most(&self) -> Result<usize, TrackError> {
        let (tell, told) = channel();
        let work = Arc::clone(&self.work);
        let thread = threads::start("pagetide-arm", move || {
            // Nobody listens only if the caller has panicked.
            let _ = tell.send(work.protect_most());
        })?;
        let left = told.recv();
        let _ = thread.join();
        left.unwrap_or(Err(Errno::IO))
            .map_err(system("write-protecting memory"))
    }
}

impl Work {
    fn protect_most(&self) -> Result<usize, Errno> {
        let mut placement = Placement::new(&self.shared);
        let mut before = usize::MAX;
        for _ in 0..ROUNDS_MAX {
            let writers = match placement.shares() {
                true => Writers::Beside,
                false => Writers::Running,
            };
            self.protect_all(writers, &mut || placement.share_in_turns())?;
            let now = self.shared.guard.writable_pages();
            // Few, or hardly fewer: what is written in the time of a round is what remains, and a
            // page is protected more cheaply when nobody writes.
            if now <= FEW_WRITABLE_PAGES || now > before / 2 {
                return Ok(now);
            }
            before = now;
        }
        Ok(before)
    }

    /// Calls `between` between pieces of work.
    fn protect_all(&self, writers: Writers, between: &mut dyn FnMut()) -> Result<(), Errno> {
        self.try_protect_all(writers, between).inspect_err(|_| {
            let shared = &self.shared;
            // A snapshot that is being swept needs what becomes writable here unsaved. Said first:
            // what does was writable after that.
            shared.failed.store(true, SeqCst);
            // A region's page that counts as writable is written without our being told.
            shared
                .pages
                .set_written(0, shared.guard.spans.pages(), shared.phase().epoch);
            shared.guard.mark_all_writable();
        })
    }

    fn try_protect_all(&self, writers: Writers, between: &mut dyn FnMut()) -> Result<(), Errno> {
        let guard = &self.shared.guard;
        let part = match writers {
            Writers::Held | Writers::Beside => MOST_WRITABLE_HELD,
            Writers::Running => MOST_WRITABLE_RUNNING,
        };
        if guard.writable_pages() * part < guard.spans.pages() {
            // The pagers of regions wait meanwhile: no turns are taken then.
            let mut between = Some(between).filter(|_| guard.spans.regions().next().is_none());
            let mut between = |_, _| _ = between.as_mut().map(|between| between());
            return guard.protecting(|| guard.try_protect_writable(&mut between));
        }
        guard.clear_marks()?;
        self.errno.store(0, SeqCst);
        self.done.store(0, SeqCst);
        self.next.store(0, SeqCst);
        // Where the writers run, helpers would take their processors from them.
        if writers == Writers::Held {
            self.start.ring();
        }
        self.protect_chunks(between);
        while self.done.load(SeqCst) < self.chunks.len() || self.busy.load(SeqCst) != 0 {
            std::hint::spin_loop();
        }
        match self.errno.load(SeqCst) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno as i32)),
        }
    }

    fn protect_chunks(&self, between: &mut dyn FnMut()) {
        self.busy.fetch_add(1, SeqCst);
        loop {
            let number = self.next.fetch_add(1, SeqCst);
            let Some((from, to)) = self.chunks.get(number) else {
                break;
            };
            if let Err(errno) = self.shared.guard.protect(*from, *to) {
                self.errno.store(errno.raw_os_error() as u64, SeqCst);
            }
            self.done.fetch_add(1, SeqCst);
            between();
        }
        self.busy.fetch_sub(1, SeqCst);
    }
}

impl Drop for Armer {
    fn drop(&mut self) {
        self.work.closing.store(true, SeqCst);
        self.work.start.ring();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}
