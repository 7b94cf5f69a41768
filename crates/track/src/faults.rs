//! Bringing write faults on protected pages to the code that serves them: by a handler thread, or
//! by a signal in the faulting thread.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use pagetide_kernel::memory::unmerge;
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::trap::{Access, Serve, Signal, Trap};
use pagetide_kernel::uffd::{self, Event, Message, Stop, Uffd, feature};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::error::{TrackError, system};
use super::memory::Memory;
use super::spans::Spans;
use super::threads::{self, Ending};
use pagetide_pager::region::Delivery;
use pagetide_pager::write_notification::WriteObserver;

/// How long the handler thread looks for the next fault before it sleeps.
const SPIN_NS: u64 = 20_000;

/// Serves the first write to a protected page: whatever it does, it must be writable when this
/// returns.
pub(crate) trait OnWrite: Send + Sync + 'static {
    /// The uffd whose messages tell of writes; none where faults come by signal.
    fn uffd(&self) -> Option<&Uffd>;
    /// Opens `page`; false if the access is to be tried again as it is. In delivery by signal this
    /// runs in a signal handler: no allocation, no locks of the program's.
    fn on_write(&self, page: PageNumber) -> bool;
    /// Whether `page` is one that can be written without a fault, as far as is known.
    fn is_open(&self, page: PageNumber) -> bool;
    /// Called before [`OnWrite::on_write`] in a thread that serves a fault of its own.
    fn note_faulting_thread(&self) {}
}

struct Server<S> {
    on_write: Arc<S>,
    futile: Futile,
}

impl<S: OnWrite> Serve for Server<S> {
    fn serve(&self, access: Access) -> bool {
        // Protected pages can be read: a read that faults is a page that is lost, or a file that
        // ends before it.
        let page = PageNumber::containing(access.address);
        if !access.write || (self.on_write.is_open(page) && self.futile.is(page)) {
            return false;
        }
        self.on_write.note_faulting_thread();
        self.on_write.on_write(page);
        true
    }
}

/// Faults of a thread at one page that is open already after which opening it is no help: the file
/// behind it has become shorter. A few are those of threads that met there.
const FUTILE: u64 = 20_000;

/// Faults at open pages, by thread: the page, and from bit 0 on 16 bits of how often in a row.
/// Threads that share a word only begin each other's count anew. No thread-local variable: its
/// memory may be made at its first use, and this is used in signal handlers.
#[derive(Default)]
struct Futile([AtomicU64; 32]);

impl Futile {
    /// To be called at a fault on an open page: whether the calling thread has had so many at
    /// `page`, and none at another.
    fn is(&self, page: PageNumber) -> bool {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as usize;
        let word = &self.0[thread % self.0.len()];
        let before = word.load(SeqCst);
        let count = match before >> 16 == page.0 {
            true => (before & 0xFFFF) + 1,
            false => 0,
        };
        word.store(page.0 << 16 | count.min(0xFFFF), SeqCst);
        count > FUTILE
    }
}

/// Faults are brought to their server while this lives.
pub(crate) struct FaultSource {
    traps: Vec<Trap>,
    /// What the traps refer to; dropped after them.
    _server: Option<Box<dyn Send + Sync>>,
    thread: Option<(JoinHandle<()>, Arc<Ending>)>,
}

/// Has the pagers of all regions among the spans tell `observer` of first writes. It must live
/// until [`stop_observing`] has returned.
pub(crate) fn observe<W: WriteObserver + 'static>(
    spans: &Spans,
    observer: &Arc<W>,
) -> Result<(), TrackError> {
    let pointer = Arc::as_ptr(observer) as *const dyn WriteObserver;
    for (number, region) in spans.regions().enumerate() {
        // SAFETY: our caller keeps it alive.
        if !unsafe { region.observe_writes(pointer) } {
            spans
                .regions()
                .take(number)
                .for_each(|region| region.pager.write_notifications.end());
            let range = region.memory.range();
            return Err(TrackError::Taken(range.address(), range.bytes()));
        }
    }
    Ok(())
}

/// Ends [`observe`].
pub(crate) fn stop_observing(spans: &Spans) {
    spans
        .regions()
        .for_each(|region| region.pager.write_notifications.end());
}

impl FaultSource {
    /// There is nothing but regions, whose pagers bring the faults.
    pub fn none() -> FaultSource {
        FaultSource {
            traps: Vec::new(),
            _server: None,
            thread: None,
        }
    }

