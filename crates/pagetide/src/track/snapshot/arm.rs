//! Arming: write-protecting everything that is open, with the help of a few threads when that is much.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use pagetide_kernel::sync::Doorbell;
use rustix::io::Errno;

use super::copy_aside::Shared;
use crate::track::memory::TrackError;
use crate::track::threads;

/// Pages protected by one system call, at most: 32 MiB, so that the helpers share the work evenly.
const CHUNK_PAGES: usize = 8192;
/// More open pages than a part in so many are protected with the rest of the memory, by large ranges; fewer one by one. A single page costs as much as
/// twenty of a range while the writers are held, and as much as some hundred while they run: each call then interrupts their processors.
const MOST_OPEN_HELD: usize = 16;
const MOST_OPEN_RUNNING: usize = 256;
/// More helpers than this do not make the kernel faster.
const HELPERS_MAX: usize = 3;

/// What the writers do while memory is armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// They hold still.
    Held,
    /// They go on.
    Running,
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
                    work.protect_chunks();
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

    /// Closes every open page; after an error everything counts as open. Allocates nothing: other threads may be parked. One at a time.
    pub fn close_all(&self, writers: Writers) -> Result<(), Errno> {
        self.try_close_all(writers).inspect_err(|_| {
            let shared = &self.work.shared;
            // A region's page that counts as open is opened without our being told.
            shared
                .pages
                .set_written(0, shared.guard.spans.pages(), shared.phase().epoch);
            shared.guard.mark_everything();
        })
    }

    fn try_close_all(&self, writers: Writers) -> Result<(), Errno> {
        let guard = &self.work.shared.guard;
        let part = match writers {
            Writers::Held => MOST_OPEN_HELD,
            Writers::Running => MOST_OPEN_RUNNING,
        };
        if guard.open_pages() * part < guard.spans.pages() {
            return guard.closing(|| guard.close_open(|_, _| {}));
        }
        guard.clear_marks()?;
        let work = &self.work;
        work.errno.store(0, SeqCst);
        work.done.store(0, SeqCst);
        work.next.store(0, SeqCst);
        // Where the writers run, helpers would take their processors from them.
        if writers == Writers::Held && !self.helpers.is_empty() {
            work.start.ring();
        }
        work.protect_chunks();
        while work.done.load(SeqCst) < work.chunks.len() || work.busy.load(SeqCst) != 0 {
            std::hint::spin_loop();
        }
        match work.errno.load(SeqCst) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno as i32)),
        }
    }
}

impl Work {
    fn protect_chunks(&self) {
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
