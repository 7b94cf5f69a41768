//! Keeping the fault thread and the thread whose faults it serves on one processor.
//!
//! A fault served by another thread takes two wake-ups. On one processor they are two context switches, some 3 us. Between processors each is an interrupt,
//! and where a hypervisor carries those, and has to start a sleeping processor, a fault takes 50 us and more rather than 9. The scheduler does not know: it
//! wakes a thread on an idle processor if there is one. So where interrupts are dear and one thread alone has faults, the fault thread goes to that thread's
//! processor and holds it there for as long as its faults keep coming.
//!
//! The program is not to notice. It is let go as soon as nothing has been served for [`QUIET_NS`], when a second thread faults, and before it forks, starts a
//! thread or a program, or asks for its processors through the C library ([`Together::let_go`]). What was started without the C library is found by the fault
//! thread and let go as well; in a `Region` nothing stands before the C library, and that is all there is. Every [`TURN_NS`] the scheduler has a say again, in case there is a better place.
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::{began_at, began_now, processor_of, shares_processor};
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::follow::{FaultProcessors, Workplace, may_run_on, only};

/// How often the fault thread considers where to be: that takes some 5 us.
const CONSIDER_NS: u64 = 500_000;
/// Without a fault for so long, the thread is let go.
pub const QUIET_NS: u64 = 2_000_000;
/// How often heirs of the held thread are looked for.
const HEIRS_NS: u64 = 30_000_000;
/// How long a thread is held at most before the scheduler decides again, and how long it is left to.
const TURN_NS: (u64, u64) = (500_000_000, 2_000_000);
/// How long a thread that asks to be let go waits for the one that holds it just now.
const PATIENCE_NS: u64 = 20_000_000;
/// How long a thread that was let go by its own doing is not held again.
const RESPITE_NS: u64 = 50_000_000;

/// The thread that is held, as every thread may know it.
#[derive(Debug, Default)]
pub struct Together {
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
    /// `thread` (by default the calling one) may run where the held one might before, if it is confined as that one is.
    fn free(&self, thread: Option<Pid>) {
        if sched_getaffinity(thread).is_ok_and(|now| now == only(self.cpu)) {
            let _ = sched_setaffinity(thread, &self.before);
        }
    }

    /// `task` may run where the held thread might before, if it began after that was held, and is confined as it is.
    fn free_heir(&self, task: Pid) {
        let began = || began_at(task.as_raw_nonzero().get() as u32);
        if sched_getaffinity(Some(task)).is_ok_and(|now| now == only(self.cpu))
            && began().is_some_and(|began| began >= self.since)
        {
            let _ = sched_setaffinity(Some(task), &self.before);
        }
    }
}

