//! Which threads have faults, and on which processors.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use pagetide_kernel::thread::control_block;
use rustix::thread::{gettid, sched_getcpu};

/// One noted fault in so many asks the kernel which thread has it.
const ASK_AGAIN: u32 = 64;
/// What [`FaultProcessors::evictor`] holds while the evictor works anywhere, and the lower half of
/// `last` while the processor is not known.
const ANYWHERE: u32 = u32::MAX;

/// Where faults came from of late, and where the evictor works.
#[derive(Debug)]
pub struct FaultProcessors {
    /// The thread that faulted last (upper half), and its processor.
    last: AtomicU64,
    /// Where the control block of the thread is that noted its own fault last, and how many were
    /// noted.
    noted: (AtomicUsize, AtomicU32),
    /// How often another thread than the last one has faulted.
    changes: AtomicU32,
    /// The processor the evictor keeps to.
    evictor: AtomicU32,
    /// Its thread's ID.
    evictor_thread: AtomicU32,
    /// Interrupting another processor is expensive.
    expensive: AtomicBool,
}

impl Default for FaultProcessors {
    fn default() -> FaultProcessors {
        FaultProcessors {
            last: AtomicU64::new(ANYWHERE as u64),
            noted: (AtomicUsize::new(0), AtomicU32::new(0)),
            changes: AtomicU32::new(0),
            evictor: AtomicU32::new(ANYWHERE),
            evictor_thread: AtomicU32::new(0),
            expensive: AtomicBool::new(false),
        }
    }
}

impl FaultProcessors {
    /// The calling thread serves a fault of its own. Mostly it is the one that did last time, which
    /// is known without asking the kernel; now and then it is asked, for a new thread may have the
    /// control block of one that has ended.
    pub fn note(&self) {
        let (block, (last_block, count)) = (control_block(), &self.noted);
        let noted = count.load(Relaxed);
        count.store(noted.wrapping_add(1), Relaxed);
        let thread = match block == last_block.load(Relaxed) && !noted.is_multiple_of(ASK_AGAIN) {
            true => (self.last.load(Relaxed) >> 32) as u32,
            false => gettid().as_raw_nonzero().get() as u32,
        };
        self.note_of(thread, sched_getcpu() as u32);
        last_block.store(block, Relaxed);
    }

    /// `thread` has faulted; where it runs is not known.
    pub fn note_thread(&self, thread: u32) {
        if (self.last.load(Relaxed) >> 32) as u32 != thread {
            self.note_of(thread, ANYWHERE);
        }
    }

    /// `thread` has faulted, and runs on processor `cpu`.
    pub fn note_of(&self, thread: u32, cpu: u32) {
        let before = self.last.load(Relaxed);
        let now = u64::from(thread) << 32 | u64::from(cpu);
        if now != before {
            self.last.store(now, Relaxed);
        }
        if (before >> 32) as u32 != thread && before >> 32 != 0 {
            self.changes.fetch_add(1, Relaxed);
        }
    }

    /// Whether the evictor waits for the processor that the calling thread runs on.
    pub fn evictor_is_here(&self) -> bool {
        self.evictor.load(Relaxed) == sched_getcpu() as u32
    }

    /// The evictor's thread ID once it has kept to a processor, else 0.
    pub fn evictor_thread(&self) -> u32 {
        self.evictor_thread.load(Relaxed)
    }

    /// Whether the thread that faulted last did so on the calling thread's processor.
    pub(super) fn last_was_here(&self) -> bool {
        self.last.load(Relaxed) as u32 == sched_getcpu() as u32
    }

    /// The calling thread is the evictor, and keeps to processor `cpu` from now on, or to none.
    pub(super) fn evictor_keeps_to(&self, cpu: Option<usize>) {
        let thread = gettid().as_raw_nonzero().get() as u32;
        self.evictor_thread.store(thread, Relaxed);
        let cpu = cpu.map_or(ANYWHERE, |cpu| cpu as u32);
        self.evictor.store(cpu, Relaxed);
    }

    /// Interrupting another processor was found to be expensive, or not.
    pub(super) fn set_interrupting_expensive(&self, expensive: bool) {
        if self.expensive.load(Relaxed) != expensive {
            self.expensive.store(expensive, Relaxed);
        }
    }

    /// Whether interrupting another processor was found to be expensive.
    pub fn is_interrupting_expensive(&self) -> bool {
        self.expensive.load(Relaxed)
    }

    /// The only thread that has had faults since `changes` were seen last, if there was only one,
    /// and its processor if that is known.
    pub fn single(&self, changes: &mut u32) -> Option<(u32, Option<usize>)> {
        let before = std::mem::replace(changes, self.changes.load(Relaxed));
        let last = self.last.load(Relaxed);
        let cpu = (last as u32 != ANYWHERE).then_some((last & 0xFFFF_FFFF) as usize);
        (last >> 32 != 0 && before == *changes).then_some(((last >> 32) as u32, cpu))
    }
}
