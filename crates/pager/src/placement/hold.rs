//! Keeping the fault thread and the thread whose faults it serves on one processor.
//!
//! A fault served by another thread takes two wake-ups. On one processor they are two context
//! switches, some 3 us. Between processors each is an interrupt, and where a hypervisor carries
//! those, and has to start a sleeping processor, a fault takes 50 us and more rather than 9. The
//! scheduler does not know: it wakes a thread on an idle processor if there is one. So where
//! interrupts are expensive and one thread alone has faults, the fault thread goes to that thread's
//! processor and holds it there for as long as its faults keep coming.
//!
//! The program is not to notice. It is let go as soon as nothing has been served for [`QUIET_NS`],
//! when a second thread faults, and before it forks, starts a thread or a program, or asks for its
//! processors through the C library ([`HeldThread::let_go`]). What was started without the C
//! library is found by the fault thread and let go as well; in a `Region` nothing stands before the
//! C library, and that is all there is. Every [`TURN_NS`] the scheduler has a say again, in case
//! there is a better place.
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use pagetide_kernel::sync::{Mutex, now_ns};
use pagetide_kernel::thread::{began_at, began_now};
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use super::binding::only;

/// How long a thread that asks to be let go waits for the one that holds it just now, which may get
/// no processor for long on a busy machine.
const PATIENCE_NS: u64 = 200_000_000;
/// How long a thread that was let go by its own doing is not held again.
pub(super) const RESPITE_NS: u64 = 50_000_000;

/// The thread that is held, as every thread may know it.
#[derive(Debug, Default)]
pub struct HeldThread {
    /// Its ID; 0 when none is held.
    thread: AtomicU32,
    /// None is held before this time.
    not_before_ns: AtomicU64,
    /// Calls under way during which none is held.
    calls: AtomicU32,
    held: Mutex<Option<Held>>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    thread: Pid,
    cpu: usize,
    /// Where it might run before.
    before: CpuSet,
    /// Since when, as [`began_at`] counts.
    since: u64,
}

impl Held {
    /// `thread` (by default the calling one) may run where the held one might before, if it is
    /// confined as that one is.
    fn free(&self, thread: Option<Pid>) {
        if sched_getaffinity(thread).is_ok_and(|now| now == only(self.cpu)) {
            let _ = sched_setaffinity(thread, &self.before);
        }
    }

    /// `task` may run where the held thread might before, if it began after that was held, and is
    /// confined as it is.
    fn free_inherited_task(&self, task: Pid) {
        let began = || began_at(task.as_raw_nonzero().get() as u32);
        if sched_getaffinity(Some(task)).is_ok_and(|now| now == only(self.cpu))
            && began().is_some_and(|began| began >= self.since)
        {
            let _ = sched_setaffinity(Some(task), &self.before);
        }
    }
}