    /// Faults come by signals, in the faulting thread.
    pub fn by_signal<S: OnWrite>(
        server: &Arc<S>,
        signal: Signal,
        spans: &Spans,
    ) -> Result<FaultSource, TrackError> {
        let server = Box::new(Server {
            on_write: Arc::clone(server),
            futile: Futile::default(),
        });
        let set = |range: PageRange| {
            // SAFETY: the boxed server lives in the same FaultSource, which drops the traps first
            // (see Drop); `OnWrite` demands what a signal handler may do.
            unsafe { Trap::set(signal, range, &raw const *server) }
        };
        let traps = spans
            .mappings()
            .map(|span| set(span.range))
            .collect::<Result<_, Errno>>()
            .map_err(system("setting a trap for faults"))?;
        Ok(FaultSource {
            traps,
            _server: Some(server),
            thread: None,
        })
    }

    /// Faults are read from the userfaultfd by a thread of its own.
    pub fn by_thread<S: OnWrite>(server: &Arc<S>) -> Result<FaultSource, TrackError> {
        let ending = Arc::new(Ending::new()?);
        let (server, told) = (Arc::clone(server), Arc::clone(&ending));
        let thread = threads::start("pagetide-write", move || serve_messages(&*server, &told))?;
        Ok(FaultSource {
            traps: Vec::new(),
            _server: None,
            thread: Some((thread, ending)),
        })
    }
}

impl Drop for FaultSource {
    fn drop(&mut self) {
        self.traps.clear();
        if let Some((thread, ending)) = self.thread.take() {
            ending.come();
            let _ = thread.join();
        }
    }
}

fn serve_messages<S: OnWrite>(server: &S, ending: &Ending) {
    let Some(uffd) = server.uffd() else { return };
    let mut messages = [Message::default(); 32];
    let spins = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let mut last_work_ns = 0;
    while !ending.has_come() {
        let count = uffd.read(&mut messages).unwrap_or(0);
        for message in &messages[..count] {
            if let Event::Fault { page, .. } = message.decode() {
                // Opening wakes those that wait.
                if !server.on_write(page) {
                    uffd.wake(PageRange::one(page));
                }
            }
        }
        let now = now_ns();
        if count > 0 {
            last_work_ns = now;
        } else if !spins || now - last_work_ns > SPIN_NS {
            ending.wait_for_message(uffd);
        }
    }
}

/// A userfaultfd for write-protect faults that somebody serves, with all that helps and this kernel
/// has.
pub(crate) fn open_for_writes(delivery: Delivery) -> Result<Uffd, TrackError> {
    let has = Uffd::kernel_features(uffd::open(None)?).map_err(system("UFFDIO_API"))?;
    if has & feature::PAGEFAULT_FLAG_WP == 0 {
        return Err(TrackError::Feature("write-protect faults (Linux 5.7)"));
    }
    let mut wanted = feature::PAGEFAULT_FLAG_WP;
    wanted |= has & (feature::WP_UNPOPULATED | feature::WP_HUGETLBFS_SHMEM);
    if delivery == Delivery::Signal {
        if has & feature::SIGBUS == 0 {
            return Err(TrackError::Feature("faults by signal (Linux 4.14)"));
        }
        wanted |= feature::SIGBUS;
    }
    Uffd::negotiate(uffd::open(None)?, wanted).map_err(system("UFFDIO_API"))
}

/// Registers every span for write-protect faults.
pub(crate) fn register(uffd: &Uffd, spans: &Spans) -> Result<(), TrackError> {
    for span in spans.mappings() {
        uffd.register_write_protect(span.range)
            .map_err(|errno| match errno {
                Errno::BUSY => TrackError::Taken(span.range.address(), span.range.bytes()),
                errno => TrackError::System("registering memory for write-protect faults", errno),
            })?;
        unmerge(span.range);
    }
    Ok(())
}

/// Refuses spans of huge pages, of which no part can be opened by itself. They are registered.
pub(crate) fn refuse_huge_pages(uffd: &Uffd, spans: &Spans) -> Result<(), TrackError> {
    let huge = |span: &&Memory| {
        let page = PageRange::one(span.range.start);
        uffd.write_protect(page, false) == Err(Stop::Refused)
    };
    match spans.mappings().find(huge) {
        Some(span) => Err(TrackError::HugePages(
            span.range.address(),
            span.range.bytes(),
        )),
        None => Ok(()),
    }
}