impl Together {
    /// Called in the program's own threads before anything that would show, or hand on, that the thread is held. It is not held again for a moment.
    pub fn let_go(&self) {
        self.not_before_ns.store(now_ns() + RESPITE_NS, SeqCst);
        if self.thread.load(SeqCst) == 0 {
            return;
        }
        // Who holds or frees it just now has done so soon, and waits for nobody. But a signal handler may have interrupted this very function.
        let until_ns = now_ns() + PATIENCE_NS;
        loop {
            if let Ok(mut held) = self.held.try_lock() {
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

    /// Lets the thread go, and holds none until [`Together::end_call`], however long that takes on a busy machine.
    pub fn begin_call(&self) {
        self.calls.fetch_add(1, SeqCst);
        self.let_go();
    }

    /// Ends one [`Together::begin_call`].
    pub fn end_call(&self) {
        let less = |calls: u32| calls.checked_sub(1);
        let _ = self.calls.fetch_update(SeqCst, SeqCst, less);
    }

    /// Whether none may be held at `now_ns`.
    fn is_excused(&self, now_ns: u64) -> bool {
        self.calls.load(SeqCst) > 0 || now_ns < self.not_before_ns.load(SeqCst)
    }

    /// In a forked child: whoever was held is in the parent.
    pub fn forget(&self) {
        self.calls.store(0, SeqCst);
        self.thread.store(0, SeqCst);
        if let Ok(mut held) = self.held.try_lock() {
            *held = None;
        }
    }

    /// Whether a thread is held.
    pub fn is_holding(&self) -> bool {
        self.thread.load(SeqCst) != 0
    }

    /// Holds `thread` on `cpu`. Whether that was possible, and of any use.
    fn hold(&self, thread: u32, cpu: usize, now_ns: u64) -> bool {
        let (Some(id), Ok(mut held)) = (Pid::from_raw(thread as i32), self.held.try_lock()) else {
            return false;
        };
        let Ok(before) = sched_getaffinity(Some(id)) else {
            return false;
        };
        if !before.is_set(cpu) || before == only(cpu) {
            return false;
        }
        let since = began_now();
        // Said first: whoever asks to be let go sees this and waits until it is done, or is seen here.
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

    /// Not while the program's thread is in `let_go`: on a stack that is paged, it may wait there for the caller.
    fn release(&self, evictor: u32) {
        if let Ok(mut held) = self.held.try_lock()
            && let Some(held) = held.take()
        {
            held.free(Some(held.thread));
            // Not before: whoever sees that none is held takes itself for free.
            self.thread.store(0, SeqCst);
            free_heirs(&held, evictor);
        }
    }

    fn free_heirs(&self, evictor: u32) {
        if let Ok(Some(held)) = self.held.try_lock().as_deref() {
            free_heirs(held, evictor);
        }
    }
}

/// The part of the thread that holds: the fault thread, or, where threads serve their own faults, the evictor.
#[derive(Debug, Default)]
pub struct Beside {
    place: Workplace,
    /// The thread's place is chosen elsewhere: it holds whoever is there already.
    stays: bool,
    /// Changes of the faulting thread seen.
    changes: u32,
    considered_ns: u64,
    heirs_ns: u64,
    held_since_ns: u64,
}

impl Beside {
    /// For the evictor, which has a [`Workplace`] of its own.
    pub fn where_it_is() -> Beside {
        Beside {
            stays: true,
            ..Beside::default()
        }
    }

    /// After a round of work at `now_ns`. Where a server that keeps to processor `server_cpu` has the pages, all go there.
    pub fn consider(
        &mut self,
        together: &Together,
        faults: &FaultProcessors,
        server_cpu: Option<usize>,
        now_ns: u64,
    ) {
        if now_ns - self.considered_ns < CONSIDER_NS {
            return;
        }
        self.considered_ns = now_ns;
        let single = faults.single(&mut self.changes);
        let worth_it = faults.is_interrupting_dear() || server_cpu.is_some();
        let wanted = single.filter(|(thread, _)| worth_it && shares_processor(*thread));
        let Some((thread, _)) = wanted else {
            return self.leave(together, faults);
        };
        if !together.is_holding() {
            if together.is_excused(now_ns) {
                return self.leave(together, faults);
            }
            let server_cpu = server_cpu.filter(|cpu| may_run_on(thread, *cpu));
            let Some(cpu) = server_cpu
                .map(|cpu| cpu as u32)
                .or_else(|| processor_of(thread))
            else {
                return self.leave(together, faults);
            };
            if self.stays {
                if sched_getcpu() as u32 != cpu {
                    return;
                }
            } else {
                self.place.go(Some(cpu as usize));
            }
            if together.hold(thread, cpu as usize, now_ns) {
                (self.held_since_ns, self.heirs_ns) = (now_ns, now_ns);
            } else if together.is_excused(now_ns) {
                // It asked to be let go in this very moment.
                return self.leave(together, faults);
            }
            faults.note_of(thread, cpu);
        } else if together.thread.load(SeqCst) != thread || now_ns - self.held_since_ns > TURN_NS.0
        {
            self.leave(together, faults);
            together.not_before_ns.fetch_max(now_ns + TURN_NS.1, SeqCst);
        } else if now_ns - self.heirs_ns > HEIRS_NS {
            self.heirs_ns = now_ns;
            together.free_heirs(faults.evictor_thread());
        }
    }

    /// Everybody may run anywhere.
    pub fn leave(&mut self, together: &Together, faults: &FaultProcessors) {
        together.release(faults.evictor_thread());
        self.place.go(None);
    }
}

/// Threads and child processes begun by a held thread are confined as it is. Those begun through the C library are not, for it was let go before.
fn free_heirs(held: &Held, evictor: u32) {
    let own = [Some(gettid()), Pid::from_raw(evictor as i32)];
    each_number_in(c"/proc/self/task", |task| {
        if task != held.thread && !own.contains(&Some(task)) {
            held.free_heir(task);
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
            held.free_heir(child);
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A thread whose faults would be served, which does what it is told.
    struct Program {
        id: u32,
        errands: Sender<Box<dyn FnOnce() + Send>>,
    }

    impl Program {
        fn start() -> Program {
            let (errands, todo) = channel::<Box<dyn FnOnce() + Send>>();
            let (tell, told) = channel();
            std::thread::spawn(move || {
                tell.send(gettid().as_raw_nonzero().get() as u32).unwrap();
                todo.into_iter().for_each(|errand| errand());
            });
            let id = told.recv().unwrap();
            Program { id, errands }
        }

        /// What `errand`, done in that thread, says.
        fn ask<T: Send + 'static>(&self, errand: impl FnOnce() -> T + Send + 'static) -> T {
            let (tell, told) = channel();
            let errand = move || tell.send(errand()).unwrap();
            self.errands.send(Box::new(errand)).unwrap();
            told.recv().unwrap()
        }

        fn processors(&self) -> u32 {
            sched_getaffinity(Pid::from_raw(self.id as i32))
                .unwrap()
                .count()
        }
    }

    fn processors_in_status(status: &str) -> u32 {
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"))
            .unwrap();
        mask.chars()
            .filter_map(|digit| digit.to_digit(16))
            .map(u32::count_ones)
            .sum()
    }

    /// The test, on a thread of its own that plays the fault thread; `program` has had a fault, and interrupts are dear.
    fn beside(
        test: impl FnOnce(&Together, &FaultProcessors, &mut Beside, Program) + Send + 'static,
    ) {
        let all = sched_getaffinity(None).unwrap().count();
        if all < 2 {
            return eprintln!("skipped: one processor only");
        }
        // One at a time: heirs are looked for among all threads of the process.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(|failed| failed.into_inner());
        std::thread::spawn(|| {
            let (together, faults) = (Together::default(), FaultProcessors::default());
            let (mut beside, program) = (Beside::default(), Program::start());
            faults.find_dear();
            faults.note_thread(program.id);
            test(&together, &faults, &mut beside, program);
        })
        .join()
        .expect("the test failed");
    }

    #[test]
    fn a_thread_is_held_beside_the_fault_thread_until_it_is_let_go() {
        beside(|together, faults, beside, program| {
            let all = program.processors();
            beside.consider(together, faults, None, now_ns());
            assert!(together.is_holding());
            assert_eq!(program.processors(), 1);
            let id = Pid::from_raw(program.id as i32);
            assert_eq!(
                sched_getaffinity(None).unwrap(),
                sched_getaffinity(id).unwrap()
            );
            together.let_go();
            assert_eq!(program.processors(), all);
            // Not at once again; the fault thread goes back to where it might run before.
            beside.considered_ns = 0;
            beside.consider(together, faults, None, now_ns());
            assert_eq!(program.processors(), all);
            assert_eq!(sched_getaffinity(None).unwrap().count(), all);
            beside.considered_ns = 0;
            beside.consider(together, faults, None, now_ns() + RESPITE_NS);
            assert_eq!(program.processors(), 1);
            beside.leave(together, faults);
            assert_eq!(program.processors(), all);
        });
    }

    #[test]
    fn nobody_is_held_where_interrupts_are_cheap_or_two_threads_fault() {
        beside(|together, faults, beside, program| {
            beside.consider(together, &FaultProcessors::default(), None, now_ns());
            assert!(!together.is_holding());
            beside.considered_ns = 0;
            beside.consider(together, faults, None, now_ns());
            assert!(together.is_holding());
            faults.note_thread(1);
            faults.note_thread(program.id);
            beside.considered_ns = 0;
            beside.consider(together, faults, None, now_ns());
            assert!(!together.is_holding());
            assert!(program.processors() > 1);
        });
    }

    #[test]
    fn the_evictor_holds_a_thread_where_it_is_itself_and_nowhere_else() {
        beside(|together, faults, _, program| {
            let mut beside = Beside::where_it_is();
            let cpu = processor_of(program.id).unwrap() as usize;
            let all = sched_getaffinity(None).unwrap();
            let elsewhere = (0..CpuSet::MAX_CPU).find(|other| *other != cpu && all.is_set(*other));
            sched_setaffinity(None, &only(elsewhere.unwrap())).unwrap();
            beside.consider(together, faults, None, now_ns());
            assert!(!together.is_holding(), "it would keep it from coming here");
            sched_setaffinity(None, &only(cpu)).unwrap();
            beside.considered_ns = 0;
            beside.consider(together, faults, None, now_ns());
            assert_eq!((together.is_holding(), program.processors()), (true, 1));
            sched_setaffinity(None, &all).unwrap();
            beside.leave(together, faults);
            assert_eq!(program.processors(), all.count());
            assert_eq!(
                sched_getaffinity(None).unwrap(),
                all,
                "its own place is not Beside's to choose"
            );
        });
    }

    #[test]
    fn all_go_to_the_processor_of_a_server_however_cheap_interrupts_are() {
        beside(|together, _, beside, program| {
            let faults = FaultProcessors::default();
            faults.note_thread(program.id);
            let at = processor_of(program.id).unwrap() as usize;
            let all = sched_getaffinity(None).unwrap();
            let another = (0..CpuSet::MAX_CPU).find(|cpu| *cpu != at && all.is_set(*cpu));
            beside.consider(together, &faults, another, now_ns());
            assert!(together.is_holding());
            let of_program = sched_getaffinity(Pid::from_raw(program.id as i32)).unwrap();
            assert_eq!(of_program, only(another.unwrap()));
            assert_eq!(sched_getaffinity(None).unwrap(), of_program);
            beside.leave(together, &faults);
            assert_eq!(program.processors(), all.count());
        });
    }

    #[test]
    fn a_thread_that_may_not_run_where_a_server_does_is_held_where_it_is() {
        beside(|together, faults, beside, program| {
            let nowhere = CpuSet::MAX_CPU - 1;
            beside.consider(together, faults, Some(nowhere), now_ns());
            assert_eq!((together.is_holding(), program.processors()), (true, 1));
            beside.leave(together, faults);
        });
    }

    #[test]
    fn the_scheduler_has_its_turn() {
        beside(|together, faults, beside, program| {
            let start = now_ns();
            beside.consider(together, faults, None, start);
            assert!(together.is_holding());
            beside.consider(together, faults, None, start + TURN_NS.0 + 1);
            assert_eq!(
                (together.is_holding(), program.processors() > 1),
                (false, true)
            );
            beside.consider(together, faults, None, start + TURN_NS.0 + TURN_NS.1 / 2);
            assert!(!together.is_holding());
            beside.consider(
                together,
                faults,
                None,
                start + TURN_NS.0 + TURN_NS.1 + CONSIDER_NS,
            );
            assert!(together.is_holding());
            beside.leave(together, faults);
        });
    }

    #[test]
    fn threads_and_programs_begun_unseen_are_let_go_too() {
        beside(|together, faults, beside, program| {
            let all = program.processors();
            let worker = Program::start();
            let cpu = processor_of(program.id).unwrap() as usize;
            worker.ask(move || sched_setaffinity(None, &only(cpu)).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            beside.consider(together, faults, None, now_ns());
            let (heir, mut child) = program.ask(|| {
                let child = Command::new("sleep").arg("60").spawn().unwrap();
                (Program::start(), child)
            });
            let of_child = || {
                let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
                processors_in_status(&status.unwrap())
            };
            assert_eq!((heir.processors(), of_child()), (1, 1), "they inherit");
            beside.considered_ns = 0;
            beside.consider(together, faults, None, now_ns() + HEIRS_NS + 1);
            assert!(together.is_holding());
            assert_eq!((heir.processors(), of_child()), (all, all));
            assert_eq!(worker.processors(), 1, "confined by its own wish before");
            assert_eq!(program.processors(), 1);
            assert_eq!(
                sched_getaffinity(None).unwrap().count(),
                1,
                "the fault thread is no heir"
            );
            beside.leave(together, faults);
            child.kill().unwrap();
            child.wait().unwrap();
        });
    }

    #[test]
    fn who_was_confined_by_somebody_else_stays_so() {
        beside(|together, faults, beside, program| {
            program.ask(|| sched_setaffinity(None, &only(0)).unwrap());
            beside.consider(together, faults, None, now_ns());
            assert!(!together.is_holding());
            beside.leave(together, faults);
            assert_eq!(program.processors(), 1);
        });
    }
}