impl HeldThread {
    /// Called in the program's own threads before anything that would show, or hand on, that the
    /// thread is held. It is not held again for a moment.
    pub fn let_go(&self) {
        self.not_before_ns.store(now_ns() + RESPITE_NS, SeqCst);
        if self.thread.load(SeqCst) == 0 {
            return;
        }
        // Who holds or frees it just now has done so soon, and waits for nobody. But a signal
        // handler may have interrupted this very function.
        let until_ns = now_ns() + PATIENCE_NS;
        loop {
            if let Some(mut held) = self.held.try_lock() {
                if let Some(held) = held.take() {
                    held.free(Some(held.thread));
                    self.thread.store(0, SeqCst);
                    // A child made by vfork, that is about to become another program.
                    held.free(None);
                }
                return;
            }
            if now_ns() > until_ns {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Lets the thread go, and holds none until [`HeldThread::end_call`], however long that takes
    /// on a busy machine.
    pub fn begin_call(&self) {
        self.calls.fetch_add(1, SeqCst);
        self.let_go();
    }

    /// Ends one [`HeldThread::begin_call`].
    pub fn end_call(&self) {
        let less = |calls: u32| calls.checked_sub(1);
        let _ = self.calls.fetch_update(SeqCst, SeqCst, less);
    }

    /// Whether none may be held at `now_ns`.
    pub(super) fn is_excused(&self, now_ns: u64) -> bool {
        self.calls.load(SeqCst) > 0 || now_ns < self.not_before_ns.load(SeqCst)
    }

    /// In a forked child: whoever was held is in the parent.
    pub fn forget(&self) {
        self.calls.store(0, SeqCst);
        self.thread.store(0, SeqCst);
        if let Some(mut held) = self.held.try_lock() {
            *held = None;
        }
    }

    /// Whether a thread is held.
    pub fn is_holding(&self) -> bool {
        self.thread.load(SeqCst) != 0
    }

    /// Whether `thread` is the one.
    pub(super) fn is(&self, thread: u32) -> bool {
        self.thread.load(SeqCst) == thread
    }

    /// None is held before `ns`.
    pub(super) fn not_before(&self, ns: u64) {
        self.not_before_ns.fetch_max(ns, SeqCst);
    }

    /// Holds `thread` on `cpu`. Whether that was possible, and of any use.
    pub(super) fn hold(&self, thread: u32, cpu: usize, now_ns: u64) -> bool {
        let (Some(id), Some(mut held)) = (Pid::from_raw(thread as i32), self.held.try_lock())
        else {
            return false;
        };
        let Ok(before) = sched_getaffinity(Some(id)) else {
            return false;
        };
        if !before.is_set(cpu) || before == only(cpu) {
            return false;
        }
        let since = began_now();
        // Said first: whoever asks to be let go sees this and waits until it is done, or is seen
        // here.
        self.thread.store(thread, SeqCst);
        if self.is_excused(now_ns) || sched_setaffinity(Some(id), &only(cpu)).is_err() {
            self.thread.store(0, SeqCst);
            return false;
        }
        *held = Some(Held {
            thread: id,
            cpu,
            before,
            since,
        });
        true
    }

    /// Not while the program's thread is in `let_go`: on a stack that is paged, it may wait there
    /// for the caller.
    pub(super) fn release(&self, evictor: u32) {
        if let Some(mut held) = self.held.try_lock()
            && let Some(held) = held.take()
        {
            held.free(Some(held.thread));
            // Not before: whoever sees that none is held takes itself for free.
            self.thread.store(0, SeqCst);
            free_inherited(&held, evictor);
        }
    }

    pub(super) fn free_inherited(&self, evictor: u32) {
        if let Some(Some(held)) = self.held.try_lock().as_deref() {
            free_inherited(held, evictor);
        }
    }
}

/// Threads and child processes begun by a held thread are confined as it is. Those begun through
/// the C library are not, for it was let go before.
fn free_inherited(held: &Held, evictor: u32) {
    let own = [Some(gettid()), Pid::from_raw(evictor as i32)];
    each_number_in(c"/proc/self/task", |task| {
        if task != held.thread && !own.contains(&Some(task)) {
            held.free_inherited_task(task);
        }
    });
    let mut path = [0; 64];
    use std::io::Write;
    let _ = write!(
        &mut path[..],
        "/proc/self/task/{}/children\0",
        held.thread.as_raw_nonzero()
    );
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else {
        return;
    };
    let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let mut text = [0; 4096];
    let len = rustix::io::read(&file, &mut text).unwrap_or(0);
    for child in text[..len].split(u8::is_ascii_whitespace) {
        if let Some(child) = number(child) {
            held.free_inherited_task(child);
        }
    }
}

/// Calls `each` for every entry of `directory` that is a number. Does not allocate.
fn each_number_in(directory: &std::ffi::CStr, mut each: impl FnMut(Pid)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open(directory, flags, Mode::empty()) else {
        return;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if let Some(id) = number(entry.file_name().to_bytes()) {
            each(id);
        }
    }
}

fn number(text: &[u8]) -> Option<Pid> {
    Pid::from_raw(std::str::from_utf8(text).ok()?.parse().ok()?)
}
